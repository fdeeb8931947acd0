"""A GPU as kernels of polynomials see it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kernels.cuda.polynomials.fakes import Polynomials
from tpgen.kernels.runtime.runtime import kernels_of
from tpgen.kernels.runtime.targets import KERNEL_TARGETS, target_of


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Polynomials]:
    """A process whose CPU is a CUDA device, as far as kernels of polynomials know: the first of two."""
    library = Polynomials(tmp_path)
    library.install(monkeypatch)
    row = replace(KERNEL_TARGETS["cuda"], device="cpu", missing=lambda device: None)
    monkeypatch.setitem(KERNEL_TARGETS, "cpp", row)
    caches = (target_of, kernels_of)
    for one in caches:
        one.cache_clear()
    yield library
    for one in caches:
        one.cache_clear()
