"""A GPU as kernels see it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kernels.cuda.fakes import FakeDriver
from tpgen.kernels.arguments import KernelSpec
from tpgen.kernels.runtime.native.runtime import load_cpp_runtime
from tpgen.kernels.runtime.runtime import kernels_of
from tpgen.kernels.runtime.targets import KERNEL_TARGETS, target_of


def expanding(spec: KernelSpec, _chip: object) -> str | None:
    return "second derivatives are expanded" if spec.call.levels else None


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """A process whose CPU is a CUDA device, as far as kernels know: the first of two, of capability 9.0."""
    library = FakeDriver(tmp_path)
    library.install(monkeypatch)
    row = replace(KERNEL_TARGETS["cuda"], device="cpu", missing=lambda device: None, obstacle=expanding)
    monkeypatch.setitem(KERNEL_TARGETS, "cpp", row)
    for function in (target_of, kernels_of):
        function.cache_clear()
    yield library
    for function in (target_of, kernels_of):
        function.cache_clear()


@pytest.fixture
def native_gpu(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """The same, with launches of which C++ makes all but the first of each kernel."""
    native = load_cpp_runtime()
    assert native is not None
    monkeypatch.setattr(native, "_numbers", {})  # what C++ launched in a test before belongs to the driver of that one
    native.set_driver_functions("cpu", gpu.entry_points)
    yield gpu
    native.set_driver_functions("cpu", None)
