r"""Laws of derivatives.

For a cotangent c and directions v

.. math:: s_0 = \sum c\, f(x), \qquad g_k = \nabla s_{k-1}, \qquad s_k = \sum v_k\, g_k
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tpgen.base._torch import replaced_attribute
from tpgen.tools.verification.findings import GotAndExpected, GotAndExpectedOrReason, GotAndExpectedWithRemark
from tpgen.tools.verification.laws import GotAndExpectedByPart
from tpgen.tools.verification.subject import INVARIANT, ModuleUnderTest, TensorsByName

FunctionOfTensorsByName = Callable[[TensorsByName], TensorsByName]
PARAMETER = "parameter "  # before the names of parameters among operands
STEPS, DIRECTIONS = (5e-5, 5e-6, 5e-7), 3  # the shorter ones where a function bends within the first
DERIVATIVE_LIMIT = 1e-6  # of derivatives that are compared with differences in float64
ASIDE, AWAY = 2, 3e-3  # operands that are moved a little, and how far relative to the largest entry
KINK = "on a kink: it holds where points are moved a little, and not where derivatives jump, as at a cutoff"
OF_TORCH = "torch's own higher derivatives of layer, batch or weight norms are wrong: with their formula the law holds"
FREED = "the network frees its graph: give it in the mode, and with the arguments, of a training step"
DETACHED = "the network detaches {name}, by its own choice, and its energy has no gradient by the caller's"
NOT_DIFFERENTIABLE = "nothing of the results can be differentiated"


@contextmanager
def replace_norms_by_formulas() -> Iterator[None]:
    """Replace torch's layer, weight and (in training) batch norms by formulas."""

    def weight_norm_by_formula(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
        return v * (g / torch.norm_except_dim(v, 2, dim))

    def layer_norm_by_formula(x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
        return _normalize_over_axes(x, tuple(range(-len(shape), 0)), (), weight, bias, eps)

    def wrap_torch_batch_norm(torch_batch_norm: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def batch_norm_by_formula(
            x: Tensor, mean: Any, var: Any, weight: Any = None, bias: Any = None, training: bool = False,
            momentum: float = 0.1, eps: float = 1e-5,
        ) -> Tensor:  # fmt: skip
            if not training:
                return torch_batch_norm(x, mean, var, weight, bias, training, momentum, eps)
            axes = (0, *range(2, x.dim()))
            return _normalize_over_axes(x, axes, (1,) * (x.dim() - 2), weight, bias, eps)

        return batch_norm_by_formula

    functions = nn.functional
    with (
        replaced_attribute(functions, "layer_norm", lambda own: layer_norm_by_formula),
        replaced_attribute(functions, "batch_norm", wrap_torch_batch_norm),
        replaced_attribute(torch, "_weight_norm", lambda own: weight_norm_by_formula),
        replaced_attribute(
            sys.modules["torch.nn.utils.weight_norm"], "_weight_norm", lambda own: weight_norm_by_formula
        ),
    ):
        yield


def _normalize_over_axes(
    x: Tensor,
    axes: tuple[int, ...],
    affine_trailing_shape: tuple[int, ...],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    centred = x - x.mean(axes, keepdim=True)
    found = centred * (centred.square().mean(axes, keepdim=True) + eps).rsqrt()
    found = found if weight is None else found * weight.reshape(*weight.shape, *affine_trailing_shape)
    return found if bias is None else found + bias.reshape(*bias.shape, *affine_trailing_shape)


def is_freed_graph_error(error: Exception) -> bool:
    """Whether a backward failed at a freed graph."""
    return isinstance(error, RuntimeError) and "a second time" in str(error)


def compare_derivative(order: int, subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare gradients of an order with the slow reference, else with differences."""
    return (
        _compare_gradients_with_reference(order, subject)
        if subject.reference
        else _compare_gradients_with_finite_differences(order, subject)
    )


def _compare_gradients_with_reference(derivative_order: int, subject: ModuleUnderTest) -> GotAndExpectedByPart:
    assert subject.reference is not None
    cotangents = draw_normal_tensors(subject.reference(subject.given), seed=7)
    leaves = subject.given | {f"cotangent {name}": c for name, c in cotangents.items()}
    got, expected = (
        compute_gradients_of_order(
            derivative_order, partial(_sum_results_times_cotangents, function), leaves, cotangents
        )
        for function in (subject, subject.reference)
    )
    names = [name for name in expected if derivative_order > 1 or not name.startswith("cotangent")]
    return {"cotangent" if name == "cotangent out" else name: (got[name], expected[name]) for name in names}


def _sum_results_times_cotangents(
    function: FunctionOfTensorsByName, leaves: TensorsByName, cotangents: TensorsByName
) -> Tensor:
    found = function({name: x for name, x in leaves.items() if not name.startswith("cotangent ")})
    return sum_weighted_entries(found, {name: leaves[f"cotangent {name}"] for name in cotangents})


def compute_gradients_of_order(
    order: int,
    scalar_function: Callable[[TensorsByName, TensorsByName], Tensor],
    operands: TensorsByName,
    cotangents: TensorsByName,
) -> TensorsByName:
    """``order``-th gradient by every operand; random directions contract lower orders."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in operands.items()}
    found = scalar_function(leaves, cotangents)
    for level in range(1, order + 1):  # random directions contract gradients of lower orders
        first = _compute_gradient_by_each_leaf(found, leaves, create_graph=level < order)
        found = sum_weighted_entries(first, draw_normal_tensors(operands, seed=level))
    return first


def _compute_gradient_by_each_leaf(
    scalar: Tensor, leaves: TensorsByName, create_graph: bool = False, retain_graph: bool | None = None
) -> TensorsByName:
    if not scalar.requires_grad:
        return {name: torch.zeros_like(x) for name, x in leaves.items()}
    found = torch.autograd.grad(scalar, list(leaves.values()), None, retain_graph, create_graph, materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def sum_weighted_entries(tensors: TensorsByName, weights: TensorsByName) -> Tensor:
    """Sum all entries of all tensors, times weights."""
    terms = [(g * weights[name]).sum() for name, g in tensors.items()]
    return torch.stack(terms).sum() if terms else torch.zeros((), dtype=torch.float64)


def draw_normal_tensors(like: TensorsByName, seed: int) -> TensorsByName:
    """Draw normal float64 tensors of given shapes by seed."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(x.shape, generator=generator, dtype=torch.float64) for name, x in like.items()}


def _compare_gradients_with_finite_differences(derivative_order: int, subject: ModuleUnderTest) -> GotAndExpectedByPart:
    exact, leaves = make_float64_function(subject)
    function = keep_differentiable_results(subject, exact, leaves)
    if function is None:
        return {"": NOT_DIFFERENTIABLE}
    cotangents = draw_normal_tensors(function(leaves), seed=7)

    def sum_weighted_results(leaves: TensorsByName, weights: TensorsByName) -> Tensor:
        return sum_weighted_entries(function(leaves), weights)

    def contract_gradient_of_lower_order(operands: TensorsByName) -> Tensor:
        if derivative_order == 1:
            return sum_weighted_results(operands, cotangents).detach()
        found = compute_gradients_of_order(derivative_order - 1, sum_weighted_results, operands, cotangents)
        return sum_weighted_entries(found, draw_normal_tensors(operands, seed=derivative_order - 1)).detach()

    def compare_gradient_with_best_differences(leaves_at_point: TensorsByName, leaf_names: list[str]) -> GotAndExpected:
        gradient, found = (
            compute_gradients_of_order(derivative_order, sum_weighted_results, leaves_at_point, cotangents),
            list[GotAndExpected](),
        )
        for step in STEPS:
            found.append(
                _compare_directional_derivatives_with_differences(
                    gradient, contract_gradient_of_lower_order, leaves_at_point, leaf_names, step
                )
            )
            if not _is_beyond_derivative_limit(found[-1]):
                break
        return min(found, key=_largest_difference)

    detached = _find_inputs_detached_from_energy(subject, function, leaves)
    found: dict[str, GotAndExpectedOrReason] = {}
    for part, names in _group_leaf_names_into_inputs_and_parameters(
        {name: x for name, x in leaves.items() if name not in detached}
    ).items():
        pair = compare_gradient_with_best_differences(leaves, names)
        kink = _is_beyond_derivative_limit(pair) and not any(
            _is_beyond_derivative_limit(compare_gradient_with_best_differences(near, names))
            for near in _iterate_leaves_with_perturbed_inputs(subject, leaves)
        )
        found[part] = KINK if kink else pair
    return found | {
        name: _compare_forces_with_differences_for_detached_input(derivative_order, subject, exact, leaves, name)
        for name in detached
    }


def _find_inputs_detached_from_energy(
    subject: ModuleUnderTest, results_function: FunctionOfTensorsByName, leaves: TensorsByName
) -> list[str]:
    # no fault: the network takes forces or stress by tensors of its own, not by its caller's
    slopes = {subject.points: subject.forces}
    names = [
        n
        for n in _group_leaf_names_into_inputs_and_parameters(leaves).get("inputs", [])
        if subject.turns.get(n, INVARIANT) is not INVARIANT
    ]
    names = [name for name in names if slopes.get(name, subject.stress or subject.virial or subject.forces) is not None]
    given = {name: x.detach().clone().requires_grad_() for name, x in leaves.items()}
    energy = results_function(given).get(subject.energy or "")
    if energy is None or not names:
        return []
    differentiate_result_along = torch.autograd.grad(energy.sum(), [given[name] for name in names], allow_unused=True)
    without = [name for name, g in zip(names, differentiate_result_along, strict=True) if g is None]
    return [
        name for name in without if _is_result_dependent_on_input(results_function, leaves, name, subject.energy or "")
    ]


def _is_result_dependent_on_input(
    results_function: FunctionOfTensorsByName, leaves: TensorsByName, input_name: str, result_name: str
) -> bool:
    along = draw_normal_tensors({input_name: leaves[input_name]}, seed=100)[input_name]
    moved = results_function({**leaves, input_name: leaves[input_name] + STEPS[0] * along})[result_name]
    return not torch.equal(moved, results_function(leaves)[result_name])


def _compare_forces_with_differences_for_detached_input(
    derivative_order: int,
    subject: ModuleUnderTest,
    results_function: FunctionOfTensorsByName,
    leaves: TensorsByName,
    input_name: str,
) -> GotAndExpectedOrReason:
    # forces with differences of the energy; in second order differences of forces, which are symmetric
    why = DETACHED.format(name=input_name)
    if input_name != subject.points or derivative_order > 2:
        reason = "its law compares the stress" if input_name != subject.points else "there are no such derivatives"
        return f"{why}: {reason}"

    directions = [draw_normal_tensors({input_name: leaves[input_name]}, seed=100 + seed) for seed in range(DIRECTIONS)]

    def differentiate_result_along(result_name: str, direction: TensorsByName) -> Tensor:
        return central_difference(
            lambda t: results_function(_step_leaves_along(leaves, direction, t))[result_name].detach()
        )

    if derivative_order == 1:
        forces = {input_name: -results_function(leaves)[subject.forces or ""].detach()}
        expected = [differentiate_result_along(subject.energy or "", v).sum() for v in directions]
        pair = torch.stack([sum_weighted_entries(forces, v) for v in directions]), torch.stack(expected)
        return GotAndExpectedWithRemark(pair, f"{why}: compared are its forces, and differences of its energy")
    slopes = [differentiate_result_along(subject.forces or "", v) for v in directions]
    products = torch.stack([torch.stack([(y * v[input_name]).sum() for v in directions]) for y in slopes])
    return GotAndExpectedWithRemark(
        (products, products.T), f"{why}: compared are differences of its forces, which are symmetric"
    )


def _is_beyond_derivative_limit(pair: GotAndExpected) -> bool:
    return not _largest_difference(pair) <= DERIVATIVE_LIMIT * float(pair[1].abs().max())


def _largest_difference(pair: GotAndExpected) -> float:
    found = float((pair[0] - pair[1]).abs().max())
    return found if found == found else float("inf")


def _iterate_leaves_with_perturbed_inputs(subject: ModuleUnderTest, leaves: TensorsByName) -> Iterator[TensorsByName]:
    # moves turning inputs, as points and cells, or else all that are not parameters
    inputs = _group_leaf_names_into_inputs_and_parameters(leaves).get("inputs", [])
    moved = [name for name in inputs if subject.turns.get(name, INVARIANT) is not INVARIANT] or inputs
    for seed in range(ASIDE):
        along = draw_normal_tensors({name: leaves[name] for name in moved}, seed=500 + seed)
        yield {n: x + AWAY * x.abs().max() * along[n] if n in moved and x.numel() else x for n, x in leaves.items()}


def _compare_directional_derivatives_with_differences(
    gradient: TensorsByName,
    scalar_function: Callable[[TensorsByName], Tensor],
    leaves: TensorsByName,
    leaf_names: list[str],
    step: float,
) -> GotAndExpected:
    got, expected = [], []
    for seed in range(DIRECTIONS):
        along = draw_normal_tensors({name: leaves[name] for name in leaf_names}, seed=100 + seed)
        got.append(sum_weighted_entries({name: gradient[name] for name in leaf_names}, along))
        expected.append(
            central_difference(lambda t, v=along: scalar_function(_step_leaves_along(leaves, v, t)), step)  # type: ignore[misc]
        )
    return torch.stack(got), torch.stack(expected)


def _step_leaves_along(leaves: TensorsByName, along: TensorsByName, step: float) -> TensorsByName:
    return leaves | {name: leaves[name] + step * v for name, v in along.items()}


def central_difference(function: Callable[[float], Tensor], step: float = STEPS[0]) -> Tensor:
    """Differentiate a function at zero by a central difference."""
    at = [function(n * step) for n in (-2, -1, 1, 2)]
    return (8 * (at[2] - at[1]) - (at[3] - at[0])) / (12 * step)


def _group_leaf_names_into_inputs_and_parameters(leaves: TensorsByName) -> dict[str, list[str]]:
    parameters = [name for name in leaves if name.startswith(PARAMETER)]
    inputs = [name for name in leaves if not name.startswith(PARAMETER)]
    return {part: names for part, names in (("inputs", inputs), ("parameters", parameters)) if names}


def make_float64_function(subject: ModuleUnderTest) -> tuple[FunctionOfTensorsByName, TensorsByName]:
    """Function from operands and parameters to a float64 copy's results, and these leaves."""
    exact = subject.with_float64_copy()
    parameters = {name: p.detach() for name, p in exact.module.named_parameters() if p.requires_grad}
    places = _find_owner_modules_and_attributes_of_parameters(exact.module)

    def compute_results_in_float64(leaves: TensorsByName) -> TensorsByName:
        for name, p in parameters.items():
            for owner, key in places[name]:
                owner._parameters[key] = leaves[PARAMETER + name].to(p.device)  # type: ignore[assignment]
        return exact({name: x for name, x in leaves.items() if not name.startswith(PARAMETER)})

    given = exact.given | {PARAMETER + name: p.to("cpu", torch.float64) for name, p in parameters.items()}
    return compute_results_in_float64, given


def _find_owner_modules_and_attributes_of_parameters(module: nn.Module) -> dict[str, list[tuple[nn.Module, str]]]:
    # parameters stay replaced after a call, unlike in `functional_call`: a checkpoint runs again in the backward
    names = {id(p): name for name, p in module.named_parameters()}
    found: dict[str, list[tuple[nn.Module, str]]] = {name: [] for name in names.values()}
    for owner in module.modules():
        for key, p in owner._parameters.items():
            if p is not None:
                found[names[id(p)]].append((owner, key))
    return found


def _list_results_with_gradient(
    subject: ModuleUnderTest, function: FunctionOfTensorsByName, leaves: TensorsByName
) -> list[str]:
    tracked = {name: x.detach().clone().requires_grad_() for name, x in leaves.items()}
    found = {name: y for name, y in function(tracked).items() if y.requires_grad}
    # in evaluation forces and stress may be numbers, also where a stress is divided by the volume of a tracked cell
    slopes = (subject.forces, subject.stress, subject.virial)
    sources = [x for name, x in tracked.items() if name == subject.points or name.startswith(PARAMETER)]
    free = [
        name
        for name, y in found.items()
        if name in slopes and not subject.module.training and sources and not _depends_on_any(y, sources)
    ]
    return [name for name in found if name not in free]


def _depends_on_any(result: Tensor, sources: Sequence[Tensor]) -> bool:
    found = torch.autograd.grad(result.sum(), sources, retain_graph=True, allow_unused=True)
    return any(g is not None for g in found)


def keep_differentiable_results(
    subject: ModuleUnderTest, function: FunctionOfTensorsByName, leaves: TensorsByName
) -> FunctionOfTensorsByName | None:
    """Wrap a function to return differentiable results alone; None without any."""
    kept = _list_results_with_gradient(subject, function, leaves)
    if not kept:
        return None
    return lambda given: {name: y for name, y in function(given).items() if name in kept}


def compare_hessian_symmetry(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare u·Hv with v·Hu for the results' Hessian H."""
    function: FunctionOfTensorsByName | None = subject
    leaves = subject.given
    if subject.reference is None:
        exact, leaves = make_float64_function(subject)
        function = keep_differentiable_results(subject, exact, leaves)
    if function is None:
        return {"": NOT_DIFFERENTIABLE}
    return {"": _compare_hessian_products_in_both_orders(function, leaves)}


def _compare_hessian_products_in_both_orders(
    results_function: FunctionOfTensorsByName, operands: TensorsByName
) -> GotAndExpected:
    leaves = {name: x.detach().clone().requires_grad_() for name, x in operands.items()}
    found = results_function(leaves)
    first = _compute_gradient_by_each_leaf(
        sum_weighted_entries(found, draw_normal_tensors(found, seed=7)), leaves, create_graph=True
    )
    directions = [draw_normal_tensors(operands, seed=200 + n) for n in range(DIRECTIONS)]
    products = [
        _compute_gradient_by_each_leaf(sum_weighted_entries(first, v), leaves, retain_graph=True) for v in directions
    ]
    got, expected = [], []
    for a in range(DIRECTIONS):
        for b in range(a):
            got.append(sum_weighted_entries(products[a], directions[b]))
            expected.append(sum_weighted_entries(products[b], directions[a]))
    return torch.stack(got), torch.stack(expected)
