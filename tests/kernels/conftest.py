"""Kernel tests build into a directory of their own, and are skipped where there is no compiler."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machine import WITHOUT_COMPILER
from tpgen.kernels.build import build, cache
from tpgen.kernels.build.compiler import find_compiler
from tpgen.kernels.runtime import failures


@pytest.fixture(autouse=True, scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if find_compiler() is None:
        pytest.skip(WITHOUT_COMPILER)
    patch = pytest.MonkeyPatch()
    patch.setenv("TPGEN_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture
def unoptimised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compiled in half the time; `test_compilers` and `test_targets` have what optimising makes of them."""
    monkeypatch.setenv("TPGEN_CXX", str(Path(__file__).parents[1] / "attacks" / "quick++"))
    monkeypatch.setenv("SEED", "1")


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, and no kernel loaded yet."""
    monkeypatch.setenv("TPGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_loaded", {})
    monkeypatch.setattr(build, "_refused", {})
    monkeypatch.setattr(failures, "_reasons", {})
    cache.forget_directory()
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def unloaded(fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As `fresh`, with the library of one product, which this process has not loaded from there.

    The system gives a library that it has loaded from a path before without looking at the file.
    """
    from tests.kernels.test_build import run_product

    run_product()
    shutil.copytree(tmp_path / "cache", tmp_path / "copy")
    monkeypatch.setenv("TPGEN_CACHE_DIR", str(tmp_path / "copy"))
    build._loaded.clear()
    cache.forget_directory()
    return tmp_path / "copy" / "kernels"
