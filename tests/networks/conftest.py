"""Fixtures that several tests of networks share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.networks.served import counted, recomputed

__all__ = ["counted", "recomputed"]


@pytest.fixture
def float64() -> Iterator[None]:
    """What is built is float64, constants too."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
