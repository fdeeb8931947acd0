"""Fixtures that several tests of verification share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def double() -> Iterator[None]:
    """Couplings of e3nn are as exact as the dtype in which modules are made."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
