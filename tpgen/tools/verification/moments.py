"""Law of normalisation: mean squares of components of outputs, for random signs as inputs."""

# var_out (sum_p w_p n_p) / (sum_p n_p) ("element"), var_out (sum_p w_p) / P ("path"),
# for n_p summed elements and weight w_p of each of P paths

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from e3nn.o3 import Irreps
from torch import Tensor

from tpgen.nn.linear import Linear
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.normalization import fan_in
from tpgen.planner.plan import Path, Plan

_GotAndExpectedMeanSquares = dict[str, tuple[Tensor, Tensor] | str]
ROWS, MOST, ENOUGH = 64, 200, 0.01  # rows of a draw, draws at most, and the relative standard error aimed at
MOMENT_LIMIT = 0.05  # what may be wrong with a mean of that error, five times over


def compare_mean_squares_of_product(product: TensorProduct) -> _GotAndExpectedMeanSquares:
    """Compare mean squares of a product's output segments with expected ones."""
    plan = product.plan
    if "none" in (plan.irrep_normalization, plan.path_normalization):
        return {"": "the product was asked not to be normalised"}
    generator = torch.Generator().manual_seed(3)
    norm = plan.irrep_normalization == "norm"
    ends = ((plan.irreps_in1, plan.in1_var), (plan.irreps_in2, plan.in2_var))
    scales = [_standard_deviation_of_each_entry(irreps, variances, norm) for irreps, variances in ends]
    weights = (plan.weight_numel,) if plan.shared_weights else (ROWS, plan.weight_numel)

    def call_product_on_random_signs() -> Tensor:
        like = product.output_mask
        x1, x2 = (scale * _random_signs(generator, ROWS, len(scale)) for scale in scales)
        w = _random_signs(generator, *weights)
        return product(*(x.to(like) for x in (x1, x2, w))).detach().to("cpu", torch.float64)

    by_output: dict[int, list[Path]] = {}
    for path in plan.paths:
        by_output.setdefault(path.out.index, []).append(path)
    expected = {i: _compute_expected_mean_square_or_reason(plan, paths) for i, paths in by_output.items()}
    dims = {i: plan.irreps_out[i].ir.dim if norm else 1 for i in expected}
    return _compare_mean_squares_of_segments(call_product_on_random_signs, expected, dims, plan.irreps_out)


def compare_mean_squares_of_linear_layer(layer: Linear) -> _GotAndExpectedMeanSquares:
    """Compare mean squares of a linear layer's output segments with 1."""
    plan, generator = layer.plan, torch.Generator().manual_seed(3)
    pair = () if plan.f_in is None else (plan.f_in, plan.f_out)
    elements = (layer.num_elements or ROWS) if plan.by_element else 0
    each = (elements,) if elements else () if plan.shared_weights else (ROWS,)
    weights, biases = (*each, *pair, plan.weight_numel), (*each, *pair[1:], plan.bias_numel)
    at = {"index": torch.randint(elements, (ROWS,), generator=generator)} if elements else {}

    def call_layer_on_random_signs() -> Tensor:
        like = layer.output_mask
        x = _random_signs(generator, ROWS, *pair[:1], plan.irreps_in.dim)
        out = layer(
            x.to(like),
            _random_signs(generator, *weights).to(like),
            like.new_zeros(biases),
            **{n: i.to(like.device) for n, i in at.items()},
        )
        return out.detach().to("cpu", torch.float64).reshape(-1, plan.irreps_out.dim)

    expected: dict[int, float | str] = dict.fromkeys(sorted({path.out.index for path in plan.paths}), 1.0)
    return _compare_mean_squares_of_segments(
        call_layer_on_random_signs, expected, dict.fromkeys(expected, 1), plan.irreps_out
    )


def _random_signs(generator: torch.Generator, *shape: int) -> Tensor:
    # a second moment depends on variances alone, and signs scatter it least
    return 2.0 * torch.randint(2, shape, generator=generator).double() - 1.0


def _standard_deviation_of_each_entry(
    irreps: Irreps, segment_variances: Sequence[float], divide_by_irrep_dim: bool
) -> Tensor:
    # of every entry; in both layouts entries of a segment are alike
    parts = [
        torch.full((mul * ir.dim,), (var / (ir.dim if divide_by_irrep_dim else 1)) ** 0.5, dtype=torch.float64)
        for (mul, ir), var in zip(irreps, segment_variances, strict=True)
    ]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def _compute_expected_mean_square_or_reason(plan: Plan, paths_to_segment: list[Path]) -> float | str:
    # a text says why there is no rule
    plain = [(path.in1.index, path.in2.index) for path in paths_to_segment if path.weight is None]
    if len(set(plain)) < len(plain):
        return "paths without weights add up"
    elements = [fan_in(path.mode.fan_in, dict(path.sizes)) for path in paths_to_segment]
    counts = elements if plan.path_normalization == "element" else [1] * len(paths_to_segment)
    variances = [plan.in1_var[path.in1.index] * plan.in2_var[path.in2.index] for path in paths_to_segment]
    if plan.path_normalization == "element":
        counts = [n * v for n, v in zip(counts, variances, strict=True)]
    mean = sum(p.factors.path_weight * n for p, n in zip(paths_to_segment, counts, strict=True)) / sum(counts)
    return plan.out_var[paths_to_segment[0].out.index] * mean


def _measure_segment_mean_squares_of_each_draw(
    draw_results: Callable[[], Tensor], irreps: Irreps, segment_indices: list[int]
) -> dict[int, list[float]]:
    # of each segment in each draw, of as many draws as the standard error takes
    found: dict[int, list[float]] = {i: [] for i in segment_indices}
    slices = irreps.slices()
    for number in range(MOST):
        squares = draw_results().square().mean(0)
        for i in segment_indices:
            found[i].append(float(squares[slices[i]].mean()))
        if number >= 9 and all(_relative_standard_error(values) < ENOUGH for values in found.values()):
            break
    return found


def _relative_standard_error(values: list[float]) -> float:
    x = torch.tensor(values, dtype=torch.float64)
    return float(x.std() / len(values) ** 0.5 / x.mean().clamp(min=1e-300))


def _compare_mean_squares_of_segments(
    draw_results: Callable[[], Tensor],
    expected_by_segment: dict[int, Any],
    factor_by_segment: dict[int, int],
    irreps: Irreps,
) -> _GotAndExpectedMeanSquares:
    outcomes: _GotAndExpectedMeanSquares = {}
    for i, values in _measure_segment_mean_squares_of_each_draw(
        draw_results, irreps, list(expected_by_segment)
    ).items():
        part = f"{i}: {irreps[i]}"
        mean = factor_by_segment[i] * sum(values) / len(values)
        if isinstance(expected_by_segment[i], str):
            outcomes[part] = expected_by_segment[i]
        elif expected_by_segment[i] > 0.0 and _relative_standard_error(values) > ENOUGH:
            outcomes[part] = f"{len(values)} draws leave an error of {_relative_standard_error(values):.0%}"
        else:
            outcomes[part] = torch.tensor([mean]), torch.tensor([expected_by_segment[i]])
    return outcomes or {"": "no path reaches any result"}
