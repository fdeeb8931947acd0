"""Adapters teach `convert` the modules of other projects."""

from __future__ import annotations

import pytest
from torch import nn

from tests.networks.conversion.networks import GRAPHS, Mixed
from tpgen.base.errors import TpgenError
from tpgen.networks.conversion.adapters import ADAPTERS, register_adapter
from tpgen.networks.conversion.convert import convert
from tpgen.networks.conversion.swap import ClassSwap, KeptModule, get_swap_mark


def test_an_adapter_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Mixed()

    def adapter(found: nn.Module, options: dict):
        assert options == GRAPHS
        yield KeptModule(found.full, "the adapter knows better")

    monkeypatch.setattr("tpgen.networks.conversion.adapters.ADAPTERS", ADAPTERS)
    monkeypatch.setitem(ADAPTERS, "elsewhere", "not.imported:ever")
    register_adapter("tests", adapter)
    try:
        with pytest.warns(UserWarning, match=r"'full': the adapter knows better"):
            convert(network, **GRAPHS)
    finally:
        del ADAPTERS["tests"]
    assert get_swap_mark(network.full) is None
    assert get_swap_mark(network.connected) is not None


def _twice(found: nn.Module, options: dict) -> list[ClassSwap]:
    return 2 * [ClassSwap(found, type(found), "nothing")]


def _hiding(found: nn.Module, options: dict) -> list[ClassSwap]:
    return [ClassSwap(found.get_submodule("full"), nn.Module, "nothing", {"training": True})]


@pytest.mark.parametrize(
    "adapter, why",
    [
        (_twice, r"test_adapters._twice swaps '' \(a tests.Mixed\) a second time"),
        (_hiding, r"test_adapters._hiding swaps 'full' \(a e3nn.FullTensorProduct\) and hides its training"),
    ],
)
def test_an_adapter_that_swaps_wrongly_is_named(adapter, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ADAPTERS, "tests", adapter)
    with pytest.raises(TpgenError, match=why):
        convert(Mixed(), **GRAPHS)


def test_an_adapter_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ADAPTERS, "tests", "tests.nowhere:swaps")
    network = Mixed()
    with pytest.warns(UserWarning, match=r"of tests, whose adapter cannot be loaded .*No module named 'tests.nowhere'"):
        convert(network, **GRAPHS)
    assert get_swap_mark(network.full) is not None


def test_an_adapter_without_a_function_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ADAPTERS, "tests", "math")
    network = Mixed()
    with pytest.warns(UserWarning, match=r"cannot be loaded \(math: an adapter is written as module:function\)"):
        convert(network, **GRAPHS)
    assert get_swap_mark(network.full) is not None
