"""Convolutions over a random graph: operands, contenders, and the gate."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from tpgen.base.errors import TpgenError
from tpgen.form.form import Layout
from tpgen.form.reference import reference_product
from tpgen.nn.conv import TensorProductConv
from tpgen.planner.plan import Plan
from tpgen.tools.bench.tasks import Operands, Task, TimedProduct, error_bound, find_largest_error, make_operands


@dataclass(frozen=True)
class Graph:
    """Nodes with random edges between them, the same ones each time."""

    nodes: int
    edges: int

    @cached_property
    def ends(self) -> tuple[Tensor, Tensor]:
        """Source and destination of every edge, in no order."""
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.nodes} {self.edges}".encode()))
        src, dst = torch.randint(self.nodes, (2, self.edges), generator=generator)
        return src, dst


GRAPH = Graph(2_000, 40_000)
GATE_GRAPH = Graph(200, 1_000)  # small enough for the slow definition


def conv_operands(plan: Plan, graph: Graph, dtype: torch.dtype) -> Operands:
    """As operands of a product, but inputs and cotangent have a row for each node."""
    nodes = make_operands(plan, graph.nodes, dtype, "cpu")
    generator = torch.Generator().manual_seed(graph.edges)

    def draw(columns: int) -> Tensor:
        return torch.randn(graph.edges, columns, generator=generator, dtype=dtype)

    y = draw(plan.irreps_in2.dim)
    w = nodes.w if plan.shared_weights or not plan.weight_numel else draw(plan.weight_numel)
    return replace(nodes, x2=y, w=w, force_cotangent=y).map_tensors(lambda name, tensor: tensor)


def conv_product(plan: Plan, graph: Graph) -> TimedProduct:
    """tpgen's convolution."""
    conv = TensorProductConv.from_plan(plan, internal_weights=False)
    src, dst = graph.ends
    return lambda x1, x2, w: conv(x1, x2, w, src, dst, graph.nodes)


def gathered(product: TimedProduct, graph: Graph) -> TimedProduct:
    """The convolution that a product of rows makes: gather, product, `index_add`."""
    src, dst = graph.ends

    def conv(x1: Tensor, x2: Tensor, w: Tensor) -> Tensor:
        messages = product(x1[src], x2, w)
        return messages.new_zeros(graph.nodes, messages.shape[1]).index_add(0, dst, messages)

    return conv


def check_convolutions(plan: Plan, task: Task, makers: Mapping[str, Callable[[Graph], TimedProduct]]) -> None:
    """Compare convolutions on a small graph with gather, slow definition and `index_add` in float64.

    Raises `TpgenError` for the first that is off.
    """
    operands = conv_operands(plan, GATE_GRAPH, torch.float32)
    exact = operands.map_tensors(lambda name, tensor: tensor.to(torch.float64, copy=True))
    expected = task.run(gathered(lambda x1, x2, w: reference_product(plan, x1, x2, w), GATE_GRAPH), exact)
    for name, make in makers.items():
        require_right(plan, task, name, task.run(make(GATE_GRAPH), operands), expected)


def require_right(
    plan: Plan, task: Task, name: str, results: Sequence[Tensor], expected: Sequence[Tensor], layout: Layout = "mul_ir"
) -> None:
    """Raise a `TpgenError` where results are further off than their dtype allows."""
    error, where = find_largest_error(plan, task, layout, results, expected)
    allowed = error_bound(results[0].dtype)
    if not error <= allowed:
        raise TpgenError(f"{where} of {name} is off by {error:.1e}, allowed is {allowed:.0e}")
