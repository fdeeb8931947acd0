"""A GPU as kernels of products see it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kernels.cuda.fakes import Products
from tpgen.kernels.arguments import KernelSpec
from tpgen.kernels.runtime.native.runtime import runtime
from tpgen.kernels.runtime.runtime import Kernels
from tpgen.kernels.runtime.targets import KERNEL_TARGETS, target_of


def expanding(spec: KernelSpec, _chip: object) -> str | None:
    return "second derivatives are expanded" if spec.call.levels else None


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Products]:
    """A process whose CPU is a CUDA device, as far as kernels know: the first of two, of capability 9.0."""
    library = Products(tmp_path)
    library.install(monkeypatch)
    row = replace(KERNEL_TARGETS["cuda"], device="cpu", missing=lambda device: None, obstacle=expanding)
    monkeypatch.setitem(KERNEL_TARGETS, "cpp", row)
    target_of.cache_clear()
    products: dict[str, Kernels] = {}
    for module in ("runtime", "forms"):
        find = lambda text: products.setdefault(text, Kernels(text))  # noqa: E731
        monkeypatch.setattr(f"tpgen.kernels.runtime.{module}.kernels_of", find)
    yield library
    target_of.cache_clear()


@pytest.fixture
def native_gpu(gpu: Products, monkeypatch: pytest.MonkeyPatch) -> Iterator[Products]:
    """The same, with launches of which C++ makes all but the first of each kernel."""
    native = runtime()
    assert native is not None
    monkeypatch.setattr(native, "_numbers", {})  # what C++ launched in a test before belongs to the driver of that one
    native.use_driver("cpu", gpu.entry_points)
    yield gpu
    native.use_driver("cpu", None)
