"""Kernels come out right from every compiler on this machine, and for processors that have less than this one."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

from tests.kernels.plans import operands
from tests.kernels.test_products import all_slots, errors, identical, on_threads
from tpgen.base.errors import BackendError
from tpgen.kernels.build import build, processor
from tpgen.kernels.cpp.generate import ENTRY
from tpgen.kernels.cpp.prelude import header_text
from tpgen.kernels.runtime.ops import describe, kernel_conv
from tpgen.kernels.runtime.runtime import kernels_of
from tpgen.planner.presets import channelwise, fully_connected

PLANS = {
    "channel": channelwise("17x0e+16x1o+3x2e", "0e+1o", "0e+1o"),
    "batch": fully_connected("9x0e+3x1o", "0e+1o", "5x0e+7x1o"),
}
ALL = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
DTYPES = pytest.mark.parametrize(
    "dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 2e-6), (torch.bfloat16, 1e-2)], ids=str
)


@pytest.fixture(autouse=True)
def _no_kernel_is_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(build, "_loaded", {})
    kernels_of.cache_clear()
    yield
    kernels_of.cache_clear()


def here(name: str, command: str, is_here: object):
    missing = pytest.mark.skipif(not is_here, reason=f"kernels are not tested with {name}, which is not here")
    return pytest.param(command, marks=missing, id=name)


PROGRAMS = [here(name, name, shutil.which(name)) for name in ("g++", "g++-9", "g++-10", "g++-11", "clang++")]
ZIGLANG = here("ziglang", shlex.join([sys.executable, "-m", "ziglang", "c++"]), find_spec("ziglang"))


@pytest.fixture(params=[*PROGRAMS, ZIGLANG])
def cxx(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each compiler that kernels are written for, in turn."""
    monkeypatch.setenv("TPGEN_CXX", request.param)
    return request.param


@ALL
@DTYPES
def test_every_compiler_agrees(plan, dtype: torch.dtype, tolerance: float, cxx: str) -> None:
    for layout in ("mul_ir", "ir_mul"):
        for mask in (8, 7):
            assert max(errors(plan, layout, 19, dtype, mask).values()) < tolerance


@ALL
def test_every_compiler_convolves(plan, cxx: str) -> None:
    x1, x2, w, _ = (x.requires_grad_() for x in operands(plan, 40, torch.float64).values())
    index = torch.randint(40, (2, 40))
    assert torch.autograd.gradcheck(
        lambda *x: kernel_conv(*x, *index, 40, describe(plan)), (x1, x2, w), fast_mode=True, check_forward_ad=True
    )


@ALL
def test_every_compiler_gives_the_same_bits_on_any_threads(plan, cxx: str) -> None:
    given = operands(plan, 3000, torch.float32)
    product = kernels_of(describe(plan))
    assert identical(*(on_threads(n, lambda: all_slots(product, given)) for n in (1, 2)))


def threads_at_work(cxx: str, tasks: int, work: int) -> list[int]:
    """How many of 1, 2, 3 and 64 threads of torch run, where work of 1,000 is worth them."""
    text = f"""typedef long long i64;
{header_text("threads")}
extern "C" __attribute__((visibility("default"))) int {ENTRY}(void*, void*, void*, i64 tasks, i64 work) {{
  int count = 0; int* const p = &count;
  on_threads(tasks, work, 1000, [=]() {{ __atomic_fetch_add(p, 1, __ATOMIC_RELAXED); }});
  return count;
}}
"""
    count = build.load_kernel(text)
    return [on_threads(n, lambda: count(0, 0, 0, tasks, work)) for n in (1, 2, 3, 64)]


def test_threads_are_those_of_torch(cxx: str) -> None:
    assert threads_at_work(cxx, 10, 4 * 64 * 1000 + 1) == [1, 2, 3, 64]


@pytest.mark.parametrize("tasks, work", [(1, 10**9), (10, 1000)])
def test_no_thread_is_woken_without_work(tasks: int, work: int, cxx: str) -> None:
    assert threads_at_work(cxx, tasks, work) == [1, 1, 1, 1]


def test_threads_without_a_core_are_woken_for_much_work_alone(cxx: str) -> None:
    cores = len(os.sched_getaffinity(0))
    for work in (1001, 8001, 12_000, 4 * 64 * 1000):
        assert threads_at_work(cxx, 10, work) == [n if work > 4 * n * 1000 or n <= cores else 1 for n in (1, 2, 3, 64)]


# -- instruction sets --------------------------------------------------------------------------------------------------


@pytest.fixture(params=[each.name for each in processor.SETS])
def older(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each instruction set that kernels may be compiled for and this machine has, in turn."""
    monkeypatch.setenv("TPGEN_TARGET", request.param)
    try:
        processor.instruction_set()
    except BackendError as error:
        pytest.skip(str(error))
    return request.param


@ALL
@DTYPES
def test_instruction_sets(plan, dtype: torch.dtype, tolerance: float, older: str) -> None:
    for mask in (8, 7):
        assert max(errors(plan, "mul_ir", 19, dtype, mask).values()) < tolerance
