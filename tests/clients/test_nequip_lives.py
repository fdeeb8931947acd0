"""NequIP's models after whatever happens to a network, beside stock ones."""

from __future__ import annotations

import pytest

from benchmarks.networks import nequip
from tests.clients.lives import check_lives

OPTIONS = {"features": (1, 2, 5), "l_max": (1, 2), "layers": (1, 2)}


@pytest.mark.filterwarnings("ignore")
def test_a_converted_model_is_the_stock_one() -> None:
    never = ("float", "torch.compile", "compile_step", "compile_training")  # a model casts to its own dtype
    check_lives("NequIP", nequip, OPTIONS, ("total_energy", "forces", "stress"), never)
