"""NequIP itself: its model, and the modifier that it finds by itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from benchmarks.networks import nequip
from tests.clients.checks import assert_same, check_everything, results


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_a_model_is_converted_and_equal() -> None:
    check_everything(nequip(27, torch.float64, features=4))


def test_the_modifier_is_found_by_name() -> None:
    from nequip.model.modify_utils import get_all_modifiers, modify

    case = nequip(27, torch.float64, features=4)
    wanted = results(case, case.model)
    assert "enable_tpgen" in get_all_modifiers(case.model)
    model = modify(case.model, [{"modifier": "enable_tpgen"}])
    assert "TpgenTensorProductScatter" in {type(m).__name__ for m in model.modules()}
    assert_same(results(case, model), wanted)
