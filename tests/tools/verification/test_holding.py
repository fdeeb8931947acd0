"""Tensors that no module of a network has registered, as they are found and copied."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.tools.verification.holding import LOST
from tests.tools.verification.strangers import Layer
from tpgen.tools.verification.holding import find_unregistered_tensors
from tpgen.tools.verification.precision import copy_in_float64


@pytest.mark.parametrize("name", LOST)
def test_a_copy_in_float64_holds_no_other_dtype(name: str) -> None:
    network = LOST[name][1]()
    assert {x.dtype for _, x in find_unregistered_tensors(copy_in_float64(network))} == {torch.float64}
    assert {x.dtype for _, x in find_unregistered_tensors(network)} == {torch.float32}


def test_objects_that_hold_each_other_are_seen_once() -> None:
    network, one = Layer(), SimpleNamespace(table=torch.ones(3))
    one.itself, one.network = one, network
    network.held = [one, one]
    assert [place for place, _ in find_unregistered_tensors(network)] == [("", "held", "0", "table")]
