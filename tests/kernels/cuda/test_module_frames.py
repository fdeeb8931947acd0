"""Frames of Python in steady calls of modules: a convolution has as many as a product, on a GPU one more."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.cuda.fakes import FakeDriver
from tests.kernels.plans import operands
from tests.machine import needs_compiler
from tpgen.nn.conv import TensorProductConv
from tpgen.nn.edges import EdgeOrder
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.presets import channelwise

pytestmark = needs_compiler
PLAN = channelwise("4x0e+4x1o", "0e+1o", "4x0e+4x1o", shared_weights=False)
NODES, EDGES = 5, 12


def callers(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield frame.f_globals.get("__name__", "")
        frame = frame.f_back


def own_frames(call: Callable[[], object]) -> list[str]:
    """Functions of tpgen in a call, but for those that a driver in Python calls."""
    seen = list[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        own = event == "call" and frame.f_globals.get("__name__", "").startswith("tpgen.")
        if own and not any(name.endswith((".fakes", ".conftest")) for name in callers(frame)):
            seen.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen


def calls() -> dict[str, Callable[[], Tensor]]:
    """Calls of a product and of a convolution on the same rows, whose gradients are asked for."""
    given = operands(PLAN, EDGES)
    product = TensorProduct.from_plan(PLAN, strategy="kernel").double()
    conv = TensorProductConv.from_plan(PLAN, strategy="kernel").double()
    x, y, w = (given[name].requires_grad_() for name in ("x1", "x2", "w"))
    nodes = x.detach()[:NODES].clone().requires_grad_()
    edge_index = torch.randint(NODES, (2, EDGES), generator=torch.Generator().manual_seed(0))
    order = EdgeOrder.of(*edge_index, NODES)
    return {
        "product": lambda: product(x, y, w),
        "conv": lambda: conv(nodes, y, w, edge_index[0], edge_index[1], NODES),
        "conv of as many nodes as x": lambda: conv(nodes, y, w, edge_src=edge_index[0], edge_dst=edge_index[1]),
        "conv of trusted edges": lambda: conv(nodes, y, w, edge_index[0], edge_index[1], check_index=False),
        "conv of an EdgeOrder": lambda: conv(nodes, y, w, order),
    }


def counted() -> dict[str, tuple[int, int]]:
    """Frames of each call and of its backward, once it is a steady one."""
    found = {}
    for name, call in calls().items():
        for _ in range(3):
            call().sum().backward()
        made: list[Any] = []
        forward = len(own_frames(lambda made=made, call=call: made.append(call())))
        found[name] = forward, len(own_frames(made[0].sum().backward))
    return found


@pytest.mark.parametrize("where", ["cpu", "gpu"])
def test_a_convolution_has_as_many_frames_as_a_product(where: str, request: pytest.FixtureRequest) -> None:
    """Its edges take one more on a GPU, and an `EdgeOrder` two, which takes them out and looks at them."""
    driver: FakeDriver | None = request.getfixturevalue("native_gpu") if where == "gpu" else None
    found, more = counted(), int(where == "gpu")
    assert bool(driver and driver.calls.count("cuLaunchKernel")) == (where == "gpu")
    forward, backward = found.pop("product")
    assert forward <= 12
    for name, (one, other) in found.items():
        assert (one, other) == (forward + more + 2 * (name == "conv of an EdgeOrder"), backward + more), name
