"""Converted networks after whatever happens to a network, beside stock ones, to second derivatives."""

from __future__ import annotations

import os

import pytest

from tests.attacks.counts import ATTACKS, SEED
from tests.attacks.lives import live
from tests.attacks.networks import NETWORKS, subject

ATTACKED = ATTACKS if "ATTACKS" in os.environ else 12


@pytest.mark.filterwarnings("ignore")  # hooks and copies warn, as they should
@pytest.mark.parametrize("name", NETWORKS)
def test_a_converted_network_is_the_stock_one(name: str) -> None:
    live(subject(name), f"networks, {name}", ATTACKED, SEED)
