"""Convolutions in which two edges share a row of weights, beside the same with a row for each edge."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.machine import needs_compiler
from tpgen import TensorProductConv
from tpgen.errors import InputError
from tpgen.planner.presets import channelwise

NODES = 9
PLANS = {
    "mace": ("16x0e", "0e+1o+2e", "16x0e+16x1o+16x2e"),
    "odd": ("5x0e+3x1o", "0e+1o", "5x0e+3x1o"),
    "wide": ("128x0e", "0e+1o+2e+3o", "128x0e+128x1o+128x2e+128x3o"),
    "many paths": ("8x0e+8x1o+8x2e+8x3o", "0e+1o+2e+3o", "8x0e+8x1o+8x2e+8x3o"),
    "mixed": ("6x0e+2x1o", "0e+1o", "6x0e+2x1o"),
}


def conv_of(name: str) -> TensorProductConv:
    return TensorProductConv.from_plan(channelwise(*PLANS[name]), strategy="kernel").double()


def operands(conv: TensorProductConv, rows: int, edges: int, nodes: int = NODES) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    sizes = ((nodes, conv._in1_dim), (edges, conv._in2_dim), (rows, conv.weight_numel))
    given = [torch.randn(size, generator=generator, dtype=torch.float64, requires_grad=True) for size in sizes]
    return given, [torch.randint(nodes, (edges,), generator=generator) for _ in range(2)]


def per_edge(conv: TensorProductConv, x: Tensor, y: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return conv(x, y, torch.cat([w, w[: len(y) - len(w)]]), src, dst)


def derivatives(made: Tensor, given: list[Tensor]) -> list[Tensor]:
    """The gradients of a sum of squares, and those of the squares of these."""
    first = torch.autograd.grad(made.square().sum(), given, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), given)
    return [made, *first, *second]


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("rows", "edges"), [(20, 40), (20, 33), (20, 20), (700, 1391), (0, 0)])
@pytest.mark.parametrize("name", PLANS)
def test_edges_that_share_weights_are_edges_with_equal_weights(name: str, rows: int, edges: int, threads: int) -> None:
    conv = conv_of(name)
    given, ends = operands(conv, rows, edges)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = derivatives(conv.forward_pairs(*given, *ends), given)
    finally:
        torch.set_num_threads(before)
    for one, other in zip(found, derivatives(per_edge(conv, *given, *ends), given), strict=True):
        limit = 1e-9 * float(other.detach().abs().max()) if len(other) else 0.0
        torch.testing.assert_close(one, other, rtol=1e-9, atol=limit)
