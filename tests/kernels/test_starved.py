"""Kernels that get no memory: they say so, and give back what they had."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from tests.machine import needs_compiler
from tpgen.form.form import form_of
from tpgen.kernels.build.compiler import need_compiler
from tpgen.kernels.cpp.generate import generate
from tpgen.kernels.placement.planning import place, plan_schedule
from tpgen.kernels.placement.values import Target
from tpgen.kernels.rows import EDGES
from tpgen.planner.presets import fully_connected

pytestmark = needs_compiler

DECLARED = 'extern "C" int posix_memalign(void**, unsigned long, unsigned long);\nextern "C" void free(void*);'
COUNTED = """
#include <stdlib.h>
extern "C" { int granted, held; }
static int counted_ask(void** at, unsigned long align, unsigned long size) {
  if (granted-- <= 0) return 12;
  ++held;
  return posix_memalign(at, align, size);
}
static void counted_free(void* at) { held -= at != 0; free(at); }
#define posix_memalign counted_ask
#define free counted_free
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Weights in scratch, sums of their gradient, rows in order: a kernel that asks for all that there is."""
    plan = fully_connected("2x0e + 2x1o", "1x0e + 1x1o", "2x0e + 2x1o")
    schedule = plan_schedule(form_of(plan, "mul_ir"), Target("float32", 4, 16))
    text = generate(place(schedule, ("x1", "x2", "w"), EDGES)).text
    assert DECLARED in text
    source = Path(tmp_path_factory.mktemp("starved")) / "kernel.cpp"
    source.write_text(text.replace(DECLARED, COUNTED), encoding="utf-8")
    made = source.with_suffix(".so")
    subprocess.run([*need_compiler().program, "-w", "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    return ctypes.CDLL(str(made))


def call(kernel: ctypes.CDLL, granted: int) -> tuple[int, int]:
    """What the kernel answers when it is granted so many requests, and how many it has not given back."""
    allowed, held = (ctypes.c_int.in_dll(kernel, name) for name in ("granted", "held"))
    allowed.value, held.value = granted, 0
    room, index = [torch.zeros(256) for _ in range(7)], torch.zeros(1, dtype=torch.int64)
    given, opened = pointers_to(room[:4]), pointers_to(room[4:])
    indices = (ctypes.c_int64 * 6)(*[index.data_ptr(), 1, 1] * 2)  # of one row each, and checked
    one = ctypes.c_int64(1)
    return kernel.tpgen_kernel(given, opened, indices, one, one), held.value


def pointers_to(tensors: list[torch.Tensor]) -> ctypes.Array:
    return (ctypes.c_void_p * len(tensors))(*[x.data_ptr() for x in tensors])


def test_every_request_can_fail(kernel: ctypes.CDLL) -> None:
    requests = next(n for n in range(20) if call(kernel, n)[0] == 0)
    assert requests == 5  # order and first, weights, sums, and one thread's scratch
    assert [call(kernel, n) for n in range(requests)] == [(1, 0)] * requests
    assert call(kernel, requests) == (0, 0)
