"""NVRTC as a library: which one is taken, what it refuses, and what it says of kernels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.gpu_compile import Usage, usage
from tests.machine import needs_nvrtc
from tpgen.base.errors import BackendError
from tpgen.kernels.cuda import nvrtc
from tpgen.kernels.cuda.nvrtc import Nvrtc, find_nvrtc, list_supported_architectures, need_nvrtc
from tpgen.kernels.runtime.warm import check_capabilities


@needs_nvrtc
def test_a_device_newer_than_the_compiler_gets_ptx() -> None:
    compiler = need_nvrtc()
    text = 'extern "C" __global__ void tpgen_kernel(float* x) { x[0] = 1; }'
    made = compiler.compile(text, max(compiler.architectures) + 10).code
    assert b".visible .entry tpgen_kernel" in made
    assert ".visible .entry tpgen_kernel" in compiler.ptx(text, 90)


@needs_nvrtc
def test_what_nvrtc_refuses_is_said() -> None:
    with pytest.raises(BackendError, match=r"NVRTC.*sm_90: kernel.cu\(1\)"):
        need_nvrtc().compile("nonsense;", 90)


@needs_nvrtc
def test_devices_older_than_the_compiler_are_named() -> None:
    with pytest.raises(BackendError, match=r"sm_10.*sm_\d+"):
        need_nvrtc().compile("", 10)


@pytest.mark.parametrize("named, why", [("none", "forbids it"), ("/nowhere/libnvrtc.so", "cannot be loaded")])
def test_no_compiler_is_said_with_the_way_out(named: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPGEN_NVRTC", named)
    assert find_nvrtc() is None
    with pytest.raises(BackendError, match=f"kernels on a GPU need NVRTC, and TPGEN_NVRTC={named} {why}; or use"):
        need_nvrtc()


def test_where_there_is_none_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TPGEN_NVRTC", raising=False)
    monkeypatch.setattr(nvrtc, "_list_candidate_files", lambda: ())
    with pytest.raises(BackendError, match="there is none: pip install nvidia-cuda-nvrtc; or use"):
        need_nvrtc()
    with pytest.raises(BackendError, match="there is none: pip install nvidia-cuda-nvrtc-cu12; or use"):
        need_nvrtc(cuda=12)


@dataclass(frozen=True)
class FakeNvrtc:
    version: tuple[int, int]
    architectures: tuple[int, ...]


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeNvrtc]:
    """Of CUDA 13, which writes nothing for a V100 any more, and of CUDA 12; and a file that is no library."""
    there = {"new": FakeNvrtc((13, 0), (75, 80, 90, 100)), "old": FakeNvrtc((12, 8), (50, 70, 80, 90))}
    monkeypatch.delenv("TPGEN_NVRTC", raising=False)
    monkeypatch.setattr(nvrtc, "_list_candidate_files", lambda: ("broken", "new", "old"))
    monkeypatch.setattr(nvrtc, "_load_library_or_none", there.get)
    return there


@pytest.mark.parametrize(
    "arch, cuda, taken", [(None, None, "new"), (80, 13, "new"), (80, 12, "old"), (70, None, "old"), (130, None, "new")]
)
def test_the_newest_is_taken_that_device_and_driver_allow(
    arch: int | None, cuda: int | None, taken: str, two: dict[str, FakeNvrtc]
) -> None:
    assert need_nvrtc(arch, cuda) is two[taken]


@pytest.mark.parametrize(
    "arch, cuda, why",
    [
        (
            80,
            11,
            "NVRTC 12.8 is newer than this driver, which takes CUDA 11: update it, or pip install .*-cu11;",
        ),
        (37, 12, "NVRTC 12.8 writes no code for sm_37, only from sm_50 on: pip install nvidia-cuda-nvrtc-cu11;"),
    ],
)
def test_why_none_of_several_serves(arch: int, cuda: int, why: str, two: dict[str, FakeNvrtc]) -> None:
    with pytest.raises(BackendError, match=why):
        need_nvrtc(arch, cuda)


def test_a_driver_older_than_the_only_compiler(two: dict[str, FakeNvrtc], monkeypatch: pytest.MonkeyPatch) -> None:
    del two["old"]
    with pytest.raises(BackendError, match=r"NVRTC 13.0.*-cu12"):
        need_nvrtc(80, 12)
    assert list_supported_architectures(12) == ()


def test_capabilities_that_no_gpu_has_are_refused(two: dict[str, FakeNvrtc], monkeypatch: pytest.MonkeyPatch) -> None:
    check_capabilities([70, 75, 100])
    known = "sm_70, sm_75, sm_80, sm_90, sm_100"
    with pytest.raises(BackendError, match=f"unknown compute capability 'sm_95'.*: {known}$"):
        check_capabilities([80, 95])
    with pytest.raises(BackendError, match=r"sm_61:.*GPU.*7.0"):
        check_capabilities([61])
    del two["old"]
    with pytest.raises(BackendError, match=r"NVRTC 13.0.*sm_70.*sm_75 on: .*-cu12"):
        check_capabilities([70])


def test_files_go_by_version_and_before_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name alone cuda_nvrtc would come before cu13, and 9 before 12."""
    folders = {"nvidia/cuda_nvrtc/lib": "12", "nvidia/cu13/lib": "13", "nvidia/other/lib": "9.2"}
    for folder, version in (folders | {"lib": "12.6", "conda/lib": "12.8.93", "toolkit/lib64": "13.1"}).items():
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / f"libnvrtc.so.{version}").touch()
    monkeypatch.setattr(nvrtc.sys, "path", [str(tmp_path)])
    monkeypatch.setattr(nvrtc.sys, "prefix", str(tmp_path))
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "conda"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    monkeypatch.setenv("CUDA_PATH", "")
    monkeypatch.setattr(nvrtc.site, "getsitepackages", list)
    monkeypatch.setattr(nvrtc.ctypes.util, "find_library", lambda name: f"lib{name}.so.11")
    found = [Path(file).name.removeprefix("libnvrtc.so.") for file in nvrtc._list_candidate_files.__wrapped__()]
    assert found == ["13.1", "13", "12.8.93", "12.6", "12", "9.2", "13", "12", "11"]


@needs_nvrtc
def test_a_library_that_is_loaded_is_found_by_its_name() -> None:
    """As torch loads its own, in whatever folder that is."""
    name = Path(need_nvrtc().path).name
    assert name in nvrtc._NAMES
    assert Nvrtc(name).version == need_nvrtc().version


def test_usage_is_read_off_the_assemblers_log() -> None:
    entry, called = (f"ptxas info    : Function properties for {name}\n" for name in ("f", "called_by_f"))
    log = (
        f"{entry}ptxas         .     16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n"
        "ptxas info    : Used 40 registers, used 1 barriers\n"
        f"{called}ptxas         .     32 bytes stack frame, 100 bytes spill stores, 1 bytes spill loads\n"
    )
    assert usage(log) == {"f": Usage(40, 113, 48)}
