"""Swaps of classes are made all or none, and undone exactly."""

from __future__ import annotations

import warnings

import pytest
import torch
from e3nn import o3
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from tests.networks.conversion.networks import GRAPHS, VECTORS, Layer, Mixed, Scaled, attributes
from tpgen.base.errors import TpgenError
from tpgen.networks.conversion.adapters import ADAPTERS
from tpgen.networks.conversion.convert import conversion_report, convert, restore
from tpgen.networks.conversion.products import find_product_swap
from tpgen.networks.conversion.swap import ClassSwap, apply_swaps, get_swap_mark


def test_a_swap_that_fails_undoes_those_before_it() -> None:
    network = Mixed()
    before = attributes(network)
    swaps = [find_product_swap(m, GRAPHS) for m in network.modules()]
    good = [s for s in swaps if isinstance(s, ClassSwap)]
    bad = ClassSwap(network.rest, type(network.rest), "nothing", {"training": True})
    with pytest.raises(AttributeError, match=r"has attributes training already"):
        apply_swaps([*good, bad])
    assert attributes(network) == before


class _Particular(o3.FullTensorProduct):
    """Takes no attribute of one name."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "refused":
            raise ValueError("no")
        super().__setattr__(name, value)


def test_a_swap_that_fails_half_way_undoes_itself() -> None:
    module = o3.FullTensorProduct("2x1o", "1o")
    before = attributes(module)
    with pytest.raises(ValueError, match="no"):
        apply_swaps([ClassSwap(module, _Particular, "nothing", {"taken": 1, "refused": 2})])
    assert attributes(module) == before


def test_a_warning_that_is_an_error_leaves_the_network_alone() -> None:
    network = nn.ModuleList([o3.FullTensorProduct("2x1o", "1o"), Scaled(*VECTORS)])
    before = attributes(network)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="1 module stays without tpgen"):
            convert(network, **GRAPHS)
    assert attributes(network) == before


def test_restoring_refuses_what_was_changed_since() -> None:
    network = nn.ModuleList([o3.FullTensorProduct("2x1o", "1o"), o3.FullyConnectedTensorProduct(*VECTORS)])
    x, y = torch.randn(3, 6), torch.randn(3, 3)
    convert(network, **GRAPHS)
    parametrizations.weight_norm(network[1])
    wanted = network[1](x, y)
    for undo in (restore, lambda network: conversion_report(network, prove=(x, y))):
        with pytest.raises(TpgenError, match=r"ParametrizedConverted.*take that off first"):
            undo(network)
    assert get_swap_mark(network[0]) is not None, "nothing is undone"
    assert torch.equal(network[1](x, y), wanted)
    parametrize.remove_parametrizations(network[1], "weight")
    restore(network)
    torch.testing.assert_close(network[1](x, y), wanted)


def test_what_a_swap_no_longer_calls_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubled(Mixed):
        def forward(self, x: Tensor, y: Tensor, w: Tensor) -> Tensor:  # type: ignore[override]
            return 2 * x

    monkeypatch.setitem(
        ADAPTERS, "tests", lambda found, _: [ClassSwap(found, Doubled, "a doubling", covers=("full", "rest.0"))]
    )
    network = convert(Mixed(), **GRAPHS)
    assert next(r.now for r in conversion_report(network).replaced) == "a doubling"
    assert get_swap_mark(network.full) is get_swap_mark(network.rest[0]) is None
    assert get_swap_mark(network.connected) is not None


def test_a_report_that_fails_leaves_the_network_as_it_was() -> None:
    def failing(found: object) -> None:
        raise RuntimeError("no room to write")

    network = Layer()
    before = attributes(network)
    with pytest.raises(RuntimeError, match="no room to write"):
        convert(network, report=failing, **GRAPHS)
    assert attributes(network) == before
