"""The adapter for Allegro, on a stand-in of its product; tests/clients runs Allegro itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor, nn

from tests.machine import needs_compiler
from tests.networks.conversion.networks import check_conversion
from tpgen.base.errors import TpgenError
from tpgen.networks.conversion import notices
from tpgen.networks.conversion.convert import conversion_report, convert, restore
from tpgen.networks.conversion.swap import get_swap_mark

ADAPTER = "tpgen.networks.conversion.projects.allegro"
ENDS = ("0e+1o+2e", "0e+1o", "0e+1o+1e+2e")
pytestmark = needs_compiler


class Contracter(nn.Module):
    """What the adapter sees of Allegro's product: dense couplings of all paths, in the order of its loops."""

    def __init__(self, ends: tuple[str, ...] = ENDS, mul: int = 3, coupled: bool = True, factor: float = 1.0) -> None:
        super().__init__()
        a, b, c = self.irreps_in1, self.irreps_in2, self.irreps_out = [o3.Irreps(end) for end in ends]
        self.mul, self.path_channel_coupling = mul, coupled
        self.base_dim1, self.base_dim2, self.base_dim_out = a.dim, b.dim, c.dim
        paths = [
            (i, j, k)
            for k in range(len(c))
            for i in range(len(a))
            for j in range(len(b))
            if c[k].ir in a[i].ir * b[j].ir
        ]
        self.num_paths = len(paths)
        w3j = torch.zeros(len(paths), a.dim, b.dim, c.dim)
        for n, (i, j, k) in enumerate(paths):
            block = o3.wigner_3j(a[i].ir.l, b[j].ir.l, c[k].ir.l) * c[k].ir.dim ** 0.5
            w3j[n, a.slices()[i], b.slices()[j], c.slices()[k]] = factor * block
        self.w3j_is_ij_diagonal = a == b and c.lmax == 0
        if self.w3j_is_ij_diagonal:
            w3j = w3j.diagonal(dim1=1, dim2=2).transpose(1, 2)
        one = len(paths) == 1
        self.register_buffer("w3j", w3j[0] if one else w3j)
        self.weights = nn.Parameter(torch.rand((mul,) * coupled + (len(paths),) * (not one)))

    def forward(self, x1: Tensor, x2: Tensor, idxs: Tensor) -> Tensor:
        x1, x2 = x1.reshape(-1, self.mul, self.base_dim1), x2.reshape(-1, self.mul, self.base_dim2)
        return self._contract_conv(x1, x2, idxs)

    def _contract_conv(self, x1: Tensor, x2: Tensor, idxs: Tensor) -> Tensor:
        u = self.mul if self.path_channel_coupling else 1
        weights, w3j = self.weights.reshape(u, self.num_paths), self.w3j
        w3j = w3j.unsqueeze(0) if self.num_paths == 1 else w3j
        if self.w3j_is_ij_diagonal:
            ww3j = torch.einsum("up,pik->uik", weights, w3j).expand(self.mul, -1, -1)
            return torch.einsum("uik,zui,zui->zuk", ww3j, x1, x2[idxs])
        ww3j = torch.einsum("up,pijk->uijk", weights, w3j).expand(self.mul, -1, -1, -1)
        return torch.einsum("uijk,zui,zuj->zuk", ww3j, x1, x2[idxs])


class Fused(Contracter):
    """Another that somebody's modifier has put there."""


Contracter.__module__ = Fused.__module__ = "allegro.nn._strided"


@pytest.fixture(autouse=True)
def _allegro(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules that the adapter imports."""
    held: dict[str, dict[str, Any]] = {
        "allegro": {}, "allegro.nn": {}, "allegro.nn._strided": {"Contracter": Contracter, "Fused": Fused},
    }  # fmt: skip
    for name, names in held.items():
        module = ModuleType(name)
        module.__dict__.update(names)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, ADAPTER, raising=False)
    yield
    sys.modules.pop(ADAPTER, None)


def arguments(module: Contracter, edges: int = 7) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    x1 = torch.randn(edges, module.mul, module.base_dim1, generator=generator)
    x2 = torch.randn(4, module.mul, module.base_dim2, generator=generator)
    return x1, x2, torch.tensor([0, 0, 3, 1, 1, 2, 0])[:edges]


class Network(nn.Module):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tp = Contracter(*args, **options)

    def forward(self, x1: Tensor, x2: Tensor, idxs: Tensor) -> Tensor:
        return self.tp(x1, x2, idxs)


@pytest.mark.parametrize(
    "ends, coupled",
    [
        (ENDS, True),
        (ENDS, False),
        (("0e+1o", "0e+1o", "0e"), True),
        (("1o", "1o", "1e"), True),
        (("1o", "1o", "1e"), False),
    ],
)
def test_products_are_stock(ends: tuple[str, ...], coupled: bool) -> None:
    make = partial(Network, ends, coupled=coupled)
    report = check_conversion(make, arguments(make().tp), limit=1e-13)
    assert report.replaced[0].now.startswith("tpgen polynomial, kernel")


def test_a_call_compiles() -> None:
    network = convert(Network())
    inputs = arguments(network.tp)
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*inputs), network(*inputs))


def test_no_edges_and_flat_features_are_taken() -> None:
    network = Network()
    x1, x2, idxs = arguments(network.tp)
    wanted = network(x1, x2, idxs)
    convert(network)
    torch.testing.assert_close(network(x1.flatten(1), x2.flatten(1), idxs), wanted)
    assert network(x1[:0], x2, idxs[:0]).shape == (0, 3, 12)


def test_dtypes_without_kernels_run_allegros_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    notices._warn_once.cache_clear()
    network = convert(Network()).half()
    x1, x2, idxs = arguments(network.tp)
    with pytest.warns(UserWarning, match=r"Allegro's own code: kernels take no torch.float16 on cpu"):
        found = network(x1.half(), x2.half(), idxs)
    torch.testing.assert_close(found, restore(network)(x1.half(), x2.half(), idxs))


def test_couplings_of_another_sign_are_not_tpgens() -> None:
    network, other = convert(Network()), Network(factor=-1.0)
    inputs = arguments(network.tp)
    with pytest.warns(UserWarning, match=r"^tp is computed by Allegro's own code .*were loaded.* before you convert"):
        network.load_state_dict(other.state_dict())
    torch.testing.assert_close(network(*inputs), other(*inputs))
    assert conversion_report(network).replaced[0].now.startswith("Allegro's own code")


def test_couplings_that_were_written_to_are_noticed_and_so_is_their_return() -> None:
    network = convert(Network())
    inputs = arguments(network.tp)
    right = network.tp.w3j.clone()
    with torch.no_grad():
        network.tp.w3j.mul_(-1)
    with pytest.warns(UserWarning, match=r"^a product is computed by Allegro's own code .* were written to"):
        found = network(*inputs)
    torch.testing.assert_close(found, restore(deepcopy(network))(*inputs))
    assert conversion_report(network).replaced[0].now.startswith("Allegro's own code")
    network.tp.w3j.copy_(right)
    torch.testing.assert_close(network(*inputs), -found)
    assert conversion_report(network).replaced[0].now.startswith("tpgen polynomial, kernel")


def test_rounded_couplings_are_still_tpgens() -> None:
    network = convert(Network())
    network.load_state_dict(network.state_dict())
    network.bfloat16()
    inputs = [x.bfloat16() if x.is_floating_point() else x for x in arguments(network.tp)]
    network(*inputs)
    assert conversion_report(network).replaced[0].now.startswith("tpgen polynomial, kernel")


def patched() -> nn.Module:
    network = Network()
    network.tp.forward = lambda x1, x2, idxs: x1  # type: ignore[method-assign]
    return network


def fused() -> nn.Module:
    network = Network()
    network.tp = Fused()
    return network


@pytest.mark.parametrize(
    "make, options, why",
    [
        (
            lambda: Network(factor=-1.0),
            {},
            "of couplings that tpgen does not generate: instructions or a normalisation",
        ),
        (lambda: Network().half(), {}, "without a kernel: kernels compute in float32, float64 or bfloat16"),
        (lambda: Network().to("meta"), {}, "without a kernel: kernels run on .* not on meta"),
        (lambda: Network().bfloat16(), {}, r"couplings rounded to bfloat16 \(convert it in float32, then cast\)"),
        (Network, {"strategy": "grouped"}, "for kernels alone, and strategy='grouped' was asked for"),
        (patched, {}, "its forward is replaced on the instance"),
        (fused, {}, "a allegro.Fused, which another modifier has put there"),
    ],
)
def test_what_stays_is_named(make: Any, options: dict, why: str) -> None:
    network = make()
    with pytest.raises(TpgenError, match=why):
        convert(network, **options)
    assert get_swap_mark(network.tp) is None
