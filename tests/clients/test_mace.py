"""MACE itself: every interaction block, its calculator, dynamics, and its own export."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.clients.checks import check_everything
from tpgen.conversion.convert import conversion_report, convert

from benchmarks.networks import mace  # isort: skip  (after tpgen, which lets torch load the constants of e3nn 0.4.4)

BLOCKS = (
    "RealAgnosticInteractionBlock",
    "RealAgnosticResidualInteractionBlock",
    "RealAgnosticDensityInteractionBlock",
    "RealAgnosticDensityResidualInteractionBlock",
    "RealAgnosticAttResidualInteractionBlock",
    "RealAgnosticResidualNonLinearInteractionBlock",
)


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("block", BLOCKS)
def test_every_block_is_converted_and_equal(block: str) -> None:
    model = check_everything(mace(27, torch.float64, "8x0e+8x1o", block))
    done = {path: r.now for r in conversion_report(model).replaced for path in r.paths}
    for n in range(2):
        assert done[f"interactions.{n}.conv_tp"].startswith("tpgen convolution")
        assert done[f"products.{n}.symmetric_contractions"].startswith("tpgen polynomial")


def test_a_converted_model_scripts() -> None:
    from e3nn.util import jit

    case = mace(27, torch.float64, "8x0e+8x1o")
    wanted = case.run(case.model, False)
    scripted = jit.compile(convert(case.model))
    found = case.run(scripted, False)
    for name, x in wanted.items():
        torch.testing.assert_close(found[name], x, rtol=1e-10, atol=1e-10)


def test_dynamics_conserve_energy() -> None:
    from ase import units
    from ase.build import bulk
    from ase.md.velocitydistribution import MaxwellBoltzmannDistribution
    from ase.md.verlet import VelocityVerlet
    from mace.calculators import MACECalculator

    drifts = []
    for change in (lambda model: model, convert):
        model = change(mace(8, torch.float64, "8x0e+8x1o").model)
        atoms = bulk("C", "diamond", 3.57, cubic=True)
        atoms.calc = MACECalculator(models=[model], device="cpu", default_dtype="float64")
        MaxwellBoltzmannDistribution(atoms, temperature_K=300, rng=__import__("numpy").random.RandomState(0))
        before = atoms.get_total_energy()
        VelocityVerlet(atoms, 0.5 * units.fs).run(20)
        drifts.append(atoms.get_total_energy() - before)
    assert abs(drifts[1] - drifts[0]) < 1e-9
