"""`Polynomial`: a user's terms and tables, weights of every kind, layouts, and what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from e3nn import o3
from torch import Tensor

from tests.machine import KERNEL
from tests.polynomials import slow
from tpgen.base.errors import BackendError, InputError, OptionError, PlanError
from tpgen.nn.polynomial import Polynomial
from tpgen.nn.symmetric_contraction import SymmetricContraction
from tpgen.planner.polynomial_plan import PolynomialTerm

STRATEGIES = ["einsum", "unrolled", KERNEL]
X, Y = "4x0e + 4x1o", "0e + 1o + 2e"
TERMS = [("x", "x", "y"), ("x", "y"), ("x",)]
DOT = {(0, i, i): 1.0 for i in range(3)}
CROSS = {p: float(np.linalg.det(np.eye(3)[list(p)])) for p in itertools.permutations(range(3))}


def layer(strategy: str = "einsum", **options: Any) -> Polynomial:
    return Polynomial({"x": X, "y": Y}, X, TERMS, strategy=strategy, **options).double()


def inputs(rows: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 16, dtype=torch.float64), torch.randn(rows, 9, dtype=torch.float64)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_is_equivariant(strategy: str) -> None:
    made, (x, y) = layer(strategy), inputs()
    for parity in (1, -1):
        rotation = parity * o3.rand_matrix()
        dx, dy = (o3.Irreps(irreps).D_from_matrix(rotation).double() for irreps in (X, Y))
        torch.testing.assert_close(made(x @ dx.T, y @ dy.T), made(x, y) @ dx.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_is_the_definition(strategy: str) -> None:
    made, tensors = layer(strategy), inputs()
    torch.testing.assert_close(made(*tensors), slow(made.plan, [*tensors, *made.weights.values()]))


def test_strategies_agree_on_gradients() -> None:
    tensors = [x.requires_grad_() for x in inputs()]
    modules = [layer("einsum"), layer("unrolled")]
    modules[1].load_state_dict(modules[0].state_dict())
    torch.testing.assert_close(*[torch.autograd.grad(m(*tensors).pow(2).sum(), tensors) for m in modules])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_weights_by_element(strategy: str) -> None:
    made, (x, y) = layer(strategy, weights="element", num_elements=3), inputs()
    index = torch.tensor([2, 0, 0, 1, 2])
    torch.testing.assert_close(made(x, y, index=index), slow(made.plan, [x, y, *made.weights.values()], index))
    hot = torch.nn.functional.one_hot(index, 3).double()
    torch.testing.assert_close(made(x, y, index=hot), made(x, y, index=index))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_given_weights(strategy: str) -> None:
    made, (x, y) = layer(strategy, weights="given"), inputs()
    shared = [torch.randn(1, *shape, dtype=torch.float64) for shape in made.weight_shapes]
    rows = [w.expand(5, -1, -1).contiguous() for w in shared]
    torch.testing.assert_close(made(x, y, weights=shared), made(x, y, weights=rows))
    own = layer(strategy)  # has weights, and takes others for a call
    torch.testing.assert_close(own(x, y, weights=shared), made(x, y, weights=rows))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_tables(strategy: str) -> None:
    a, b = torch.randn(2, 5, 12, dtype=torch.float64)
    options = {"weights": "none", "strategy": strategy}
    dot = Polynomial({"a": "4x1o", "b": "4x1o"}, "4x0e", [(("a", "b"), DOT)], **options).double()
    cross = Polynomial({"a": "4x1o", "b": "4x1o"}, "4x1e", [(("a", "b"), CROSS)], **options).double()
    u, v = a.reshape(5, 4, 3), b.reshape(5, 4, 3)
    torch.testing.assert_close(dot(a, b), (u * v).sum(-1))
    torch.testing.assert_close(cross(a, b), torch.linalg.cross(u, v).flatten(1))


def test_a_weighted_table_has_one_weight_for_each_channel() -> None:
    made = Polynomial({"a": "4x1o"}, "4x0e", [(("a", "a"), DOT)], strategy="einsum")
    assert made.weight_shapes == [(1, 4)]


@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul", "channel", {"x": "channel", "out": "ir_mul"}])
def test_layouts_hold_the_same_numbers(layout: Any) -> None:
    standard, made = layer(), layer(layout=layout)
    made.load_state_dict(standard.state_dict())
    x, y = inputs()
    parts = [x[:, :4].unsqueeze(-1), x[:, 4:].reshape(5, 4, 3)]
    named = layout if isinstance(layout, dict) else {"x": layout, "out": layout}
    moved = {
        "mul_ir": x,
        "ir_mul": torch.cat([p.transpose(1, 2).flatten(1) for p in parts], 1),
        "channel": torch.cat(parts, -1),
    }
    out = standard(x, y)
    parts = [out[:, :4].unsqueeze(-1), out[:, 4:].reshape(5, 4, 3)]
    expected = {
        "mul_ir": out,
        "ir_mul": torch.cat([p.transpose(1, 2).flatten(1) for p in parts], 1),
        "channel": torch.cat(parts, -1).flatten(1),
    }
    torch.testing.assert_close(made(moved[named["x"]], y), expected[named["out"]])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_terms_of_what_all_channels_share(strategy: str) -> None:
    """Alone in a component of the output, in all of them, and beside weights."""
    x, y = torch.randn(5, 12, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    tensors = {"x": "4x1o", "y": "0e+1o"}
    for terms, weights in (([("y",), ("x",)], "none"), ([("y",)], "none"), ([("y",)], "shared")):
        made = Polynomial(tensors, "4x0e+4x1o", terms, weights=weights, strategy=strategy).double()
        torch.testing.assert_close(made(x, y), slow(made.plan, [x, y, *made.weights.values()]))
    lone = Polynomial({"y": "0e+1o"}, "8x0e", [("y", "y")], strategy=strategy).double()
    torch.testing.assert_close(lone(y).shape, torch.Size([5, 8]))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_size_of_a_table_does_not_matter(strategy: str) -> None:
    a = torch.randn(5, 12, dtype=torch.float64)
    for size in (1e-11, 1e-30, 1e20):
        terms = [(("a", "a"), {key: s * v for key, v in DOT.items()}) for s in (size, 1.0004 * size)]
        made = Polynomial({"a": "4x1o"}, "4x0e", terms, strategy=strategy).double()
        expected = slow(made.plan, [a, *made.weights.values()])
        torch.testing.assert_close(made(a) / size, expected / size, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_terms_that_cancel(strategy: str) -> None:
    terms = [(("a", "a"), {key: sign * v for key, v in DOT.items()}) for sign in (1, -1)]
    made = Polynomial({"a": "4x1o"}, "4x0e+4x1o", terms, weights="none", strategy=strategy).double()
    a = torch.randn(5, 12, dtype=torch.float64, requires_grad=True)
    out = made(a)
    assert out.shape == (5, 16)
    assert not out.any()
    assert not torch.autograd.grad(out.sum(), a)[0].any()


def test_terms_reach_what_they_can() -> None:
    made = Polynomial({"v": "4x1o"}, "4x0e + 4x1o", [("v", "v"), ("v",)], strategy="einsum")
    assert [(t.inputs, t.i_out) for t in made.plan.terms] == [(("v", "v"), 0), (("v",), 1)]
    asked = Polynomial({"v": "4x1o"}, "4x0e + 4x1o", [PolynomialTerm(("v",), 1, "w")], strategy="einsum")
    assert list(asked.weights) == ["w"]


def build(**changed: Any) -> Polynomial:
    options = {"tensors": {"x": X, "y": Y}, "irreps_out": X, "terms": TERMS, "strategy": "einsum"} | changed
    return Polynomial(**options)


BAD = {
    "x: must have 4 copies": {"tensors": {"x": "4x0e+2x1o", "y": Y}},
    "out: must have one multiplicity": {"irreps_out": "4x0e+2x1o"},
    "unknown tensor 'z'; known tensors: x, y": {"terms": [("x", "z")]},
    "unknown tensor 'out'": {"terms": [("x", "out")]},
    "degree must be 1 to 4, got 0": {"terms": [()]},
    "degree must be 1 to 4, got 5": {"terms": [("x",) * 5]},
    "must be a tuple of names": {"terms": ["x"]},
    "terms: give one at least": {"terms": []},
    "weights: by element, and no term has any": {
        "terms": [PolynomialTerm(("x",), 0)],
        "weights": "element",
        "num_elements": 2,
    },
    "a tuple of names before it, such as .'x', 'y'., got 'xy'": {"terms": [("xy", {(0, 0, 0): 1.0})]},
    "a table is a mapping .* got Tensor": {"terms": [(("x", "y"), torch.eye(3))]},
    "every entry of its table is zero": {"terms": [(("x",), {(0, 0): 0.0})]},
    "no equivariant map exists": {"tensors": {"v": "4x1o"}, "irreps_out": "4x1e", "terms": [("v", "v")]},
    "not an equivariant map": {"terms": [(("x",), {(0, 1): 1.0})]},
    "unknown layout 'rows'": {"layout": "rows"},
    "layout: unknown tensor 'z'": {"layout": {"z": "channel"}},
    "layout: must be a name": {"layout": 3},
    "tensors: must map the names": {"tensors": ["x"]},
    "one tensor or more": {"tensors": {}},
    "terms: must be a list": {"terms": None},
    "x: cannot read irreps 'many'": {"tensors": {"x": "many"}},
    "out: cannot read irreps 3": {"irreps_out": 3},
    "operand 'index': a name must be": {"tensors": {"index": X}},
    "operand 'lambda': a name must be": {"tensors": {"lambda": X}},
    "an entry is whole numbers": {"terms": [(("x",), {(0, 0.5): 1.0})]},
    "and a number, got .*: one": {"terms": [(("x",), {(0, 0): "one"})]},
    "term 0: its table is empty": {"terms": [(("x",), {})]},
    "term 0: has weights 'w'": {"terms": [PolynomialTerm(("x",), 0, "w")], "weights": "none"},
    "num_elements must be 1 or more, .* got 2.5": {"weights": "element", "num_elements": 2.5},
    "num_elements must be 1 or more, .* got 0": {"weights": "element", "num_elements": 0},
    "out: nothing tells its 4 channels apart": {"tensors": {"y": Y}, "terms": [("y", "y")], "weights": "none"},
}


@pytest.mark.parametrize("message", BAD)
def test_what_cannot_be_planned(message: str) -> None:
    with pytest.raises(PlanError, match=message):
        build(**BAD[message])


def test_tensors_are_given_by_name_or_in_order() -> None:
    layer = Polynomial({"x": "4x1o", "y": "1o"}, "4x0e", [("x", "y")], strategy="einsum")
    x, y = torch.randn(3, 12), torch.randn(3, 3)
    for found in (layer(x=x, y=y), layer(y=y, x=x), layer(x, y=y)):
        torch.testing.assert_close(found, layer(x, y), rtol=0, atol=0)
    for given in ({"x": x}, {"x": x, "z": y}, {"x": x, "y": y, "z": y}):
        with pytest.raises(InputError, match="in this order or by name: after 0 in order, give x, y; got x"):
            layer(**given)
    with pytest.raises(InputError, match="after 2 in order, give none; got x"):
        layer(x, y, x=x)


def test_bad_options() -> None:
    with pytest.raises(OptionError, match=r"'stategy':.*'strategy'"):
        Polynomial({"a": "8x1o"}, "8x0e", [("a", "a")], stategy="einsum")
    with pytest.raises(OptionError, match=r"'streams'.*max_bytes"):
        Polynomial({"a": "8x1o"}, "8x0e", [("a", "a")], streams=2)
    with pytest.raises(BackendError, match="max_bytes must be a whole number of bytes above zero"):
        SymmetricContraction("8x1o", "8x0e", 2, max_bytes=0)
    with pytest.raises(BackendError, match="unknown backend 'onnx'"):
        SymmetricContraction("8x1o", "8x0e", 2, backend="onnx")
    with pytest.raises(PlanError, match=r"from_plan takes a Plan as make_polynomial_plan or .*, got int"):
        Polynomial.from_plan(3, 4)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"weights:.*'row'"):
        build(weights="row")
    for options in ({"weights": "element"}, {"num_elements": 3}):
        with pytest.raises(OptionError, match="give it with weights='element'"):
            build(**options)


def test_bad_tensors_say_what_is_wrong() -> None:
    made, (x, y) = layer(), inputs()
    with pytest.raises(InputError, match=r"a call takes 2 tensors \(x, y\), got 1"):
        made(x)
    with pytest.raises(InputError, match=r"x:.*\(rows, 16\), got \(5, 9\)"):
        made(y, x)
    with pytest.raises(InputError, match="y: must have 5 rows as x has, got 4"):
        made(x, y[:4])
    with pytest.raises(InputError, match="has no elements: leave it out"):
        made(x, y, index=torch.zeros(5, dtype=torch.int64))
    with pytest.raises(InputError, match=r"weights: give 6.*weight_shapes, got 1"):
        made(x, y, weights=[x])
    with pytest.raises(InputError, match="3 elements need the element of every row"):
        layer(weights="element", num_elements=3)(x, y)
    by_element = layer(weights="element", num_elements=3)
    with pytest.raises(InputError, match=r"index:.*torch\.as_tensor"):
        by_element(x, y, index=[0, 1, 2, 0, 1])
    hot = torch.eye(3).bool()[[0, 1, 2, 0, 1]]
    torch.testing.assert_close(by_element(x, y, index=hot), by_element(x, y, index=torch.tensor([0, 1, 2, 0, 1])))
    given = layer(weights="given")
    with pytest.raises(InputError, match="weights: give 6 tensors"):
        given(x, y, weights=3)
    with pytest.raises(InputError, match=r"weights: give 6.*weight_shapes"):
        given(x, y)
    wrong = [torch.randn(2, *shape, dtype=torch.float64) for shape in given.weight_shapes]
    with pytest.raises(InputError, match=r"weights\[0\]:.*\(1 or 5"):
        given(x, y, weights=wrong)
