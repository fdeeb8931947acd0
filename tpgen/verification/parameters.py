"""The law of parameters: what a result depends on has a gradient, for energies as for forces."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from tpgen.verification.derivatives import NOT_DIFFERENTIABLE, PARAMETER, draws, tracked_results, with_parameters
from tpgen.verification.laws import Outcomes
from tpgen.verification.subject import Named, Subject

STEP = 1e-3  # of a parameter, relative to its largest entry or to one
NOISE = 1e-13  # of a result: what depends less on a parameter may be rounding


def tracked(subject: Subject) -> Outcomes:
    """Compare the parameters that move a result with those that it has gradients of, for each result.

    A parameter moves a result where steps in opposite directions make a difference, so that one which has no slope, as
    the side of a ReLU that is off or a square at zero, need have no gradient.
    """
    function, leaves = with_parameters(subject)
    names = [name for name in leaves if name.startswith(PARAMETER)]
    if not names:
        return {"": "the network has no parameters"}
    cotangents = draws(function(leaves), seed=7)
    results = tracked_results(function, leaves)
    if not results:
        return {"": NOT_DIFFERENTIABLE}
    found: dict = {}
    moved = {name: _moves(function, leaves, name, cotangents, subject.floors) for name in names}
    for result in results:
        gradients = _gradients(function, leaves, names, result, cotangents[result])
        depends = [name for name in names if moved[name][result]]
        lacking = [name.removeprefix(PARAMETER) for name in depends if not gradients[name]]
        if lacking:
            found[result] = MissingGradient(f"no gradient of {', '.join(lacking)}, which {result} depends on")
        elif depends:
            found[result] = (torch.ones(len(depends)), torch.ones(len(depends)))
    return found or {"": "no result depends on a parameter"}


class MissingGradient(Exception):
    """A parameter without a gradient where it should have one."""


def _moves(
    function: Callable[[Named], Named], leaves: Named, name: str, cotangents: Named, floors: Mapping[str, float]
) -> dict[str, bool]:
    """Whether a parameter moves each result by more than rounding, along a direction drawn at random."""
    x = leaves[name]
    step = STEP * max(1.0, float(x.abs().max())) * draws({name: x}, seed=11)[name] if x.numel() else x
    up, down = (
        {result: y.detach() for result, y in function({**leaves, name: x + sign * step}).items()}
        for sign in (1.0, -1.0)
    )
    return {
        result: bool(
            ((up[result] - down[result]) * c).sum().abs()
            > NOISE * (up[result] * c).abs().sum() + floors.get(result, 0.0) * c.abs().sum()
        )
        for result, c in cotangents.items()
    }


def _gradients(
    function: Callable[[Named], Named], leaves: Named, names: list[str], result: str, cotangent: Tensor
) -> dict[str, bool]:
    """Whether a result has a gradient that is not zero, for each parameter."""
    given = {name: x.detach().clone().requires_grad_() for name, x in leaves.items()}
    scalar = (function(given)[result] * cotangent).sum()
    found = torch.autograd.grad(scalar, [given[name] for name in names], allow_unused=True)
    return {name: g is not None and bool(g.ne(0).any()) for name, g in zip(names, found, strict=True)}
