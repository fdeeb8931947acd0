"""Inverse graphs: undoing every step, in any place of its arguments; what cannot be undone says so."""

import operator

import pytest
import torch
from torch import fx, nn

from tpgen.base.errors import InverseError, TpgenError
from tpgen.networks.invert import ALIASES, INVERSES, invert
from tpgen.networks.tracer import trace_network

X = torch.linspace(0.1, 0.9, 9, dtype=torch.float64)  # where every step is defined

STEPS = {
    "add": lambda x: 3 + x,
    "sub": lambda x: x - 2,
    "sub from": lambda x: 2 - x,
    "mul": lambda x: 3.5 * x,
    "truediv": lambda x: x / 3,
    "truediv of": lambda x: 3 / x,
    "neg": lambda x: -x,
    "pow": lambda x: x**2.5,
    "pow of": lambda x: 3.0**x,
    "log10": torch.log10,
    "identity": lambda x: x,
    **{
        name: getattr(torch, name)
        for name in INVERSES
        if name not in ("add", "sub", "mul", "truediv", "pow", "log10", "neg", "identity")
    },
}


@pytest.mark.parametrize("name", STEPS)
def test_each_step_is_undone(name: str) -> None:
    step = STEPS[name]
    forward = fx.symbolic_trace(lambda x: step(x))
    torch.testing.assert_close(invert(forward)(forward(X)), X, rtol=1e-12, atol=1e-12)


def test_every_registered_step_is_tested() -> None:
    assert set(INVERSES) <= {name.split(" ")[0] for name in STEPS}
    assert set(ALIASES.values()) <= set(INVERSES)


@pytest.mark.parametrize("step", [lambda x: x.exp(), torch.div, lambda x: x.mul(2), lambda x: torch.subtract(x, 1)])
def test_methods_and_other_names(step) -> None:
    forward = fx.symbolic_trace((lambda x: torch.div(x, 2)) if step is torch.div else step)
    torch.testing.assert_close(invert(forward)(forward(X)), X)


class Squash(nn.Module):
    """An affine map with parameters, then a squashing."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))
        self.register_buffer("shift", torch.tensor(0.1, dtype=torch.float64))
        self.act = nn.Tanh()

    def forward(self, x):
        return self.act(x * self.scale.exp() + self.shift * 2)


def test_a_module_with_parameters_and_back_again() -> None:
    network = Squash()
    forward = trace_network(network)
    inverse = invert(forward)
    torch.testing.assert_close(inverse(forward(X)), X)
    torch.testing.assert_close(invert(inverse)(X), forward(X))
    assert inverse.scale is network.scale
    assert next(n.target for n in inverse.graph.nodes if n.op == "call_function") is torch.atanh
    assert {n.meta["inverse_of"] for n in inverse.graph.nodes if "inverse_of" in n.meta} == {"act", "add", "mul"}
    # derivatives of inverse functions multiply to one
    x = X.clone().requires_grad_()
    y = forward(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    y = y.detach().requires_grad_()
    (back,) = torch.autograd.grad(inverse(y).sum(), y)
    torch.testing.assert_close(slope * back, torch.ones_like(X))


def test_further_inverses_go_first() -> None:
    forward = fx.symbolic_trace(lambda x: torch.sin(x) * 2)
    for key in (torch.sin, "sin"):
        inverse = invert(forward, {key: lambda y, place: torch.asin(y)})
        torch.testing.assert_close(inverse(forward(X)), X)
    by_class = invert(fx.symbolic_trace(nn.Sequential(nn.ELU())), {nn.ELU: lambda y, place: torch.log1p(y)})
    torch.testing.assert_close(by_class(torch.expm1(-X)), -X)
    positive = invert(fx.symbolic_trace(lambda x: x**2), {operator.pow: lambda y, place, n: -(y ** (1 / n))})
    torch.testing.assert_close(positive(X**2), -X)


@pytest.mark.parametrize(
    "function, message",
    [
        (
            lambda x: torch.exp(x).relu(),
            r"node 'relu' \(relu\) has no inverse here; .*inverses=\{'relu': .*known steps",
        ),
        (lambda x: x * x, r"node 'mul' \(mul\) reads the input in more than one place"),
        (lambda x: torch.cat([x]), r"node 'cat' \(cat\) reads the input in more than one place or in a list"),
        (lambda x: torch.add(x, 1, alpha=2), r"node 'add' \(add\) is called with alpha.*write it without keywords"),
        (
            lambda x: torch.logit(x, 1e-6),
            r"node 'logit' \(logit\) is called with 1 further arguments, which its inverse",
        ),
        (lambda x, y: x + y, "a function of one input, and this graph has 2: fix the others"),
        (lambda x: (x + 1, x), "the output must be one tensor that depends on the input"),
        (lambda x: 3, "the output must be one tensor that depends on the input"),
    ],
)
def test_what_cannot_be_undone_says_why_and_the_way_out(function, message: str) -> None:
    with pytest.raises(InverseError, match=message):
        invert(fx.symbolic_trace(function))
    assert issubclass(InverseError, TpgenError)


def test_what_is_not_traced_is_told_so() -> None:
    with pytest.raises(InverseError, match=r"got Tanh: give it trace_network\(module\), or torch.fx.symbolic_trace"):
        invert(nn.Tanh())  # type: ignore[arg-type]


class Exp(nn.Module):
    """Named like a step, and another function."""

    def forward(self, x):
        return torch.exp(-x)


def square(x):
    return x * x * x


def test_names_of_the_users_own_code_say_nothing() -> None:
    traced = trace_network(nn.Sequential(Exp()), leaf=lambda module, path: isinstance(module, Exp))
    with pytest.raises(InverseError, match=r"node '_0' \(exp\) has no inverse here; .*inverses=\{'exp'"):
        invert(traced)
    own = invert(traced, {Exp: lambda y, place: -torch.log(y)})
    torch.testing.assert_close(own(traced(X)), X)
    graph = fx.Graph()
    graph.output(graph.call_function(square, (graph.placeholder("x"),)))
    cube = fx.GraphModule(nn.Module(), graph)
    with pytest.raises(InverseError, match=r"\(square\) has no inverse here"):
        invert(cube)
    torch.testing.assert_close(invert(cube, {"square": lambda y, place: y ** (1 / 3)})(cube(X)), X)


def test_operators_of_other_libraries_say_nothing_either() -> None:
    library = torch.library.Library("tpgen_test_steps", "DEF")
    library.define("exp(Tensor x) -> Tensor")
    graph = fx.Graph()
    graph.output(graph.call_function(torch.ops.tpgen_test_steps.exp, (graph.placeholder("x"),)))
    with pytest.raises(InverseError, match=r"\(exp\) has no inverse here"):
        invert(fx.GraphModule(nn.Module(), graph))


def test_an_inverse_that_takes_the_constants() -> None:
    forward = fx.symbolic_trace(lambda x: torch.logit(x, 1e-6))
    inverse = invert(forward, {torch.logit: lambda y, place, eps: torch.sigmoid(y)})
    torch.testing.assert_close(inverse(forward(X)), X)
