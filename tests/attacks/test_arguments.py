"""Every argument of every class of e3nn's that `convert` takes, at random: what stock gives, in its shape."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import pytest
import torch
from e3nn import nn as e3nn_nn
from e3nn import o3
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tpgen
from tests.attacks.counts import ATTACKS, CALLS, count
from tests.attacks.products import plans
from tpgen.base.errors import TpgenError

Draw = st.DrawFn
Arguments = st.SearchStrategy[list[Any]]
Made = tuple[nn.Module, Arguments]  # a module of e3nn's, and what it may be called with
BATCHES = st.sampled_from([(), (3,), (1,), (0,), (2, 3), (2, 1, 2)])
NORMS, PATHS = st.sampled_from([None, "component", "norm", "none"]), st.sampled_from([None, "element", "path", "none"])
IRREPS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(["0e", "0o", "1o", "1e", "2e"])), min_size=1, max_size=3
).map(o3.Irreps)
ACTS: Sequence[Callable[[Tensor], Tensor]] = (torch.tanh, torch.relu, nn.functional.silu, torch.sigmoid, torch.abs)
STRATEGIES = st.sampled_from(["auto", "grouped", "unrolled", "einsum"])
REFUSED = (  # what stock says of arguments that it does not take
    AssertionError, RuntimeError, IndexError, ZeroDivisionError, ValueError, NotImplementedError, StopIteration,
)  # fmt: skip


def tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def weights(draw: Draw, product: Any, batch: tuple[int, ...], pair: tuple[int, ...] = ()) -> list[Any]:
    """None, or a tensor, as a call of a product or layer may have it."""
    if product.internal_weights and draw(st.booleans()):
        return [None]
    rows = () if product.shared_weights else batch
    return [tensor(*rows, *pair, product.weight_numel, seed=3)]


@st.composite
def products(draw: Draw) -> Made:
    plan = draw(plans())
    shared = draw(st.booleans())
    own = draw(st.booleans()) if shared else draw(st.sampled_from([None, False]))
    variances = [draw(st.none() | st.just([draw(st.sampled_from([0.5, 1.0, 2.0])) for _ in irreps]))
                 for irreps in (plan.irreps_in1, plan.irreps_in2, plan.irreps_out)]  # fmt: skip
    made = o3.TensorProduct(
        plan.irreps_in1, plan.irreps_in2, plan.irreps_out, [(*i[:5], abs(i[5])) for i in plan.instructions], *variances,
        irrep_normalization=draw(NORMS), path_normalization=draw(PATHS), internal_weights=own, shared_weights=shared,
        compile_right=draw(st.booleans()), _specialized_code=draw(st.sampled_from([None, False])),
    )  # fmt: skip
    return two(made)


@st.composite
def of_two(draw: Draw, product: Any) -> list[Any]:
    batch = draw(BATCHES)
    other = draw(st.sampled_from([batch, (1,) * len(batch)]))
    first, second = tensor(*batch, product.irreps_in1.dim), tensor(*other, product.irreps_in2.dim, seed=1)
    return [first, second, *weights(draw, product, batch)]


def of_one(*dims: int, batches: st.SearchStrategy[tuple[int, ...]] = BATCHES) -> Arguments:
    return batches.map(lambda batch: [tensor(*batch, *dims)])


def two(product: Any) -> Made:
    return product, of_two(product)


@st.composite
def connected(draw: Draw) -> Made:
    ends = [draw(IRREPS) for _ in range(3)]
    return two(o3.FullyConnectedTensorProduct(
        *ends, irrep_normalization=draw(NORMS), path_normalization=draw(PATHS),
        shared_weights=draw(st.sampled_from([None, True, False])),
    ))  # fmt: skip


@st.composite
def full(draw: Draw) -> Made:
    kept = draw(st.sampled_from([None, ["0e", "1o", "1e"]]))
    return two(o3.FullTensorProduct(draw(IRREPS), draw(IRREPS), kept, draw(NORMS)))


@st.composite
def elementwise(draw: Draw) -> Made:
    ends = draw(IRREPS), draw(IRREPS)
    copies = min(irreps.num_irreps for irreps in ends)
    ends = tuple(o3.Irreps([ir for mul, ir in irreps for _ in range(mul)][:copies]) for irreps in ends)
    return two(o3.ElementwiseTensorProduct(*ends, draw(st.sampled_from([None, ["0e", "1o"]])), draw(NORMS)))


@st.composite
def squares(draw: Draw) -> Made:
    irreps, out = draw(IRREPS), draw(st.none() | IRREPS)
    kept = draw(st.sampled_from([None, ["0e", "2e", "1e"]])) if out is None else None
    return (made := o3.TensorSquare(irreps, out, kept, draw(NORMS))), of_square(made)


@st.composite
def of_square(draw: Draw, square: Any) -> list[Any]:
    batch = draw(BATCHES)
    return [tensor(*batch, square.irreps_in.dim), *weights(draw, square, batch)]


@st.composite
def linears(draw: Draw) -> Made:
    ends = (first := draw(IRREPS)), draw(st.permutations(first).map(o3.Irreps) | IRREPS)
    pair = draw(st.sampled_from([(), (1, 1), (1, 2), (2, 1), (2, 3)]))
    shared = draw(st.sampled_from([None, True, False]))
    own = draw(st.sampled_from([None, True, False])) if shared else None if shared is None else False
    pairs = [(i, k) for i, a in enumerate(ends[0]) for k, b in enumerate(ends[1]) if a.ir == b.ir]
    biases = draw(st.booleans() | st.just([ir.is_scalar() and mul > 1 for mul, ir in ends[1]]))
    made = o3.Linear(
        *ends, f_in=pair[0] if pair else None, f_out=pair[1] if pair else None, internal_weights=own,
        shared_weights=shared, instructions=draw(st.none() | st.just(pairs[:2] + pairs[:1])), biases=biases,
        path_normalization=draw(st.sampled_from(["element", "path"])),
    )  # fmt: skip
    return made, of_linear(made, pair)


@st.composite
def of_linear(draw: Draw, layer: Any, pair: tuple[int, ...]) -> list[Any]:
    batch = draw(BATCHES)
    given_ = [tensor(*batch, *pair[:1], layer.irreps_in.dim), *weights(draw, layer, batch, pair)]
    rows = () if layer.shared_weights else batch
    bias = None if layer.internal_weights else tensor(*rows, *pair[1:], layer.bias_numel, seed=4)
    return [*given_, bias]


@st.composite
def harmonics(draw: Draw) -> Made:
    odd = draw(st.booleans())
    degrees = draw(st.sampled_from([0, 2, [1], [0, 1, 2], [2, 0, 3], [1, 4], "irreps", "twice"]))
    named = {
        "irreps": o3.Irreps.spherical_harmonics(3, -1 if odd else 1),
        "twice": o3.Irreps("1o+1o" if odd else "1e+1e"),
    }
    made = o3.SphericalHarmonics(
        named.get(degrees, degrees) if isinstance(degrees, str) else degrees, draw(st.booleans()),
        draw(st.sampled_from(["integral", "component", "norm"])), irreps_in="1o" if odd else "1e",
    )  # fmt: skip
    return made, of_one(3)


@st.composite
def gates(draw: Draw) -> Made:
    scalars = o3.Irreps(
        [(draw(st.integers(0, 3)), draw(st.sampled_from(["0e", "0o"]))) for _ in range(draw(st.integers(0, 2)))]
    )
    gated = o3.Irreps(
        [
            (draw(st.integers(1, 3)), draw(st.sampled_from(["1o", "1e", "2e", "0o"])))
            for _ in range(draw(st.integers(0, 2)))
        ]
    )
    gating = o3.Irreps([(mul, "0e") for mul, _ in gated])
    odd = st.sampled_from([torch.tanh, torch.abs])  # an odd scalar takes none but odd and even functions
    acts = [draw(odd if ir.p < 0 else st.sampled_from(ACTS)) for _, ir in scalars]
    made = e3nn_nn.Gate(scalars, acts, gating, [draw(st.sampled_from(ACTS)) for _ in gating], gated)
    return made, of_one(made.irreps_in.dim)


@st.composite
def nets(draw: Draw) -> Made:
    sizes = draw(st.lists(st.integers(1, 9), min_size=2, max_size=4))
    made = e3nn_nn.FullyConnectedNet(
        sizes, draw(st.none() | st.sampled_from(ACTS)), variance_in=draw(st.sampled_from([1, 0.3])),
        variance_out=draw(st.sampled_from([1, 2.0])), out_act=draw(st.booleans()),
    )  # fmt: skip
    return made, of_one(sizes[0], batches=BATCHES.filter(bool))


CLASSES = {
    "TensorProduct": products,
    "FullyConnectedTensorProduct": connected,
    "FullTensorProduct": full,
    "ElementwiseTensorProduct": elementwise,
    "TensorSquare": squares,
    "Linear": linears,
    "SphericalHarmonics": harmonics,
    "Gate": gates,
    "FullyConnectedNet": nets,
}


def derived(module: nn.Module, arguments: list[Any]) -> list[Tensor]:
    """A result, and the gradients of its sines."""
    leaves = [x.detach().clone().requires_grad_() if isinstance(x, Tensor) else x for x in arguments]
    found = module(*leaves)
    taken = [x for x in (*leaves, *module.parameters()) if isinstance(x, Tensor)]
    if not found.requires_grad:
        return [found, *map(torch.zeros_like, taken)]
    return [found, *torch.autograd.grad(found.sin().sum(), taken, allow_unused=True, materialize_grads=True)]


@pytest.mark.parametrize("name", CLASSES)
@settings(max_examples=max(1, ATTACKS // CALLS))
@given(data=st.data(), strategy=STRATEGIES)
def test_results_are_those_of_stock_in_their_shape(name: str, data: st.DataObject, strategy: str) -> None:
    torch.manual_seed(0)
    try:
        stock, calls = data.draw(CLASSES[name]())
        stock, converted = stock.double(), None
    except REFUSED:
        return
    compared = 0
    for _ in range(CALLS):
        arguments = data.draw(calls)
        try:
            wanted = derived(stock, arguments)
        except REFUSED:
            continue
        try:
            converted = converted or tpgen.convert(copy.deepcopy(stock), strategy=strategy)
        except TpgenError:
            return  # nothing in it can be converted
        assert_alike(derived(converted, arguments), wanted)
        compared += 1
    count(f"layers, {name}", compared)


def assert_alike(found: list[Tensor], wanted: list[Tensor]) -> None:
    assert [x.shape for x in found] == [x.shape for x in wanted]
    for got, want in zip(found, wanted, strict=True):
        scale = max(1.0, want.abs().max().item()) if want.numel() else 1.0
        torch.testing.assert_close(got, want, rtol=0.0, atol=2e-6 * scale)  # e3nn's couplings were rounded to float32


@pytest.fixture(autouse=True)
def moments_of_functions_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each function has the same: e3nn means over a million numbers for each."""
    module = import_module("e3nn.math._normalize_activation")  # which has a function's name
    monkeypatch.setattr(module, "moment", cache(module.moment))
