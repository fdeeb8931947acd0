"""Convolutions by polynomials: rows found and summed by the ends of edges, against the slow definition."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import tpgen
from tests.cases import derivatives
from tests.machine import KERNEL
from tests.polynomials import slow
from tpgen.base.errors import InputError, OptionError, PlanError
from tpgen.compiler import chunks
from tpgen.nn.edges import EdgeOrder
from tpgen.nn.polynomial import Polynomial

X, Y, NODES, EDGES = "2x0e + 2x1o", "0e + 1o", 6, 40
TENSORS = {"x": X, "y": Y, "t": X}
TERMS = [("x", "x", "y"), ("x", "t")]
ENDS = {"x": "src", "t": "dst", "out": "dst"}
STRATEGIES = pytest.mark.parametrize("strategy", [KERNEL, "einsum", "unrolled"])


def convolution(strategy: str = "einsum", **options: Any) -> Polynomial:
    return Polynomial(TENSORS, X, TERMS, edges=ENDS, strategy=strategy, **options).double()


def operands() -> tuple[list[Tensor], Tensor, Tensor]:
    """Features, harmonics and features again; node 0 has no edges, and some edges come twice."""
    shapes = ((NODES, 8), (EDGES, 4), (NODES, 8))
    src, dst = torch.randint(1, NODES, (2, EDGES))
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes], src, dst


@pytest.mark.parametrize("limit", [None, 20_000])
@pytest.mark.parametrize("weights", ["one set", "each edge", "element"])
@STRATEGIES
def test_it_is_the_definition(strategy: str, weights: str, limit: int | None) -> None:
    by_element = {"weights": "element", "num_elements": 3} if weights == "element" else {"weights": "given"}
    conv = convolution(strategy, max_bytes=limit, **by_element)
    (x, y, t), src, dst = operands()
    index = torch.randint(3, (EDGES,)) if weights == "element" else None
    own = list(conv.weights.values())
    if index is None:
        first = 1 if weights == "one set" else EDGES
        own = [torch.randn(first, *s, dtype=torch.float64, requires_grad=True) for s in conv.weight_shapes]
    found = conv(x, y, t, index=index, weights=None if index is not None else own, edge_src=src, edge_dst=dst)
    messages = slow(conv.plan, [x[src], y, t[dst], *own], index)
    wanted = messages.new_zeros(NODES, 8).index_add(0, dst, messages)
    inputs = [x, y, t, *own]
    torch.testing.assert_close(*(derivatives(out, inputs) for out in (found, wanted)), rtol=1e-10, atol=1e-10)
    if limit is not None:
        number = conv._runners["forward"]._number
        assert [key for key in chunks._measured if key[0] == number]


def test_results_of_edges_and_of_other_nodes() -> None:
    plain = Polynomial(TENSORS, X, TERMS, strategy="einsum").double()
    (x, y, t), src, dst = operands()
    rows = plain(x[src], y, t[dst])
    for ends, into, given in (
        ({"x": "src", "t": "dst"}, None, {}),  # results stay with their edges
        ({**ENDS, "out": "src"}, src, {"num_nodes": 9}),
    ):
        conv = Polynomial(TENSORS, X, TERMS, edges=ends, strategy="einsum").double()
        conv.load_state_dict(plain.state_dict())
        wanted = rows if into is None else rows.new_zeros(9, 8).index_add(0, into, rows)
        torch.testing.assert_close(conv(x, y, t, edge_src=src, edge_dst=dst, **given), wanted)
    gathered = Polynomial({"x": X}, X, [("x", "x")], edges={"x": "src"}, strategy="einsum").double()
    assert gathered(x, edge_src=src.int()).shape == (EDGES, 8)


@STRATEGIES
def test_sorted_edges_copies_and_programs(strategy: str) -> None:
    conv = convolution(strategy)
    (x, y, t), src, dst = operands()
    wanted = conv(x, y, t, edge_src=src, edge_dst=dst)
    order = EdgeOrder.of(src, dst, NODES)
    torch.testing.assert_close(conv(x, order.sort(y), t, edge_src=order), wanted)
    for other in (copy.deepcopy(conv), pickle.loads(pickle.dumps(conv))):
        torch.testing.assert_close(other(x, y, t, edge_src=src, edge_dst=dst), wanted)
    assert "index_add" in conv.graph.code
    rows, nodes = torch.export.Dim("rows"), torch.export.Dim("nodes")
    shapes = {"tensors": ({0: nodes}, {0: rows}, {0: nodes}), "edge_src": {0: rows}, "edge_dst": {0: rows}}
    given = [z.detach() for z in (x, y, t)]
    program = torch.export.export(conv, tuple(given), {"edge_src": src, "edge_dst": dst}, dynamic_shapes=shapes)
    given = [z[: len(z) - 1] for z in given]
    ends = {"edge_src": src[:-1] - 1, "edge_dst": dst[:-1] - 1}
    torch.testing.assert_close(program.module()(*given, **ends), conv(*given, **ends))


def test_it_obeys_its_laws() -> None:
    report = tpgen.verify(convolution(), only=["definition", "permutation", "equivariant", "first order"])
    assert report.passed


def test_memory_of_edges() -> None:
    estimates = [convolution("einsum", max_bytes=m).memory(4000, nodes=10) for m in (None, 100_000)]
    assert estimates[1].forward <= estimates[1].result + 100_000 < estimates[0].forward
    assert estimates[1].kept == 0


def test_what_is_no_convolution_is_said() -> None:
    (x, y, t), src, dst = operands()
    conv = convolution()
    for edges, message in (
        ({"z": "src"}, "edges: unknown tensor 'z'"),
        ({"x": "source"}, "edges: x is read at an end of edges: unknown end 'source'.*known ends: src, dst"),
        ("src", "edges: must map names of tensors to ends"),
    ):
        with pytest.raises(PlanError, match=message):
            Polynomial(TENSORS, X, TERMS, edges=edges)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="a convolution has the argument edge_src: give the tensor another name"):
        Polynomial({"edge_src": X}, X, [("edge_src",)], edges={"edge_src": "src"})
    with pytest.raises(InputError, match=r"edge_dst:.*int64 or int32, got NoneType"):
        conv(x, y, t, edge_src=src)
    with pytest.raises(InputError, match=r"edge_dst:.*40.*\(39,\)"):
        conv(x, y, t, edge_src=src, edge_dst=dst[1:])
    with pytest.raises(InputError, match=r"edge_src:.*0 to 5 \(rows.*7"):
        conv(x, y, t, edge_src=src + NODES, edge_dst=dst)
    with pytest.raises(InputError, match=r"edge_dst:.*0 to 1 \(num_nodes\)"):
        conv(x, y, t, edge_src=src, edge_dst=dst, num_nodes=2)
    with pytest.raises(InputError, match=r"y:.*40.*39"):
        conv(x, y[1:], t, edge_src=src, edge_dst=dst)
    with pytest.raises(InputError, match="num_nodes: must not be negative, got -1"):
        conv(x, y, t, edge_src=src, edge_dst=dst, num_nodes=-1)
    with pytest.raises(InputError, match="this polynomial has no edges: leave them out, or construct it with edges"):
        Polynomial(TENSORS, X, TERMS, strategy="einsum").double()(x, y, t, edge_src=src)
    with pytest.raises(OptionError, match="unknown option 'edges'"):
        tpgen.SymmetricContraction("4x0e", "4x0e", 2, edges={})  # type: ignore[call-arg]
