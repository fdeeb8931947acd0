"""What calls of a program may differ in: tensors that are no plain rows of numbers, settings of torch, constants."""

from __future__ import annotations

import random
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tpgen
from tests.networks.interpreted import interpreted  # noqa: F401  a fixture
from tpgen.base._e3nn import default_dtype
from tpgen.base._torch import pytree
from tpgen.base.errors import DeployError, InputError
from tpgen.networks.signature import ParameterSlots, _flatten_arguments


class Slope(nn.Module):
    """The derivative by one of two tensors, which may be the same one."""

    def forward(self, data: dict[str, Tensor], power: float = 2.0) -> dict[str, Tensor]:
        with torch.enable_grad():
            x = data["x"] if data["x"].requires_grad else 1 * data["x"].requires_grad_()
            energy = (x**power).sum() * (data["y"] * torch.ones(3)).sum() + x.requires_grad
            (slope,) = torch.autograd.grad(energy, data["x"])
        return {"slope": slope * (2 if data["y"].requires_grad else 1)}


def given(count: int = 5, **options: bool) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(count)
    x, y = (torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in (count, 4))
    return {"x": x, "y": y.requires_grad_(options.get("asks", False))}


class Pair(NamedTuple):
    one: object
    other: object


def nested(draw: random.Random, depth: int = 3) -> object:
    """Tensors and constants in containers, at random; one of them is torch's alone to know."""
    items = [nested(draw, depth - 1) if draw.random() < 0.6 else draw.choice([torch.ones(2), 3, None, "x"])] * depth
    kinds = [list, tuple, lambda of: dict(zip("cab", of, strict=False)), lambda of: Pair(0, tuple(of)), OrderedDict]
    kind = draw.choice(kinds)
    return kind([(n, x) for n, x in enumerate(items)]) if kind is OrderedDict else kind(items)


def test_arguments_are_taken_apart_as_torch_does() -> None:
    draw = random.Random(0)
    for _ in range(300):
        args, options = (nested(draw), torch.ones(1)), {"more": nested(draw), "a": 1}
        leaves, structure = _flatten_arguments(args, options)
        wanted, like = pytree.tree_flatten((args, options))
        assert list(map(id, leaves)) == list(map(id, wanted))
        assert structure == like
        assert structure == _flatten_arguments(args, options)[1]


def twice() -> dict[str, Tensor]:
    x = given()["x"]
    return {"x": x, "y": x}


def imaginary() -> dict[str, Tensor]:
    z = torch.complex(given()["y"], given(4)["x"])
    return {"x": given(4)["x"], "y": z.conj().imag}


CALLS = {
    "other sizes": lambda: given(7),
    "what asks for a gradient": lambda: given(asks=True),
    "one tensor twice": twice,
    "negatives that nobody has written": imaginary,
    "rows of one": lambda: {"x": given()["x"][:1].expand(5, 3), "y": given()["y"].t().contiguous().t()},
    "every other row": lambda: {"x": given(10)["x"][::2], "y": given()["y"]},
    "one row": lambda: given(1),
    "no rows": lambda: given(0),
    "float32": lambda: {name: x.float() for name, x in given().items()},
}


@pytest.mark.parametrize("example", CALLS)
def test_calls_are_those_of_the_network(example: str, interpreted: list[int]) -> None:  # noqa: F811
    network = Slope()
    step = tpgen.compile_step(network, CALLS[example]())
    for call in CALLS.values():
        torch.testing.assert_close(step(call()), network(call()), rtol=1e-12, atol=1e-12)
    assert 1 <= len(interpreted) <= 3  # for plain tensors, for what asks for a gradient, and the example's


def test_tensors_that_the_network_has_made_require_gradients_have_a_program(interpreted: list[int]) -> None:  # noqa: F811
    network, data, called = Slope(), given(), []
    step = tpgen.compile_step(network, data)  # positions as engines give them
    assert not data["x"].requires_grad
    wanted = network(data)  # writes into the tensors of its call, as MACE does
    assert data["x"].requires_grad
    for _ in range(3):
        torch.testing.assert_close(step(data), wanted, rtol=1e-12, atol=1e-12)
        called.append(len(interpreted))
    assert called == [2, 2, 2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(step), "_evaluate_network_outputs", None)  # nobody calls the network itself
        torch.testing.assert_close(step(data), wanted, rtol=1e-12, atol=1e-12)


def test_what_was_computed_keeps_its_gradient(interpreted: list[int]) -> None:  # noqa: F811
    """Results of a program are values, so a call of what others were computed into is the network's."""
    encoder, x = nn.Linear(3, 3), torch.ones(5, 3)
    step = tpgen.compile_step(nn.SiLU(), x)
    step(encoder(x)).sum().backward()
    assert encoder.weight.grad is not None
    assert len(interpreted) == 1


def test_settings_of_torch_count(interpreted: list[int]) -> None:  # noqa: F811
    class Mixed(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x @ x.t(), x.sum() + torch.ones(3)

    network, x = Mixed(), torch.randn(5, 3)
    with torch.autocast("cpu", torch.bfloat16):  # which programs never are for
        step = tpgen.compile_step(network, x)
    torch.testing.assert_close(step(x), network(x))
    for change in (torch.autocast("cpu", torch.bfloat16), default_dtype(torch.float64), torch.inference_mode()):
        with change:
            torch.testing.assert_close(step(x), network(x))
    torch.testing.assert_close(torch.vmap(step)(torch.stack([x, x])), torch.vmap(network)(torch.stack([x, x])))
    torch.testing.assert_close(
        torch.func.jacrev(lambda x: step(x)[1])(x), torch.func.jacrev(lambda x: network(x)[1])(x)
    )


def test_constants_are_plain_and_keep_their_types(interpreted: list[int]) -> None:  # noqa: F811
    step = tpgen.compile_step(Slope(), given(), power=2.0)
    with pytest.raises(InputError, match="a step is for calls like its example"):
        step(given(), power=2)
    for held in (SimpleNamespace(x=np.ones(3)), np.ones(3)):
        with pytest.raises(InputError, match=r"takes tensors and plain constants, in .* attributes of objects, got"):
            step({**given(), "held": held})


def test_sizes_are_no_results() -> None:
    class Counting(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, int]:
            return 2 * x, x.shape[0]

    with pytest.raises(DeployError, match="returns a size of a tensor as a number, which a program cannot"):
        tpgen.compile_step(Counting(), torch.ones(5, 3))


class Named(nn.Module):
    def forward(self, data: dict[str, Any], *, more: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"y": data["a"] - 2 * data["rest"]["b"] + 3 * data["rest"]["c"][0] - 4 * more["d"] + 5 * more["e"]}


def named(**left: Tensor) -> tuple[dict[str, Any], dict[str, Tensor]]:
    a, b, c, d, e = (torch.full((5,), float(n)) for n in range(5))
    return {"a": a, "rest": {"b": b, "c": [c]}}, {"d": d, "e": e, **left}


def test_names_are_a_set(interpreted: list[int]) -> None:  # noqa: F811
    network, (data, more) = Named(), named()
    step = tpgen.compile_step(network, data, more=more)
    rest = dict(reversed(data["rest"].items()))
    for args in ({"rest": rest, "a": data["a"]}, {"a": data["a"], "rest": rest}, {**data}):
        for options in (more, dict(reversed(more.items()))):
            torch.testing.assert_close(step(args, more=options), network(data, more=more))
    assert len(interpreted) == 1
    with pytest.raises(InputError, match=r"this one has also more\['z'\]"):
        step(data, more={**more, "z": more["d"]})
    with pytest.raises(InputError, match=r"this one lacks argument 0\['rest'\]\['b'\] and has also argument 0\['x'\]"):
        step({**data, "rest": {"c": data["rest"]["c"]}, "x": data["a"]}, more=more)
    with pytest.raises(InputError, match=r"this one has 1 \(int\) as argument 0\['a'\], not a tensor"):
        step({**data, "a": 1}, more=more)


class Shares(nn.Module):
    """Two modules with one buffer, which e3nn's modules have twice when they come back from pickle."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
        self.second.running_mean = self.first.running_mean


def test_parameters_have_the_same_numbers_where_buffers_are_shared_or_not() -> None:
    shared, own = Shares(), Shares()
    own.second.running_mean = own.second.running_mean.clone()  # type: ignore[union-attr]
    one, other = (ParameterSlots(network, gradients=True).names for network in (shared, own))
    assert len(one) < len(other)
    assert one[:4] == other[:4] == [name for name, _ in shared.named_parameters()]
