"""Law of gradients by parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tpgen.tools.verification.derivatives import (
    NOT_DIFFERENTIABLE,
    PARAMETER,
    NamedFunction,
    central_difference,
    draw_normal_tensors,
    is_freed_graph,
    make_float64_function,
)
from tpgen.tools.verification.findings import Outcome, Pair
from tpgen.tools.verification.laws import Outcomes
from tpgen.tools.verification.subject import STILL, Subject, TensorsByName

SLOPE_LIMIT = 1e-3  # of a slope along a parameter: differences of long steps are as near
STEP = 1e-3  # relative to its largest entry or to one
NOISE = 1e-13  # of a result: what depends less on a parameter may be rounding
_Gradients = dict[str, Tensor | None]  # gradients by parameters
_FLAGS = ("train", "graph", "grad")  # parts of names of arguments that may ask for a graph
WAY_OUT = "create_graph=self.training keeps one, and what is for inference alone is given in eval()"
_FREED = f"a call in train() frees the graph of its results: {WAY_OUT}"
MEANT = "{result} has no graph in train(), as numbers that are only looked at"


class _MissingGradient(Exception):
    """A result lacks the gradient by a parameter."""


@dataclass(frozen=True)
class _ParameterStep:
    """Changes of results between opposite steps of a parameter, and noise."""

    along: Tensor
    change: Mapping[str, Tensor]
    noise: Mapping[str, Tensor]
    size: float

    def exceeds_noise(self, result: str) -> bool:
        return bool(self.change[result].abs() > self.noise[result])

    def slope(self, result: str) -> Tensor:
        return self.change[result] / (2 * self.size)


def compare_parameter_gradients(subject: Subject) -> Outcomes:
    """Compare each result's gradient by each parameter with differences."""
    function, leaves = make_float64_function(subject)
    names = [name for name in leaves if name.startswith(PARAMETER)]
    if not names:
        return {"": "the network has no parameters"}
    given = {name: x.detach().clone().requires_grad_() for name, x in leaves.items()}
    found = function(given)
    cotangents, trains = draw_normal_tensors(found, seed=7), _is_training_without_flags(subject)
    tracked = {result: y for result, y in found.items() if y.requires_grad}
    if not trains and not tracked:
        return {"": NOT_DIFFERENTIABLE}
    claims: dict[str, _Gradients] = {}  # before another call: a checkpoint runs once more in the backward
    for result, y in tracked.items():
        slopes = _gradients_unless_graph_freed((y * cotangents[result]).sum(), [given[name] for name in names])
        if slopes is None:
            return {"": _MissingGradient(_FREED) if trains else NOT_DIFFERENTIABLE}
        claims[result] = dict(zip(names, slopes, strict=True))
    further = _gradient_pairs_without_and_with_input_gradients(
        function, leaves, names, cotangents, claims
    ) | _compare_expanded_with_full_cotangents(function, leaves, [*claims])
    exact = torch.finfo(torch.float64).eps / torch.finfo(subject.dtype).eps  # of floors: the copy is of float64
    floors = {result: exact * floor for result, floor in subject.floors.items()}
    steps = {name: _measure_results_at_parameter_steps(function, leaves, name, cotangents, floors) for name in names}
    outcomes: dict[str, Outcome] = {part.removeprefix("out, "): pair for part, pair in further.items()}
    for result, c in cotangents.items():
        depends = [name for name in names if steps[name].exceeds_noise(result)]
        if depends and result in claims:
            outcomes[result] = _compare_parameter_slopes(
                lambda given, n=result, c=c: (function(given)[n].detach() * c).sum(),  # type: ignore[misc]
                leaves,
                {name: claims[result][name] for name in depends},
                {name: (steps[name].along, steps[name].slope(result)) for name in depends},
                result,
            )
        elif depends and trains:
            outcomes[result] = _judge_result_without_graph(subject, result, depends)
    return outcomes or {"": "no result depends on a parameter"}


def _gradient_pairs_without_and_with_input_gradients(
    function: NamedFunction,
    leaves: TensorsByName,
    names: list[str],
    cotangents: TensorsByName,
    gradients: Mapping[str, _Gradients],
) -> dict[str, Pair]:
    # The gradients by all parameters where no input needs one, and where each does, of results that differ so.
    given = {name: x.detach().clone().requires_grad_(name in names) for name, x in leaves.items()}
    found, outcomes = function(given), {}
    for result, own in gradients.items():
        y, slopes = found[result], None
        if y.requires_grad:
            slopes = _gradients_unless_graph_freed((y * cotangents[result]).sum(), [given[name] for name in names])
            if slopes is None:
                continue
        one = dict(zip(names, slopes or [None] * len(names), strict=True))
        outcomes[f"{result}, inputs without gradients"] = (
            _flatten_gradients(one, leaves),
            _flatten_gradients(own, leaves),
        )
    return _pairs_that_differ_beyond_rounding(outcomes)


def _compare_expanded_with_full_cotangents(
    function: NamedFunction, leaves: TensorsByName, results: list[str]
) -> dict[str, Pair]:
    # The gradients of a plain sum, whose cotangent is one number in the place of all, and of one with all of them.
    outcomes = {}
    for result in results:
        found = []
        for ones in (lambda y: y.new_ones(()).expand(y.shape), torch.ones_like):
            given = {name: x.detach().clone().requires_grad_() for name, x in leaves.items()}
            y = function(given)[result]
            slopes = torch.autograd.grad(y, list(given.values()), ones(y), allow_unused=True)
            found.append(_flatten_gradients(dict(zip(given, slopes, strict=True)), leaves))
        outcomes[f"{result}, of a sum"] = found[0], found[1]
    return _pairs_that_differ_beyond_rounding(outcomes)


def _flatten_gradients(slopes: _Gradients, leaves: TensorsByName) -> Tensor:
    parts = [torch.zeros_like(leaves[n]) if g is None else g.detach() for n, g in slopes.items()]
    return torch.cat([x.flatten() for x in parts])


def _pairs_that_differ_beyond_rounding(outcomes: Mapping[str, Pair]) -> dict[str, Pair]:
    # Those whose tensors differ by more than rounding.
    return {
        part: (one, other)
        for part, (one, other) in outcomes.items()
        if float((one - other).abs().max()) > 1e-9 * (1e-3 + float(other.abs().max()))
    }


def _is_training_without_flags(subject: Subject) -> bool:
    # Whether a network is in training, and no argument of its call may ask for a graph.
    return subject.module.training and not any(
        part in name for name in _forward_argument_names(subject.module) for part in _FLAGS
    )


def _forward_argument_names(module: nn.Module) -> list[str]:
    try:
        return list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        return []


def _measure_results_at_parameter_steps(
    function: NamedFunction, leaves: TensorsByName, name: str, cotangents: TensorsByName, floors: Mapping[str, float]
) -> _ParameterStep:
    x = leaves[name]
    size = STEP * max(1.0, float(x.abs().max())) if x.numel() else 1.0
    along = draw_normal_tensors({name: x}, seed=11)[name]
    up, down = (function({**leaves, name: x + sign * size * along}) for sign in (1.0, -1.0))
    change, noise = {}, {}
    for result, c in cotangents.items():
        one, other = up[result].detach(), down[result].detach()
        change[result] = ((one - other) * c).sum()
        noise[result] = NOISE * (one * c).abs().sum() + floors.get(result, 0.0) * c.abs().sum()
    return _ParameterStep(along, change, noise, size)


def _gradients_unless_graph_freed(scalar: Tensor, parameters: list[Tensor]) -> list[Tensor | None] | None:
    # The gradients by parameters; None where the network has given its graph back.
    try:
        return list(torch.autograd.grad(scalar, parameters, retain_graph=True, allow_unused=True))
    except RuntimeError as error:
        if not is_freed_graph(error):
            raise
        return None


def _judge_result_without_graph(subject: Subject, result: str, parameters: list[str]) -> Outcome:
    # A result that is trained on must have a graph; of a number that has no known role, nobody can tell.
    known = result in (subject.energy, subject.forces, subject.stress)
    if known or len(subject.outcomes) == 1 or subject.result_frame(result) is not STILL:
        return _MissingGradient(
            f"{result} has no graph in train(), and depends on {_list_parameter_names_as_text(parameters)}: {WAY_OUT}"
        )
    return MEANT.format(result=result)


def _compare_parameter_slopes(
    value: Callable[[TensorsByName], Tensor],
    leaves: TensorsByName,
    gradients: _Gradients,
    slopes: Mapping[str, tuple[Tensor, Tensor]],
    result: str,
) -> Outcome:
    # Slopes along parameters, each relative to itself; ``slopes`` are directions, and differences of long steps.
    if lacking := [name for name, g in gradients.items() if g is None or not bool(g.ne(0).any())]:
        return _MissingGradient(f"no gradient of {_list_parameter_names_as_text(lacking)}, which {result} depends on")
    got, expected = [], []
    for name, g in gradients.items():
        along, slope = slopes[name]
        claimed = (g * along).sum()  # type: ignore[operator]
        if not _is_near_slope(claimed, slope):  # a long step sees bends too
            slope = central_difference(lambda t, n=name, v=along: value({**leaves, n: leaves[n] + t * v}))  # type: ignore[misc]
        scale = torch.maximum(slope.abs(), claimed.abs())
        got.append(claimed / scale)
        expected.append(slope / scale)
    return torch.stack(got), torch.stack(expected)


def _is_near_slope(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs() <= SLOPE_LIMIT * torch.maximum(one.abs(), other.abs()))


def _list_parameter_names_as_text(leaf_names: list[str]) -> str:
    return ", ".join(name.removeprefix(PARAMETER) for name in leaf_names)
