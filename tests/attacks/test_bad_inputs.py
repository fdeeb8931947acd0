"""Operands of wrong shapes, dtypes, devices, strides, indices: a result, or an error of tpgen's with words.

A kernel and a graph must also agree on which of the two it is, and on the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import tpgen
from tests.attacks.counts import count
from tests.machine import needs_compiler
from tpgen.base.errors import TpgenError
from tpgen.planner.presets import channelwise, fully_connected

ROWS, NODES = 5, 4
Damage = Callable[[Any], Any]
DAMAGES: dict[str, Damage] = {
    "none": lambda x: x,
    "a column less": lambda x: x[..., 1:],
    "a row less": lambda x: x[1:],
    "no rows": lambda x: x[:0],
    "rows twice": lambda x: torch.cat([x, x]),
    "one row": lambda x: x[:1],
    "a dimension more": lambda x: x[None],
    "a number": lambda x: x.flatten()[0],
    "float32": lambda x: x.float(),
    "float16": lambda x: x.half(),
    "integers": lambda x: x.long(),
    "int32": lambda x: x.int(),
    "complex": lambda x: x.to(torch.complex64),
    "flags": lambda x: x > 0,
    "on meta": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
    "transposed": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x,
    "expanded": lambda x: x[:1].expand_as(x),
    "backwards": lambda x: x.flip(0),
    "a list": lambda x: x.tolist(),
    "an array": lambda x: x.numpy(),
    "nothing": lambda x: None,
    "negative": lambda x: x - 100,
    "large": lambda x: x + 100,
    "not a number": lambda x: x * float("nan"),
}


def product(strategy: str) -> tuple[nn.Module, list[Tensor]]:
    plan = fully_connected("2x0e+1o", "0e+1o", "2x0e+1o")
    made = tpgen.TensorProduct.from_plan(plan, False, strategy=strategy).double()
    return made, draw((ROWS, 5), (ROWS, 4), (plan.weight_numel,))


def rows_of_weights(strategy: str) -> tuple[nn.Module, list[Tensor]]:
    plan = channelwise("2x0e+2x1o", "0e+1o", "0e+1o")
    made = tpgen.TensorProduct.from_plan(plan, strategy=strategy).double()
    return made, draw((ROWS, 8), (ROWS, 4), (ROWS, plan.weight_numel))


def convolution(strategy: str) -> tuple[nn.Module, list[Tensor]]:
    plan = channelwise("2x0e+2x1o", "0e+1o", "0e+1o")
    made = tpgen.TensorProductConv.from_plan(plan, strategy=strategy).double()
    src, dst = torch.arange(ROWS) % NODES, torch.arange(ROWS) // 2
    return made, [*draw((NODES, 8), (ROWS, 4), (ROWS, plan.weight_numel)), src, dst]


def linear(strategy: str) -> tuple[nn.Module, list[Tensor]]:
    made = tpgen.Linear("2x0e+2x1o", "3x0e+1o", internal_weights=False, shared_weights=True, strategy=strategy)
    return made.double(), draw((ROWS, 8), (made.weight_numel,))


def draw(*shapes: tuple[int, ...]) -> list[Tensor]:
    made = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=made, dtype=torch.float64) for shape in shapes]


SUBJECTS = {"product": product, "rows of weights": rows_of_weights, "convolution": convolution, "linear": linear}


def answer(module: nn.Module, operands: Sequence[Any]) -> Tensor | str:
    """The result, or the words of tpgen's error; any other error is a fault."""
    try:
        return module(*operands)
    except TpgenError as error:
        return str(error)


def damaged(operands: Sequence[Tensor], names: Sequence[str]) -> list[Any] | None:
    """None where torch itself cannot make such an operand."""
    try:
        return [DAMAGES[name](x) for name, x in zip(names, operands, strict=False)]
    except (RuntimeError, TypeError, IndexError):
        return None


@needs_compiler
@pytest.mark.parametrize("subject", SUBJECTS)
@given(names=st.lists(st.sampled_from(sorted(DAMAGES)), min_size=5, max_size=5), kept=st.integers(0, 31))
def test_a_result_or_an_error_with_words(subject: str, names: list[str], kept: int) -> None:
    names = ["none" if kept >> n & 1 else name for n, name in enumerate(names)]
    found = []
    for strategy in ("kernel", "einsum"):
        module, operands = SUBJECTS[subject](strategy)
        given_ = damaged(operands, names)
        if given_ is None:
            return
        found.append(answer(module, given_))
    kernel, graph = found
    assert isinstance(kernel, str) == isinstance(graph, str), (names, kernel, graph)
    assert all(len(text) > 10 for text in found if isinstance(text, str))
    if isinstance(kernel, Tensor) and isinstance(graph, Tensor) and not kernel.is_meta:
        torch.testing.assert_close(kernel, graph, rtol=1e-9, atol=1e-9, equal_nan=True)
    count("operands that do not fit", 1)


def test_a_sparse_operand_is_named() -> None:
    layer = tpgen.Linear("2x0e", "2x0e")
    with pytest.raises(TpgenError, match=r"features:.*sparse_coo; give .*to_dense"):
        layer(torch.eye(2).to_sparse())


@pytest.mark.parametrize("strategy", ["grouped", pytest.param("kernel", marks=needs_compiler)])
def test_edges_stand_where_the_nodes_do(strategy: str) -> None:
    """A graph that gathered by an index without values returned whatever stood in memory."""
    conv, (x, y, w, src, dst) = convolution(strategy)
    with pytest.raises(TpgenError, match=r"edge_src.* must be on cpu as x1? is, got meta"):
        conv(x, y, w, src.to("meta"), dst)
