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
    FunctionOfTensorsByName,
    central_difference,
    draw_normal_tensors,
    is_freed_graph_error,
    make_float64_function,
)
from tpgen.tools.verification.findings import ROUNDING, GotAndExpected, GotAndExpectedOrReason
from tpgen.tools.verification.laws import GotAndExpectedByPart
from tpgen.tools.verification.subject import INVARIANT, ROLES, ModuleUnderTest, TensorsByName

SLOPE_LIMIT = 1e-3  # of a slope along a parameter: differences of long steps are as near
STEP = 1e-3  # relative to its largest entry or to one
NOISE = 1e-13  # of a result: what depends less on a parameter may be rounding
_GradientsByParameter = dict[str, Tensor | None]  # gradients by parameters
_FLAGS = ("train", "graph", "grad")  # parts of names of arguments that may ask for a graph
WAY_OUT = "create_graph=self.training keeps one, and what is for inference alone is given in eval()"
_FREED = f"a call in train() frees the graph of its results: {WAY_OUT}"
MEANT = "{result} has no graph in train(), as numbers that are only looked at"


class _MissingGradient(Exception):
    """A result lacks the gradient by a parameter."""


@dataclass(frozen=True)
class _ParameterStep:
    """Differences of results between opposite steps of a parameter, and rounding noise."""

    along: Tensor
    change: Mapping[str, Tensor]
    noise: Mapping[str, Tensor]
    size: float

    def is_change_beyond_noise(self, result_name: str) -> bool:
        return bool(self.change[result_name].abs() > self.noise[result_name])

    def slope_of_result(self, result_name: str) -> Tensor:
        return self.change[result_name] / (2 * self.size)


def compare_parameter_gradients(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare each result's gradient by each parameter with differences."""
    function, leaves = make_float64_function(subject)
    names = [name for name in leaves if name.startswith(PARAMETER)]
    if not names:
        return {"": "the network has no parameters"}
    given = {name: x.detach().clone().requires_grad_() for name, x in leaves.items()}
    found = function(given)
    cotangents, trains = draw_normal_tensors(found, seed=7), _is_training_without_gradient_flag_arguments(subject)
    tracked = {result: y for result, y in found.items() if y.requires_grad}
    if not trains and not tracked:
        return {"": NOT_DIFFERENTIABLE}
    claims: dict[str, _GradientsByParameter] = {}  # before another call: a checkpoint runs once more in the backward
    for result, y in tracked.items():
        slopes = _compute_gradients_or_none_if_graph_freed(
            (y * cotangents[result]).sum(), [given[name] for name in names]
        )
        if slopes is None:
            return {"": _MissingGradient(_FREED) if trains else NOT_DIFFERENTIABLE}
        may_be_number = result in (subject.forces, subject.stress, subject.virial) and not trains
        if not may_be_number or any(g is not None for g in slopes):
            claims[result] = dict(zip(names, slopes, strict=True))
    further = _compare_parameter_gradients_without_input_gradients(
        function, leaves, names, cotangents, claims
    ) | _compare_gradients_by_expanded_and_full_cotangents(function, leaves, [*claims])
    exact = torch.finfo(torch.float64).eps / torch.finfo(subject.dtype).eps  # of floors: the copy is of float64
    floors = {result: exact * floor for result, floor in subject.floors.items()}
    steps = {
        name: _measure_result_changes_by_parameter_step(function, leaves, name, cotangents, floors) for name in names
    }
    outcomes: dict[str, GotAndExpectedOrReason] = {part.removeprefix("out, "): pair for part, pair in further.items()}
    for result, c in cotangents.items():
        depends = [name for name in names if steps[name].is_change_beyond_noise(result)]
        if depends and result in claims:
            outcomes[result] = _compare_parameter_gradients_with_slopes(
                lambda given, n=result, c=c: (function(given)[n].detach() * c).sum(),  # type: ignore[misc]
                leaves,
                {name: claims[result][name] for name in depends},
                {name: (steps[name].along, steps[name].slope_of_result(result)) for name in depends},
                result,
            )
        elif depends and trains:
            outcomes[result] = _error_or_remark_for_result_without_autograd_graph(subject, result, depends)
    return outcomes or {"": "no result depends on a parameter"}


def _compare_parameter_gradients_without_input_gradients(
    function: FunctionOfTensorsByName,
    leaves: TensorsByName,
    parameter_names: list[str],
    cotangents: TensorsByName,
    gradients_with_input_gradients: Mapping[str, _GradientsByParameter],
) -> dict[str, GotAndExpected]:
    # The gradients by all parameters where no input needs one, and where each does, of results that differ so.
    given = {name: x.detach().clone().requires_grad_(name in parameter_names) for name, x in leaves.items()}
    found, outcomes = function(given), {}
    for result, own in gradients_with_input_gradients.items():
        y, slopes = found[result], None
        if y.requires_grad:
            slopes = _compute_gradients_or_none_if_graph_freed(
                (y * cotangents[result]).sum(), [given[name] for name in parameter_names]
            )
            if slopes is None:
                continue
        one = dict(zip(parameter_names, slopes or [None] * len(parameter_names), strict=True))
        outcomes[f"{result}, inputs without gradients"] = (
            _flatten_gradients(one, leaves),
            _flatten_gradients(own, leaves),
        )
    return _select_pairs_that_differ_beyond_rounding(outcomes)


def _compare_gradients_by_expanded_and_full_cotangents(
    function: FunctionOfTensorsByName, leaves: TensorsByName, result_names: list[str]
) -> dict[str, GotAndExpected]:
    # The gradients of a plain sum, whose cotangent is one number in the place of all, and of one with all of them.
    outcomes = {}
    for result in result_names:
        found = []
        for ones in (lambda y: y.new_ones(()).expand(y.shape), torch.ones_like):
            given = {name: x.detach().clone().requires_grad_() for name, x in leaves.items()}
            y = function(given)[result]
            slopes = torch.autograd.grad(y, list(given.values()), ones(y), allow_unused=True)
            found.append(_flatten_gradients(dict(zip(given, slopes, strict=True)), leaves))
        outcomes[f"{result}, of a sum"] = found[0], found[1]
    return _select_pairs_that_differ_beyond_rounding(outcomes)


def _flatten_gradients(gradients: _GradientsByParameter, leaves: TensorsByName) -> Tensor:
    parts = [torch.zeros_like(leaves[n]) if g is None else g.detach() for n, g in gradients.items()]
    return torch.cat([x.flatten() for x in parts])


def _select_pairs_that_differ_beyond_rounding(pairs: Mapping[str, GotAndExpected]) -> dict[str, GotAndExpected]:
    # Those whose tensors differ by more than rounding.
    return {
        part: (one, other)
        for part, (one, other) in pairs.items()
        if float((one - other).abs().max()) > 1e-9 * (1e-3 + float(other.abs().max()))
    }


def _is_training_without_gradient_flag_arguments(subject: ModuleUnderTest) -> bool:
    # Whether a network is in training, and no argument of its call may ask for a graph.
    return subject.module.training and not any(
        part in name for name in _list_all_forward_argument_names(subject.module) for part in _FLAGS
    )


def _list_all_forward_argument_names(module: nn.Module) -> list[str]:
    try:
        return list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        return []


def _measure_result_changes_by_parameter_step(
    function: FunctionOfTensorsByName,
    leaves: TensorsByName,
    parameter_name: str,
    cotangents: TensorsByName,
    rounding_errors: Mapping[str, float],
) -> _ParameterStep:
    x = leaves[parameter_name]
    size = STEP * max(1.0, float(x.abs().max())) if x.numel() else 1.0
    along = draw_normal_tensors({parameter_name: x}, seed=11)[parameter_name]
    up, down = (function({**leaves, parameter_name: x + sign * size * along}) for sign in (1.0, -1.0))
    change, noise = {}, {}
    for result, c in cotangents.items():
        one, other = up[result].detach(), down[result].detach()
        change[result] = ((one - other) * c).sum()
        floor = max(ROUNDING, rounding_errors.get(result, 0.0))
        noise[result] = NOISE * (one * c).abs().sum() + floor * c.abs().sum()
    return _ParameterStep(along, change, noise, size)


def _compute_gradients_or_none_if_graph_freed(scalar: Tensor, parameters: list[Tensor]) -> list[Tensor | None] | None:
    # The gradients by parameters; None where the network has given its graph back.
    try:
        return list(torch.autograd.grad(scalar, parameters, retain_graph=True, allow_unused=True))
    except RuntimeError as error:
        if not is_freed_graph_error(error):
            raise
        return None


def _error_or_remark_for_result_without_autograd_graph(
    subject: ModuleUnderTest, result_name: str, parameter_names: list[str]
) -> GotAndExpectedOrReason:
    # A result that is trained on must have a graph; of a number that has no known role, nobody can tell.
    known = result_name in (getattr(subject, role) for role in ROLES)
    if known or len(subject.outcomes) == 1 or subject.result_rule(result_name) is not INVARIANT:
        names = _join_parameter_names_as_text(parameter_names)
        return _MissingGradient(f"{result_name} has no graph in train(), and depends on {names}: {WAY_OUT}")
    return MEANT.format(result=result_name)


def _compare_parameter_gradients_with_slopes(
    scalar_function: Callable[[TensorsByName], Tensor],
    leaves: TensorsByName,
    gradients: _GradientsByParameter,
    directions_and_slopes: Mapping[str, tuple[Tensor, Tensor]],
    result_name: str,
) -> GotAndExpectedOrReason:
    # Slopes along parameters, each relative to itself; ``slopes`` are directions, and differences of long steps.
    if lacking := [name for name, g in gradients.items() if g is None or not bool(g.ne(0).any())]:
        return _MissingGradient(
            f"no gradient of {_join_parameter_names_as_text(lacking)}, which {result_name} depends on"
        )
    got, expected = [], []
    for name, g in gradients.items():
        along, slope = directions_and_slopes[name]
        claimed = (g * along).sum()  # type: ignore[operator]
        if not _is_near_slope(claimed, slope):  # a long step sees bends too
            slope = central_difference(lambda t, n=name, v=along: scalar_function({**leaves, n: leaves[n] + t * v}))  # type: ignore[misc]
        scale = torch.maximum(slope.abs(), claimed.abs())
        got.append(claimed / scale)
        expected.append(slope / scale)
    return torch.stack(got), torch.stack(expected)


def _is_near_slope(first: Tensor, second: Tensor) -> bool:
    return bool((first - second).abs() <= SLOPE_LIMIT * torch.maximum(first.abs(), second.abs()))


def _join_parameter_names_as_text(leaf_names: list[str]) -> str:
    return ", ".join(name.removeprefix(PARAMETER) for name in leaf_names)
