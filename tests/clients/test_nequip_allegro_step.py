"""Allegro as one program."""

from __future__ import annotations

import warnings
from copy import deepcopy

import torch
from nequip.data import AtomicDataDict as keys

from benchmarks.networks import Case, allegro
from tests.clients.checks import check_step, check_training
from tpgen.networks.conversion.convert import convert
from tpgen.networks.step import compile_step

OUTPUTS = [keys.TOTAL_ENERGY_KEY, keys.FORCE_KEY, keys.STRESS_KEY]


def small(atoms: int) -> Case:
    return allegro(atoms, torch.float64, features=4, scalars=8, l_max=1)


def test_energies_forces_and_stress_are_those_of_stock_at_other_sizes() -> None:
    check_step(small(27), small(36), outputs=OUTPUTS, finds=())


def test_gradients_of_a_loss_of_all_three_are_those_of_stock() -> None:
    check_training(small(27), small(36), outputs=OUTPUTS)


def test_couplings_that_were_written_to_are_in_the_program() -> None:
    case = small(27)
    stock, model = case.model.eval(), convert(deepcopy(case.model)).eval()
    for network in (stock, model):
        for name, x in network.named_buffers():
            if name.endswith("w3j"):
                x.mul_(1.5)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is computed by Allegro's own code from now on")
        found = case.run(compile_step(model, outputs=OUTPUTS), False)
    for name, x in case.run(stock, False).items():
        assert (found[name] - x).abs().max() <= 1e-12 * x.abs().max(), name
