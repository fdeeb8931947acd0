"""NequIP as one program."""

from __future__ import annotations

import pytest
import torch
from nequip.data import AtomicDataDict as keys

from benchmarks.networks import nequip
from tests.clients.checks import check_neutral_edges, check_step, check_training
from tests.clients.served_checks import check_served

OUTPUTS = [keys.TOTAL_ENERGY_KEY, keys.FORCE_KEY, keys.STRESS_KEY]


def test_energies_forces_and_stress_are_those_of_stock_at_other_sizes() -> None:
    cases = [nequip(atoms, torch.float64, features=4, l_max=1, layers=2) for atoms in (27, 36, 27)]
    cases[2].batch[keys.ATOM_TYPE_KEY] = torch.ones_like(cases[2].batch[keys.ATOM_TYPE_KEY])  # of one element
    check_step(*cases, outputs=OUTPUTS, finds=["groups", "pairs"])


def test_gradients_of_a_loss_of_all_three_are_those_of_stock() -> None:
    cases = (nequip(atoms, torch.float64, features=4, l_max=1, layers=1) for atoms in (27, 36))
    check_training(*cases, outputs=OUTPUTS)


def test_a_converted_model_takes_a_program_by_itself() -> None:
    check_served(*(nequip(atoms, torch.float64, features=4, l_max=1, layers=2) for atoms in (27, 36)))


def test_edges_beyond_the_cutoff_change_no_result_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    check_neutral_edges(
        *(nequip(atoms, torch.float64, features=4, l_max=1, layers=2) for atoms in (27, 36)), monkeypatch=monkeypatch
    )
