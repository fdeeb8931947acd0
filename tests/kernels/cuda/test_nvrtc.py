"""NVRTC takes every kernel, and nothing spills; it needs no driver and no GPU."""

from __future__ import annotations

import pytest

from tests.machine import needs_nvrtc
from tpgen.errors import BackendError
from tpgen.form.linear import form_of
from tpgen.kernels.cuda import nvrtc
from tpgen.kernels.cuda.chips import chip_of
from tpgen.kernels.cuda.generate import ENTRY, SUM_ENTRY, generate_cuda
from tpgen.kernels.cuda.nvrtc import Usage, find_nvrtc, need_nvrtc, usage
from tpgen.kernels.cuda.placement import cuda_target
from tpgen.kernels.placement.planning import plan_schedule
from tpgen.planner.problems import PROBLEMS, find_problem

FORWARD, BACKWARD = ("out",), ("x1", "x2", "w")
REGISTERS = 168  # three blocks of four warps on a multiprocessor
# problem, layout, dtype, open slots, whether on edges; the rest of the named problems stand in `make test-all`
QUICK = [
    ("mace-large", "mul_ir", "float32", BACKWARD, False),
    ("mixed-mul", "ir_mul", "float64", BACKWARD, True),
    ("nequip-aspirin", "mul_ir", "bfloat16", FORWARD, False),
    ("roofline-777", "mul_ir", "float32", FORWARD, True),
    ("elementwise", "mul_ir", "float32", BACKWARD, False),
    ("diffdock-l1", "mul_ir", "float32", BACKWARD, True),
    ("article", "ir_mul", "float32", FORWARD, False),
]
NAMED = [p.name for p in PROBLEMS.values() if p.name != "self-connection"]
EVERY = [
    (name, layout, "float32", opened, indexed)
    for name in NAMED
    for layout in ("mul_ir", "ir_mul")
    for opened in (FORWARD, BACKWARD)
    for indexed in (False, True)
]


def compiled(problem: str, layout: str, dtype: str, opened: tuple[str, ...], indexed: bool, arch: int) -> Usage:
    schedule = plan_schedule(form_of(find_problem(problem).plan, layout), cuda_target(dtype))
    source = generate_cuda(schedule, opened, chip_of(arch), indexed)
    found = need_nvrtc().compile(source.text, arch)
    assert found.code.startswith(b"\x7fELF")
    assert set(found.usage) == {ENTRY, SUM_ENTRY} if source.placement.sums_weights else {ENTRY}
    return found.usage[ENTRY]


@needs_nvrtc
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("case", QUICK, ids=lambda case: f"{case[0]}-{case[2]}")
def test_nothing_spills(case: tuple, arch: int) -> None:
    used = compiled(*case, arch)
    assert used.spills == 0
    assert used.registers <= REGISTERS


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("case", EVERY, ids=lambda case: "-".join(map(str, case)))
def test_nothing_spills_on_any_named_problem(case: tuple, arch: int) -> None:
    test_nothing_spills(case, arch)


@needs_nvrtc
def test_a_device_newer_than_the_compiler_gets_ptx() -> None:
    compiler = need_nvrtc()
    text = 'extern "C" __global__ void tpgen_kernel(float* x) { x[0] = 1; }'
    made = compiler.compile(text, max(compiler.architectures) + 10).code
    assert b".visible .entry tpgen_kernel" in made
    assert ".visible .entry tpgen_kernel" in compiler.ptx(text, 90)


@needs_nvrtc
def test_what_nvrtc_refuses_is_said() -> None:
    with pytest.raises(BackendError, match=r"NVRTC failed for sm_90: kernel.cu\(1\): error: this declaration"):
        need_nvrtc().compile("nonsense;", 90)


@needs_nvrtc
def test_devices_older_than_the_compiler_are_named() -> None:
    with pytest.raises(BackendError, match=r"writes no code for sm_10, only from sm_\d+ on: install an earlier one"):
        need_nvrtc().compile("", 10)


@pytest.mark.parametrize("named, why", [("none", "forbids it"), ("/nowhere/libnvrtc.so", "cannot be loaded")])
def test_no_compiler_is_said_with_the_way_out(named: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPGEN_NVRTC", named)
    assert find_nvrtc() is None
    with pytest.raises(BackendError, match=f"kernels on a GPU need NVRTC, and TPGEN_NVRTC={named} {why}; or use"):
        need_nvrtc()


def test_where_there_is_none_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TPGEN_NVRTC", raising=False)
    monkeypatch.setattr(nvrtc, "_candidates", lambda: iter(()))
    nvrtc._find.cache_clear()
    try:
        with pytest.raises(BackendError, match="there is none: pip install nvidia-cuda-nvrtc"):
            need_nvrtc()
    finally:
        nvrtc._find.cache_clear()


def test_usage_is_read_off_the_assemblers_log() -> None:
    log = (
        "ptxas info    : Function properties for f\n"
        "ptxas         .     16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n"
        "ptxas info    : Used 40 registers, used 1 barriers\n"
    )
    assert usage(log) == {"f": Usage(40, 12)}
