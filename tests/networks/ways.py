"""The two ways in which a program looks whether its network stands."""

from __future__ import annotations

import pytest

from tests.machine import needs_compiler
from tpgen.kernels.runtime.native import identity


@pytest.fixture(params=[pytest.param("in one call", marks=needs_compiler), "slowly"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Look in one call of C++, or by the slow definition alone, as where nothing can be compiled."""
    if request.param == "slowly":
        monkeypatch.setattr(identity, "_make_identity_test_method", lambda: None)
    return request.param
