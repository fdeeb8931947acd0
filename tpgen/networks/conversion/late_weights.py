r"""Sums of products over edges, before the last layer M of the net that makes the weights h M.

.. math:: \sum x \otimes_{hM} y = (\sum h \otimes x \otimes y) M
"""

# M multiplies once per node, not per edge.

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any

import torch
from torch import Tensor

from tpgen.base.remember import remembered
from tpgen.kernels.placement.nodes import FEWEST_SCALARS
from tpgen.kernels.rows import DESTINATIONS
from tpgen.kernels.runtime.call import FORWARD, FormCall
from tpgen.kernels.runtime.description import describe
from tpgen.kernels.runtime.forms import forms
from tpgen.kernels.runtime.ops import kernel_product
from tpgen.kernels.runtime.targets import why_kernel_unsupported
from tpgen.planner.plan import ROW, Plan
from tpgen.planner.product import make_plan

# Multiply-adds of the last layer from which on a sum before it takes less time, and by how many times these must be
# fewer then, measured: without gradients, and with.
WORTH_LATE = 10_000_000
_FEWER = 1.1, 1.5
_DTYPES = torch.float32, torch.float64  # of tensors on the CPU


@dataclass(frozen=True)
class LateWeights:
    """Plans to sum products by node before the factor ``M``."""

    plan: Plan
    product: Plan  # of x and y, path by path
    mixing: Plan  # of h and these products, with the weights M
    outputs: tuple[tuple[int, ...], ...]  # the paths of each slot of the result

    def is_sum_first_faster(
        self, edges: int | None, nodes: int | None, hidden_width: int, is_differentiated: bool
    ) -> bool:
        """Whether to sum first is faster; True for unknown sizes."""
        if edges is None or nodes is None:
            return True
        now = edges * hidden_width * self.plan.weight_numel
        by_node = sum(prod(p.weight.shape) * p.out.ir.dim for p in self.plan.paths if p.weight is not None)
        late = hidden_width * (edges * self.product.irreps_out.dim + nodes * by_node)
        return now >= WORTH_LATE and _FEWER[is_differentiated] * late < now

    def sum_by_node(self, x: Tensor, y: Tensor, h: Tensor, matrix: Tensor, nodes: Tensor, count: Any) -> Tensor:
        """Sums ``(count, out)`` of products with weights ``h @ matrix`` by node, differentiable to any order.

        ``x (rows, in1)``, ``y (rows, in2)``, ``h (rows, hidden)``, ``matrix (hidden, numel)``, int64 ``nodes (rows,)``.
        """
        products = kernel_product(x, y, None, describe(self.product))
        slices = matrix.split([prod(p.weight.shape) for p in self.plan.paths if p.weight is not None], 1)
        weights = torch.cat([torch.cat([slices[n] for n in paths], 1).flatten() for paths in self.outputs])
        call = FormCall((h, products, weights), (nodes,), describe(self.mixing), FORWARD, (DESTINATIONS,), count)
        return forms.compute(call)[0]


def can_sum_before_last_layer(h: Tensor) -> bool:
    """Whether a kernel takes such sums of ``h``."""
    return h.is_cpu and h.dtype in _DTYPES


def is_uvw_with_row_weights(plan: Plan) -> bool:
    """Whether all paths are `uvw`, with weights per row."""
    ways = {(p.mode.name, p.weight is not None) for p in plan.paths}
    return ways == {("uvw", True)} and plan.operand("w").rows == ROW


@remembered("products with late weights")
def plan_sum_before_last_layer(plan: Plan, hidden_width: int) -> LateWeights | None:
    """Plan sums before a last layer of ``hidden_width`` inputs; None if impossible."""
    if not is_uvw_with_row_weights(plan) or hidden_width < FEWEST_SCALARS:
        return None
    paths = sorted(range(len(plan.paths)), key=lambda n: plan.paths[n].out.index)
    outputs = [tuple(same) for _, same in groupby(paths, key=lambda n: plan.paths[n].out.index)]
    copies = [p.in1.mul * p.in2.mul for p in plan.paths]
    between = "+".join(f"{copies[n]}x{plan.paths[n].out.ir}" for n in paths)
    steps = [
        # squares, so they are coefficients, and nothing is normalised again
        (p.in1.index, p.in2.index, paths.index(n), "uvuv", False, p.coefficient**2)
        for n, p in enumerate(plan.paths)
    ]
    ends = [(sum(copies[n] for n in same), plan.paths[same[0]].out) for same in outputs]
    joined = "+".join(f"{mul}x{out.ir}" for mul, out in ends)
    mixes = [(0, n, out.index, "uvw", True, out.ir.dim) for n, (_, out) in enumerate(ends)]  # weights alone: factors 1
    product = _make_plan_as_written(plan.irreps_in1, plan.irreps_in2, between, steps)
    mixing = _make_plan_as_written(f"{hidden_width}x0e", joined, plan.irreps_out, mixes)
    if any(map(why_kernel_unsupported, (product, mixing))):
        return None
    return LateWeights(plan, product, mixing, tuple(outputs))


def _make_plan_as_written(irreps_in1: Any, irreps_in2: Any, irreps_out: Any, instructions: list[tuple]) -> Plan:
    return make_plan(
        irreps_in1, irreps_in2, irreps_out, instructions, irrep_normalization="none", path_normalization="none"
    )
