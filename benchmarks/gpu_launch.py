"""Time of the host in calls of kernels on a GPU, whose driver is a stand-in that does nothing.

    python -m benchmarks.gpu_launch

needs a C++ compiler and no GPU: the CPU plays the device, so results stand on memory of the CPU's.  A row of the table
is a product, a convolution of edges that are known, one whose gradients a second kernel collects, or a polynomial.  Its
columns are what a user calls, what that asks of the runtime, and a launch from Python, as every call was once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu_clock import seconds_of
from tests.kernels.cuda.silent import silent_gpu
from tests.polynomials import operands_of, symmetric
from tpgen.base.text import table
from tpgen.kernels.rows import EDGES, ELEMENTS
from tpgen.kernels.runtime.call import FormCall, make_product_call
from tpgen.kernels.runtime.forms import forms
from tpgen.kernels.runtime.ops import describe
from tpgen.kernels.runtime.polynomials import parse_polynomial_call
from tpgen.kernels.runtime.runtime import kernels_of
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise

PLAN = channelwise("32x0e+32x1o", "0e+1o", "32x0e+32x1o", shared_weights=False)
# results wider than twice what they are made of, whose gradients come by receiver
WIDE = channelwise("16x0e+16x1o", "0e+1o+2e+3o", "16x0e+16x1o+16x2e+16x3o", shared_weights=False)
BACKWARD = ("x1", "x2", "w")
ROWS, NODES = 40, 8
HEADS = ("call", "user", "runtime", "Python", "launches")


class Launch(NamedTuple):
    """A call that launches, as a user makes it, as the runtime gets it, and from Python."""

    name: str
    user: Callable[[], Sequence[Tensor]]
    runtime: Callable[[], Sequence[Tensor]]
    python: Callable[[], Sequence[Tensor]]


def of_product(name: str, plan: Plan, opened: tuple[str, ...], indexed: bool) -> Launch:
    """A product, or its gradients, on rows or on edges."""
    rows = {operand.name: (NODES if indexed and operand.name in ("x1", "out") else ROWS) for operand in plan.operands}
    tensors, slots = [torch.randn(rows[o.name], o.dim) for o in plan.operands], make_product_call(opened)
    src, dst = torch.randint(NODES, (2, ROWS))
    at, rules, nodes = ((src, dst), EDGES, NODES) if indexed else ((), (), 0)
    return _launch(name, FormCall(tensors[: len(slots.given)], at, describe(plan), str(slots), rules, nodes))


def of_polynomial(name: str, plan: Plan, slots: str) -> Launch:
    """A polynomial, or its gradients, with weights of elements."""
    there, named = operands_of(plan, ROWS, 3, 32, torch.float32, grad=False), parse_polynomial_call(plan, slots)
    out = plan.operand("out")
    operands = [*there, torch.randn(ROWS, out.dim * (32 if out.channels else 1))]
    by_name = dict(zip([o.name for o in plan.operands], operands, strict=True))
    tensors = [by_name[slot.operand] for slot in named.given]
    return _launch(name, FormCall(tensors, [torch.randint(3, (ROWS,))], plan.to_json(), str(named), (ELEMENTS,)))


def _launch(name: str, call: FormCall) -> Launch:
    kernels = kernels_of(call.description)
    return Launch(
        name, partial(forms.compute, call), partial(kernels.compute_in_cpp, call), partial(kernels._check_and_run, call)
    )


def launches() -> Iterator[Launch]:
    for direction, opened in (("", ("out",)), (", gradients", BACKWARD)):
        yield of_product(f"product{direction}", PLAN, opened, indexed=False)
        yield of_product(f"convolution{direction}", PLAN, opened, indexed=True)
    yield of_product("convolution, gradients collected", WIDE, BACKWARD, indexed=True)
    yield of_polynomial("polynomial", symmetric(), "forward")
    yield of_polynomial("polynomial, gradients", symmetric(), "backward")


def measured(seconds: float) -> Iterator[tuple[str, ...]]:
    """Microseconds of each call, and the launches of one.  Raises where the runtime leaves a call to Python."""
    with silent_gpu() as driver, torch.no_grad():
        for one in launches():
            one.python()  # loads kernels, sorts edges, and enters both
            one.user()
            before = driver.fake_count(0)
            if not one.runtime():
                raise SystemExit(f"{one.name}: not launched in C++")
            count = driver.fake_count(0) - before
            times = [1e6 * seconds_of(call, "cpu", seconds) for call in (one.user, one.runtime, one.python)]
            yield (one.name, *(f"{t:.1f} µs" for t in times), str(count))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_launch", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each figure")
    print(table([HEADS, *measured(parser.parse_args().seconds)], left=[0]))


if __name__ == "__main__":
    main()
