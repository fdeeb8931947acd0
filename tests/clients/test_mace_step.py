"""MACE as one program."""

from __future__ import annotations

import torch

from tests.clients.checks import check_step, check_training

from benchmarks.networks import mace  # isort: skip  (after tpgen, which lets torch load the constants of e3nn 0.4.4)


def test_energies_forces_and_stress_are_those_of_stock_at_other_sizes() -> None:
    check_step(*(mace(atoms, torch.float64, "8x0e+8x1o") for atoms in (27, 36)), outputs=["energy", "forces", "stress"])


def test_gradients_of_a_loss_of_all_three_are_those_of_stock() -> None:
    cases = (mace(atoms, torch.float64, "8x0e+8x1o") for atoms in (27, 36))
    check_training(*cases, outputs=["energy", "forces", "stress"])
