r"""Sums of products over edges, before the last layer M of the net that makes the weights h M.

.. math:: \sum x \otimes_{hM} y = (\sum h \otimes x \otimes y) M
"""

# M multiplies once per node, not per edge.

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from tpgen.base.remember import remembered
from tpgen.kernels.rows import ELEMENTS
from tpgen.kernels.runtime.call import FormCall, product_call_text
from tpgen.kernels.runtime.description import describe
from tpgen.kernels.runtime.forms import forms
from tpgen.kernels.runtime.ops import kernel_product
from tpgen.kernels.runtime.targets import why_kernel_unsupported
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.plan import ELEMENT, ROW, Plan
from tpgen.planner.product import make_plan

# Multiply-adds of the last layer from which on a sum before it takes less time, and by how many times these must be
# fewer then, measured: the kernels take a node's edges at a time, and few of these fill no vectors.
WORTH_LATE = 10_000_000
_FEWER = 2.2
MOST_SUMS = 2**26  # numbers of sums at a time: fewer columns of h fill fewer vectors


@dataclass(frozen=True)
class LateWeights:
    """Plans to sum products with weights ``h M`` by node, before the factor ``M``."""

    plan: Plan
    product: Plan  # of x and y, path by path
    outer: Plan  # from columns of h to rows of this product: its weights of nodes are sums of outer products
    mixing: Plan  # from these sums to the result
    outputs: tuple[tuple[int, ...], ...]  # the paths of each slot of the result

    def is_sum_first_faster(self, edges: int | None, nodes: int | None, hidden_width: int) -> bool:
        """Whether to sum first is faster; True for unknown sizes."""
        if edges is None or nodes is None:
            return True
        now = edges * hidden_width * self.plan.weight_numel
        by_node = sum(prod(p.weight.shape) * p.out.ir.dim for p in self.plan.paths if p.weight is not None)
        late = hidden_width * (edges * self.product.irreps_out.dim + nodes * by_node)
        return now >= WORTH_LATE and _FEWER * late < now

    def sum_by_node(self, x: Tensor, y: Tensor, h: Tensor, matrix: Tensor, nodes: Tensor, count: Any) -> Tensor:
        """Sums ``(count, out)`` of products with weights ``h @ matrix`` by node, differentiable to any order.

        ``x (rows, in1)``, ``y (rows, in2)``, ``h (rows, hidden)``, ``matrix (hidden, numel)``, int64 ``nodes (rows,)``.
        """
        products = kernel_product(x, y, None, describe(self.product))
        width = self.outer.irreps_in.dim
        missing = -h.shape[1] % width
        parts = (
            pad(h, (0, missing)).split(width, 1),
            self._split_matrix_into_mixing_weights(pad(matrix, (0, 0, 0, missing)), width),
        )
        found = [self._sum_by_node_then_mix(products, *part, nodes, count) for part in zip(*parts, strict=True)]
        return reduce(torch.add, found)

    def _split_matrix_into_mixing_weights(self, last_layer_matrix: Tensor, hidden_width: int) -> list[Tensor]:
        slices = last_layer_matrix.split([prod(p.weight.shape) for p in self.plan.paths if p.weight is not None], 1)
        by_output = [torch.cat([slices[n] for n in paths], 1).split(hidden_width) for paths in self.outputs]
        return [torch.cat([x.flatten() for x in part]) for part in zip(*by_output, strict=True)]

    def _sum_by_node_then_mix(
        self, products: Tensor, h: Tensor, mixing_weights: Tensor, nodes: Tensor, count: Any
    ) -> Tensor:
        shape = h.new_empty(count, self.outer.weight_numel)  # nothing reads or writes its numbers
        call = FormCall((h, h.detach()[:, :0], shape, products), (nodes,), describe(self.outer), _OUTER, (ELEMENTS,))
        (sums,) = forms.compute(call)
        return kernel_product(sums, sums.detach()[:, :0], mixing_weights, describe(self.mixing))


_OUTER = product_call_text("w")


def is_uvw_with_row_weights(plan: Plan) -> bool:
    """Whether all paths are `uvw`, with weights per row."""
    ways = {(p.mode.name, p.weight is not None) for p in plan.paths}
    return ways == {("uvw", True)} and plan.operand("w").rows == ROW


def plan_sum_before_last_layer(plan: Plan, hidden_width: int, node_count: int | None) -> LateWeights | None:
    """Plan sums before a last layer of ``hidden_width`` inputs; None if impossible."""
    if not is_uvw_with_row_weights(plan):
        return None
    products = sum(p.in1.mul * p.in2.mul * p.out.ir.dim for p in plan.paths)
    parts = -(-hidden_width * products * (node_count or 0) // MOST_SUMS) or 1
    return _plan_sum_before_last_layer_of_width(plan, -(-hidden_width // min(parts, hidden_width)))


@remembered("products with late weights")
def _plan_sum_before_last_layer_of_width(plan: Plan, hidden_width: int) -> LateWeights | None:
    paths = sorted(range(len(plan.paths)), key=lambda n: plan.paths[n].out.index)
    outputs = [tuple(same) for _, same in groupby(paths, key=lambda n: plan.paths[n].out.index)]
    copies = [p.in1.mul * p.in2.mul for p in plan.paths]
    between = "+".join(f"{copies[n]}x{plan.paths[n].out.ir}" for n in paths)
    steps = [
        # squares, so they are coefficients, and nothing is normalised again
        (p.in1.index, p.in2.index, paths.index(n), "uvuv", False, p.coefficient**2)
        for n, p in enumerate(plan.paths)
    ]
    product = make_plan(
        plan.irreps_in1, plan.irreps_in2, between, steps, irrep_normalization="none", path_normalization="none"
    )
    ends = [(sum(copies[n] for n in same), plan.paths[same[0]].out) for same in outputs]
    rows = "+".join(f"{mul * out.ir.dim}x0e" for mul, out in ends)
    outer = make_linear_plan(f"{hidden_width}x0e", rows, shared_weights=ELEMENT, path_normalization="none")
    sums = "+".join(f"{hidden_width * mul}x{out.ir}" for mul, out in ends)
    pairs = [(n, out.index) for n, (_, out) in enumerate(ends)]
    mixing = make_linear_plan(sums, plan.irreps_out, pairs, path_normalization="none")
    if any(map(why_kernel_unsupported, (product, outer, mixing))):
        return None
    return LateWeights(plan, product, outer, mixing, tuple(outputs))
