"""MACE as one program."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.clients.checks import check_neutral_edges, check_step, check_training
from tests.clients.served_checks import check_served

from benchmarks.networks import mace  # isort: skip  (after tpgen, which lets torch load the constants of e3nn 0.4.4)


def test_energies_forces_and_stress_are_those_of_stock_at_other_sizes() -> None:
    cases = [mace(atoms, torch.float64, "8x0e+8x1o") for atoms in (27, 36, 27, 27)]
    for case, change in zip(cases[2:], (one_element, mixed), strict=True):
        case.batch["node_attrs"] = change(case.batch["node_attrs"])
    check_step(*cases, outputs=["energy", "forces", "stress"], finds=["groups", "pairs"], without=1)


def one_element(rows: Tensor) -> Tensor:
    return rows[:1].expand_as(rows)


def mixed(rows: Tensor) -> Tensor:
    """Rows that are no elements, which MACE takes all the same: the network computes them."""
    return (rows + rows.roll(1, 0)) / 2


def test_gradients_of_a_loss_of_all_three_are_those_of_stock() -> None:
    cases = (mace(atoms, torch.float64, "8x0e+8x1o") for atoms in (27, 36))
    check_training(*cases, outputs=["energy", "forces", "stress"])


def test_a_converted_model_takes_a_program_by_itself() -> None:
    check_served(*(mace(atoms, torch.float64, "8x0e+8x1o") for atoms in (27, 36)))


def test_edges_beyond_the_cutoff_change_no_result_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    check_neutral_edges(*(mace(atoms, torch.float64, "8x0e+8x1o") for atoms in (27, 36)), monkeypatch=monkeypatch)
