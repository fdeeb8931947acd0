"""SevenNet as one program."""

from __future__ import annotations

import torch

from benchmarks.networks import sevenn
from tests.clients.checks import check_step, check_training
from tests.clients.served_checks import check_served

OUTPUTS = ["inferred_total_energy", "inferred_force", "inferred_stress"]


def test_energies_forces_and_stress_are_those_of_stock_at_other_sizes() -> None:
    check_step(*(sevenn(atoms, torch.float64, "8x0e+4x1e") for atoms in (27, 36)), outputs=OUTPUTS)


def test_gradients_of_a_loss_of_all_three_are_those_of_stock() -> None:
    cases = (sevenn(atoms, torch.float64, "8x0e+4x1e") for atoms in (27, 36))
    check_training(*cases, outputs=OUTPUTS)


def test_a_model_without_a_program_of_its_own_computes_the_same() -> None:
    check_served(*(sevenn(atoms, torch.float64, "8x0e+4x1e") for atoms in (27, 36)), served=False)
