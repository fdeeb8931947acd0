"""NequIP's functions of lengths: by a kernel where the cutoff is a polynomial of a whole power, else NequIP's own."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from nequip.data import AtomicDataDict as keys
from nequip.nn.embedding import BesselEdgeLengthEncoding, PolynomialCutoff
from torch import Tensor

from tests.clients.checks import counted_lengths
from tpgen.networks.conversion.projects import nequip_edges
from tpgen.networks.conversion.projects.nequip_edges import TpgenBesselEdgeLengthEncoding
from tpgen.networks.conversion.swap import ClassSwap, apply_swaps

NAMES = (keys.EDGE_EMBEDDING_KEY, keys.EDGE_CUTOFF_KEY)


def encoding(power: float = 6, trainable: bool = False) -> BesselEdgeLengthEncoding:
    return BesselEdgeLengthEncoding(
        PolynomialCutoff(power), trainable=trainable, irreps_in={keys.NORM_LENGTH_KEY: "0e"}
    )


def converted(stock: BesselEdgeLengthEncoding, kernels: bool = True) -> TpgenBesselEdgeLengthEncoding:
    module = deepcopy(stock)
    apply_swaps([ClassSwap(module, TpgenBesselEdgeLengthEncoding, "", {"_tpgen_kernels": kernels})])
    return module


def lengths() -> Tensor:
    """Up to beyond the cutoff."""
    return torch.linspace(0.1, 1.1, 30, dtype=torch.float64).unsqueeze(1).requires_grad_()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return counted_lengths(monkeypatch, nequip_edges)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("trainable", [False, True])
def test_values_and_derivatives_are_those_of_nequip(trainable: bool, name: str, calls: list[int]) -> None:
    stock, x = encoding(trainable=trainable), lengths()
    module = converted(stock)
    totals, of = [], []
    for m in (module, stock):
        found = m({keys.NORM_LENGTH_KEY: x})
        assert tuple(found)[1:] == NAMES[::-1]
        totals.append(found[name])
        of.append((x, m.bessel_weights) if trainable and name == NAMES[0] else (x,))
    torch.testing.assert_close(*totals, rtol=1e-12, atol=1e-12)
    totals = [found.cos().sum() for found in totals]
    for _ in range(3):
        slopes = [torch.autograd.grad(t, by, create_graph=True) for t, by in zip(totals, of, strict=True)]
        torch.testing.assert_close(*slopes, rtol=1e-9, atol=1e-9)
        totals = [sum(s.tanh().sum() for s in by) for by in slopes]
    assert calls == [30]


def test_an_edge_of_no_length_has_the_limit() -> None:
    x = torch.zeros(2, 1, dtype=torch.float64, requires_grad=True)
    found, wanted = (m({keys.NORM_LENGTH_KEY: x})[NAMES[0]] for m in (converted(encoding()), encoding()))
    torch.testing.assert_close(found, wanted)
    assert not torch.autograd.grad(found.sum(), x)[0].any()


def test_what_no_kernel_computes_is_nequip_s(calls: list[int]) -> None:
    given, seen = {keys.NORM_LENGTH_KEY: lengths()}, []
    hooked = converted(encoding())
    hooked.cutoff.register_forward_hook(lambda *_: seen.append(1))
    for module in (converted(encoding(5.5)), converted(encoding(), kernels=False), hooked):
        stock = encoding(module.cutoff.p)
        for name in NAMES:
            torch.testing.assert_close(module(dict(given))[name], stock(dict(given))[name])
    assert seen
    assert not calls
