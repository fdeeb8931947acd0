"""Shared by all tests: seeds, and the switch that accepts golden files."""

from __future__ import annotations

import pytest
import torch

from tests.choice import Choice, add_option, choose
from tests.machine import needs_compiler

RUN_KERNELS = ("tpgen.kernels.runtime.ops.kernel_product",)  # doctests


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--accept-golden", action="store_true", help="write the golden files anew instead of comparing")
    add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # xdist's workers say nothing
        config.pluginmanager.register(Choice(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    choose(config, items)
    for item in items:
        if item.name in RUN_KERNELS:
            item.add_marker(needs_compiler)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def without_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program is built beside a test by itself: those of `tests/networks/test_served*.py` ask for them."""
    monkeypatch.setenv("TPGEN_PROGRAM", "0")
