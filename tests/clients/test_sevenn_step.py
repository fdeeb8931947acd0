"""SevenNet as one program."""

from __future__ import annotations

import pytest
import sevenn._keys as keys
import torch

from benchmarks.networks import sevenn
from tests.clients.checks import ROUNDED, check_neutral_edges, check_step, check_training
from tests.clients.served_checks import check_served

OUTPUTS = ["inferred_total_energy", "inferred_force", "inferred_stress"]


def test_energies_forces_and_stress_are_those_of_stock_at_other_sizes() -> None:
    check_step(*(sevenn(atoms, torch.float64, "8x0e+4x1e") for atoms in (27, 36)), outputs=OUTPUTS)


def test_gradients_of_a_loss_of_all_three_are_those_of_stock() -> None:
    cases = (sevenn(atoms, torch.float64, "8x0e+4x1e") for atoms in (27, 36))
    check_training(*cases, outputs=OUTPUTS)


def test_a_converted_model_takes_a_program_by_itself() -> None:
    check_served(*(sevenn(atoms, torch.float32, "8x0e+4x1e") for atoms in (27, 36)), limit=1e-5)


def test_the_network_serves_a_model_with_a_hook() -> None:
    """In float64 the case's one-hot rows become float64 by a hook."""
    check_served(*(sevenn(atoms, torch.float64, "8x0e+4x1e") for atoms in (27, 36)), served=False)


@pytest.mark.parametrize(
    "cutoff", [{"cutoff_function_name": "XPLOR", "cutoff_on": 4.0}, None], ids=["XPLOR", "polynomial"]
)
def test_a_program_on_a_gpu_adds_no_edges(cutoff: dict | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """SevenNet's cutoffs grow again beyond the cutoff: its list of edges ends them."""
    options = {} if cutoff is None else {keys.CUTOFF_FUNCTION: cutoff}
    cases = (sevenn(atoms, torch.float32, "8x0e+4x1e", **options) for atoms in (27, 36))
    check_neutral_edges(*cases, monkeypatch=monkeypatch, limit=ROUNDED, neutral=False)
