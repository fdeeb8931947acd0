"""What each project keeps once it is converted: in float32, proven, by splines, in dynamics, and in its report."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from tests.clients.checks import ROUNDED, assert_same, carbon, nequip_calculator, results
from tests.clients.projects import KNOWN, PROJECTS, WITH_PAIRS, every_project
from tpgen.base.errors import TpgenError
from tpgen.networks.conversion.convert import conversion_report, convert, restore

# wider models
WIDE = {
    "mace": [{"hidden": hidden} for hidden in ("16x0e", "8x0e+8x1o", "8x0e+8x1o+8x2e")],
    "nequip": [{"features": 8, "l_max": 2, "layers": 3}],
    "allegro": [{"features": 8, "scalars": 16, "l_max": 2}],
    "sevenn": [{"hidden": "16x0e+8x1e+4x2e", "layers": 5}],
}


@pytest.mark.parametrize(
    ("project", "options"), [(name, options) for name in PROJECTS for options in WIDE[name]], ids=str
)
def test_float32_is_within_its_rounding(project: str, options: dict[str, Any]) -> None:
    torch.set_default_dtype(torch.float32)
    case = PROJECTS[project].make(27, torch.float32, **options)
    assert {p.dtype for p in case.model.parameters()} == {torch.float32}
    found, wanted = (case.run(network, False) for network in (convert(deepcopy(case.model)), case.model))
    for name, x in wanted.items():
        assert (found[name] - x).abs().max() <= ROUNDED * x.abs().max(), name


AS_DICTS = [name for name in PROJECTS if name in ("nequip", "sevenn")]  # their batches are all arguments


@pytest.mark.parametrize("project", AS_DICTS)
def test_a_model_built_in_float32_is_measured_and_proven(project: str) -> None:
    torch.set_default_dtype(torch.float32)
    case, reports = PROJECTS[project].make(27, torch.float32), []
    inputs = (dict(case.batch),)
    convert(case.model.train(), measure=inputs, prove=inputs, report=reports.append)
    assert reports[0].proof.holds
    assert [t.task for t in reports[0].times.tasks] == ["call", "call and gradients"]
    assert {p.dtype for p in case.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("project", AS_DICTS)
def test_a_calculators_model_in_evaluation_is_proven(project: str) -> None:
    case, reports = PROJECTS[project].make(27, torch.float64), []
    convert(case.model.eval().requires_grad_(False), prove=(dict(case.batch),), report=reports.append)
    assert reports[0].proof.holds
    assert "derivatives are those in training" in str(reports[0].proof)
    assert not case.model.training


@pytest.mark.parametrize("project", WITH_PAIRS)
def test_reports_say_what_computes(project: str) -> None:
    model = PROJECTS[project].make(8, torch.float64).model
    for strategy, told in (("auto", True), ("grouped", False)):
        report = str(conversion_report(convert(deepcopy(model), strategy=strategy)))
        assert ("tpgen kernel (Bessel functions" in report) == told
        assert "once for each pair" in report


@pytest.mark.parametrize("project", WITH_PAIRS)
def test_weights_by_splines_of_lengths(project: str) -> None:
    """Energy, forces and stress nearly stock's, new numbers when weights change, no training."""
    case = PROJECTS[project].make(27, torch.float64)
    stock, model = deepcopy(case.model).eval(), convert(case.model, radial="spline").eval()
    for factor in (1.0, 1.1):
        with torch.no_grad():
            for p in (*stock.parameters(), *model.parameters()):
                p.data.mul_(factor)  # which torch does not count
        wanted, found = case.run(stock, False), case.run(model, False)
        for name, x in wanted.items():
            assert 0 < (found[name] - x).abs().max() <= 1e-5 * x.abs().max(), name
    told = [row.now for row in conversion_report(model).replaced if "cubic splines of lengths, " in row.now]
    assert told
    assert all("slopes within" in now for now in told)
    with pytest.raises(TpgenError, match="radial='spline' is for inference: it has values and forces, and no"):
        case.run(model.train(), True)["forces"].square().sum().backward()
    assert_same(results(case, restore(model)), results(case, stock.train()))


def _of_mace(model: nn.Module) -> Any:
    from mace.calculators import MACECalculator

    return MACECalculator(models=[model], device="cpu", default_dtype="float64")


def _of_sevenn(model: nn.Module) -> Any:
    from sevenn.calculator import SevenNetCalculator

    return SevenNetCalculator(model, file_type="model_instance", device="cpu")


CALCULATORS: dict[str, Callable[[nn.Module], Any]] = {
    "mace": _of_mace, "nequip": nequip_calculator, "allegro": nequip_calculator, "sevenn": _of_sevenn,
}  # fmt: skip
assert CALCULATORS.keys() == KNOWN.keys()


@every_project
def test_dynamics_conserve_energy_and_move_the_atoms_as_with_stock(project: str) -> None:
    """SevenNet computes in float32, in which trajectories part: of these only energy is asked."""
    rounded = project == "sevenn"
    dtype = torch.float32 if rounded else torch.float64
    torch.set_default_dtype(dtype)
    model = PROJECTS[project].make(27, dtype).model
    stock, converted = (_total_energies(CALCULATORS[project](m)) for m in (model, convert(deepcopy(model))))
    drift = max(stock) - min(stock)
    assert drift > 0
    assert max(converted) - min(converted) < 1.5 * drift
    if not rounded:
        assert max(abs(a - b) for a, b in zip(stock, converted, strict=True)) < 1e-6 * drift + 1e-10


def _total_energies(calculator: Any, steps: int = 200) -> list[float]:
    import numpy
    from ase import units
    from ase.md.velocitydistribution import MaxwellBoltzmannDistribution
    from ase.md.verlet import VelocityVerlet

    atoms = carbon()
    atoms.calc = calculator
    MaxwellBoltzmannDistribution(atoms, temperature_K=300, rng=numpy.random.RandomState(0))
    found = []
    dynamics = VelocityVerlet(atoms, 0.5 * units.fs)
    dynamics.attach(lambda: found.append(atoms.get_total_energy()))
    dynamics.run(steps)
    return found
