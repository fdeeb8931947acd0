"""A converted SevenNet and its calculator in worker processes, of joblib's too, which SevenNet's environment has."""

from __future__ import annotations

import multiprocessing
from typing import Any

import joblib
import pytest
import torch

from benchmarks.networks import sevenn
from tests.clients.checks import carbon
from tpgen.networks.conversion.convert import conversion_report, convert


def calculator() -> Any:
    from sevenn.calculator import SevenNetCalculator

    torch.set_default_dtype(torch.float32)
    model = sevenn(27, torch.float32, hidden="4x0e+2x1e", layers=2).model
    return convert(SevenNetCalculator(model, file_type="model_instance", device="cpu"))


def forces(calculator: Any) -> tuple[int, Any]:
    """How many modules of a calculator compute with tpgen, and the forces on a crystal."""
    atoms = carbon()
    atoms.calc = calculator
    return len(conversion_report(calculator).replaced), atoms.get_forces()


def assert_alike(found: tuple[int, Any], wanted: tuple[int, Any]) -> None:
    assert found[0] == wanted[0] > 0
    assert abs(found[1] - wanted[1]).max() <= 1e-5 * abs(wanted[1]).max()


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_a_pool_of_workers_gets_a_converted_calculator(start: str) -> None:
    converted = calculator()
    with multiprocessing.get_context(start).Pool(1) as pool:
        assert_alike(pool.apply(forces, (converted,)), forces(converted))


def test_workers_of_joblib_get_a_converted_calculator() -> None:
    converted = calculator()
    found = joblib.Parallel(n_jobs=2, backend="loky")(joblib.delayed(forces)(c) for c in (converted, converted))
    for each in found:
        assert_alike(each, forces(converted))


def test_what_joblib_sends_by_value_computes_with_a_converted_calculator() -> None:
    """Functions that are defined on the spot are pickled by cloudpickle, with all that they hold."""
    converted = calculator()
    (found,) = joblib.Parallel(n_jobs=2, backend="loky")([joblib.delayed(lambda: forces(converted))()])
    assert_alike(found, forces(converted))
