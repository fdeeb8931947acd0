"""Conversions leave nothing behind once their networks are gone."""

from __future__ import annotations

import gc
import linecache
import resource

import pytest
import torch
from torch.fx import graph_module

from tests.networks.conversion.networks import Layer
from tpgen.networks.conversion.convert import convert, restore


def held() -> tuple[int, int, int]:
    """Objects of tpgen's, and texts of programs, in torch's cache and in that of lines."""
    gc.collect()
    ours = sum(str(type(x).__module__).startswith("tpgen") for x in gc.get_objects())
    return ours, len(graph_module._loader.eval_cache), len(linecache.cache)


def test_conversions_leave_no_objects_and_no_texts() -> None:
    network, counts = Layer(), []
    for count in range(110):
        convert(network)(torch.ones(2, 6), torch.ones(2, 3))
        restore(network)
        if count in (9, 109):
            counts.append(held())
    assert all(after <= before for before, after in zip(*counts, strict=True)), counts


@pytest.mark.slow
def test_ten_thousand_calls_take_no_more_memory_than_the_first() -> None:
    network, peaks = convert(Layer()), []
    x, y = torch.randn(300, 6, requires_grad=True), torch.randn(300, 3)
    for count in range(10_000):
        first = torch.autograd.grad(network(x, y).sin().sum(), x, create_graph=count % 2 == 0)[0]
        if first.requires_grad:
            first.sin().sum().backward()
        if count in (499, 9_999):
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # KiB
    assert peaks[1] - peaks[0] < 2_000
