"""Conversions leave nothing behind once their networks are gone."""

from __future__ import annotations

import gc
import linecache

import torch
from torch.fx import graph_module

from tests.conversion.networks import Layer
from tpgen.conversion.convert import convert, restore


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
    assert counts[0] == counts[1]
