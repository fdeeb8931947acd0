"""Kernel tests build into a directory of their own, and are skipped where there is no compiler."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tpgen.kernels.compiler import find_compiler


@pytest.fixture(autouse=True, scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if find_compiler() is None:
        pytest.skip("no C++ compiler on this machine")
    patch = pytest.MonkeyPatch()
    patch.setenv("TPGEN_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()
