"""What NVRTC makes of each kernel of a named problem: registers below a ceiling, nothing in memory for want of them.

It needs no driver and no GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import pytest

from benchmarks.gpu_compile import Usage, usage
from tests.kernels.cuda.named import BACKWARD, FORWARD, KERNELS, POLYNOMIAL_CALLS, QUICK, QUICK_CALLS, Call, Kernel
from tests.machine import needs_nvrtc
from tpgen.kernels.cuda.nvrtc import need_nvrtc

ARCHITECTURES = (80, 90)
ENTRIES = ("tpgen_kernel", "tpgen_sum", "tpgen_join", "tpgen_collect", "tpgen_channels")
# Registers of a thread in float32: up to 168 leave room for three blocks of four warps on a multiprocessor.
MOST = {"products": 168, "convolutions": 168, "mixing": 168, "linear": 104, "polynomials": 255}
# bfloat16 is computed with as float32; a double takes two registers.
OTHER_DTYPES = [
    Kernel("nequip-aspirin", FORWARD, dtype="bfloat16"),
    Kernel("diffdock-l1", BACKWARD, dtype="bfloat16"),
    Kernel("mace-medium", BACKWARD, indexed=True, dtype="bfloat16"),
    Kernel("mixed-mul", BACKWARD, "ir_mul", True, dtype="float64"),
    Kernel("mace-large", FORWARD, dtype="float64"),
    Call("small-contraction", "second", "float64"),
    Call("turned", "backward", "float64"),
]
LONG_TABLES = [(Kernel("roofline-747", opened, indexed=True), 80) for opened in (FORWARD, BACKWARD)]
# Convolutions with room for two blocks alone; docs/gpu.md names them.
OVER = {("nequip-lips-out-ir_mul-conv-float32", 80), ("nequip-lips-x1+x2+w-mul_ir-conv-float32", 90)}


def compiled(kernel: Kernel | Call, arch: int) -> dict[str, Usage]:
    source = kernel.source(arch)
    found = need_nvrtc().compile(source.text, arch)
    assert found.code.startswith(b"\x7fELF")
    used = usage(found.log)
    assert set(used) == {name for name in ENTRIES if f" {name}(" in source.text}
    return used


def check(kernel: Kernel | Call, arch: int) -> None:
    if (str(kernel), arch) in OVER:
        with pytest.raises(AssertionError, match="tpgen_kernel"):
            fits(kernel, arch)
    else:
        fits(kernel, arch)


def fits(kernel: Kernel | Call, arch: int) -> None:
    for name, used in compiled(kernel, arch).items():
        assert (used.spills, used.stack) == (0, 0), name
        assert used.registers <= (255 if kernel.dtype == "float64" else MOST[kernel.family]), name


def in_turn(kernels: Sequence[Kernel | Call]) -> list[tuple[Kernel | Call, int]]:
    """Each kernel with one architecture."""
    return list(zip(kernels, cycle(ARCHITECTURES), strict=False))


@needs_nvrtc
@pytest.mark.parametrize("kernel, arch", [*in_turn([*QUICK, *OTHER_DTYPES]), *LONG_TABLES], ids=str)
def test_nothing_spills(kernel: Kernel | Call, arch: int) -> None:
    check(kernel, arch)


@needs_nvrtc
@pytest.mark.parametrize("call", QUICK_CALLS, ids=str)
def test_no_polynomial_spills(call: Call) -> None:
    check(call, 80)


@needs_nvrtc
@pytest.mark.slow  # every seventh: each layout, set of open slots and kind of rows comes with some problem
@pytest.mark.parametrize("kernel, arch", in_turn([*KERNELS[::7], *POLYNOMIAL_CALLS]), ids=str)
def test_nothing_spills_of_named_problems(kernel: Kernel | Call, arch: int) -> None:
    check(kernel, arch)
