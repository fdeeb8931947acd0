"""NequIP and Allegro in TorchSim, by the wrapper that NequIP ships, converted and as steps, against stock."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from nequip.integrations.torchsim import NequIPTorchSimCalc
from nequip.integrations.utils import basic_transforms

from benchmarks.networks import allegro, nequip
from tests.clients.torchsim_checks import NETWORKS, check_batches, check_relaxed

MODELS = {
    "nequip": partial(nequip, features=4, l_max=1, layers=2),
    "allegro": partial(allegro, features=4, scalars=8, l_max=1),
}


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("name", MODELS)
def test_batches_and_autobatchers_of_torchsim(name: str, kind: str) -> None:
    network = MODELS[name](27, torch.float64).model.eval()
    known = dict(network.metadata)
    names = known["type_names"].split()

    def wrap(network: Any) -> NequIPTorchSimCalc:
        transforms = basic_transforms(known, float(known["r_max"]), names, {n: n for n in names})
        return NequIPTorchSimCalc(network, "cpu", transforms=transforms)

    check_batches(wrap, network, kind, 1e-10)
    check_relaxed(wrap, network, kind, 1e-9)
