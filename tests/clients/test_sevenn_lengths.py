"""SevenNet's functions of lengths: by a kernel where they are Bessel's times a polynomial, else SevenNet's own."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import sevenn._keys as keys
import torch
from sevenn.nn.edge_embedding import BesselBasis, EdgeEmbedding, PolynomialCutoff, SphericalEncoding, XPLORCutoff
from torch import Tensor, nn

from tests.clients.checks import counted_lengths
from tpgen.networks.conversion.projects import sevennet_edges
from tpgen.networks.conversion.projects.sevennet_edges import TpgenEdgeEmbedding, find_sevennet_edge_swaps
from tpgen.networks.conversion.swap import apply_swaps

NAMES = (keys.EDGE_LENGTH, keys.EDGE_EMBEDDING, keys.EDGE_ATTR)


def embedding(cutoff: nn.Module | None = None, trainable: bool = True) -> EdgeEmbedding:
    basis = BesselBasis(5.0, 8, trainable)
    return EdgeEmbedding(basis, cutoff or PolynomialCutoff(5.0), SphericalEncoding(2)).double()


def converted(stock: EdgeEmbedding, **options: Any) -> EdgeEmbedding:
    holder = nn.ModuleList([deepcopy(stock)])
    apply_swaps(find_sevennet_edge_swaps(holder, options))
    assert type(holder[0]) is TpgenEdgeEmbedding
    return holder[0]


def graph() -> dict[str, Tensor]:
    vectors = torch.nn.functional.normalize(torch.randn(30, 3), dim=1) * torch.linspace(0.5, 5.2, 30).unsqueeze(1)
    return {keys.EDGE_VEC: vectors.requires_grad_(), keys.EDGE_IDX: torch.randint(4, (2, 30))}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return counted_lengths(monkeypatch, sevennet_edges)


@pytest.mark.parametrize("power", [5, 6])
def test_values_and_derivatives_are_those_of_sevennet(power: int, calls: list[int]) -> None:
    stock, given = embedding(PolynomialCutoff(5.0, power)), graph()
    module = converted(stock)
    results = [m(dict(given)) for m in (module, stock)]
    assert results[0].keys() == results[1].keys()
    for name in NAMES:
        torch.testing.assert_close(*(found[name] for found in results), rtol=1e-12, atol=1e-12)
    totals = [found[keys.EDGE_EMBEDDING].cos().sum() for found in results]
    of = [(given[keys.EDGE_VEC], m.basis_function.coeffs) for m in (module, stock)]
    for _ in range(3):
        slopes = [torch.autograd.grad(t, by, create_graph=True) for t, by in zip(totals, of, strict=True)]
        torch.testing.assert_close(*slopes, rtol=1e-8, atol=1e-8)
        totals = [sum(s.tanh().sum() for s in by) for by in slopes]
    assert calls == [30]


def test_what_no_kernel_computes_is_sevennet_s(calls: list[int]) -> None:
    given, seen = graph(), []
    hooked = converted(embedding())
    hooked.cutoff_function.register_forward_hook(lambda *_: seen.append(1))
    others = [
        converted(embedding(XPLORCutoff(5.0, 4.5))),
        converted(embedding(trainable=False)),  # of float32 frequencies, which move to no other dtype
        converted(embedding(), strategy="grouped"),
    ]
    for module in (hooked, *others):
        stock = EdgeEmbedding(module.basis_function, deepcopy(module.cutoff_function), module.spherical)
        for name in NAMES:
            torch.testing.assert_close(module(dict(given))[name], stock(dict(given))[name], rtol=1e-6, atol=1e-9)
    assert seen
    assert not calls


def test_another_version_of_the_embedding_runs_as_it_is(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EdgeEmbedding, "forward", lambda _self, data: {**data, "more": 1})
    given = {**graph(), keys.EDGE_EMBEDDING: torch.ones(30, 8)}
    assert converted(embedding())(given)["more"] == 1
    assert not calls
