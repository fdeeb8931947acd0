"""Shared by all tests: seeds, and the switch that accepts golden files."""

from __future__ import annotations

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--accept-golden", action="store_true", help="write the golden files anew instead of comparing")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
