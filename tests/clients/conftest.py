"""Tests inside the projects that tpgen has an adapter for, where one is installed (``make test-clients``)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

from benchmarks.lammps import lammps
from tests.attacks.counts import counted, pytest_terminal_summary
from tests.clients.checks import counted_pairs
from tests.clients.projects import PROJECTS

__all__ = ["counted", "pytest_terminal_summary"]

_TESTS = {"mace": "mace", "nequip": "nequip", "allegro": "nequip_allegro", "sevenn": "sevenn", "torch_sim": "*engines"}
collect_ignore_glob = [f"test_{tests}*.py" for client, tests in _TESTS.items() if find_spec(client) is None]
if find_spec("torch_sim") is None:
    collect_ignore_glob.append("torchsim_checks.py")
if not PROJECTS:
    collect_ignore_glob.append("test_projects*.py")
if lammps() is None or not PROJECTS:
    collect_ignore_glob.append("test_in_lammps.py")  # `make test-engines` says so


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows the nets of edges see, each time that one runs once for each pair of edges."""
    return counted_pairs(monkeypatch)
