"""Modules of every kind under every strategy: copies and files, torch's compiler, exports, devices without data."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tpgen
from tests.cases import MIXED, STRATEGIES, assert_close
from tests.machine import KERNEL
from tests.nn.modules import FIVE, inputs
from tpgen.planner.presets import channelwise

Made = tuple[nn.Module, list[Any]]  # a module in float64, and the arguments of a call
ENDS = "4x0e + 3x1o + 2x0e + 1x2e", "2x1o + 8x0e + 1x3e + 3x0e"
EDGES = torch.tensor([0, 1, 2, 2, 1]), torch.tensor([1, 0, 1, 0, 0])


def rows(*widths: int) -> list[Tensor]:
    return [torch.randn(5, width, dtype=torch.float64) for width in widths]


def of_products(name: str) -> Callable[[str], Made]:
    def make(strategy: str) -> Made:
        product = FIVE[name](tpgen).double()
        return product, inputs(product, (5,))

    return make


def convolution(strategy: str) -> Made:
    plan = channelwise("4x0e+3x1o", "0e+1o", "0e+1o")
    conv = tpgen.TensorProductConv.from_plan(plan, strategy=strategy).double()
    return conv, [*rows(13, 4, conv.weight_numel), *EDGES]


def contraction(strategy: str) -> Made:
    ends = "2x0e+2x1o", "2x0e+2x1o"
    made = tpgen.SymmetricContraction(*ends, 2, num_elements=3, strategy=strategy).double()
    return made, [rows(8)[0].view(5, 2, 4), torch.tensor([0, 2, 1, 1, 0])]


FORMS: dict[str, Callable[[str], Made]] = {
    "product": lambda strategy: (tpgen.TensorProduct(*MIXED, strategy=strategy).double(), rows(18, 22)),
    "convolution": convolution,
    "layer": lambda strategy: (tpgen.Linear(*ENDS, biases=True, strategy=strategy).double(), rows(20)),
    "channels": lambda strategy: (
        tpgen.Linear(*ENDS, biases=True, f_in=3, f_out=2, strategy=strategy).double(),
        [torch.randn(5, 3, 20, dtype=torch.float64)],
    ),
}
POLYNOMIALS: dict[str, Callable[[str], Made]] = {
    "polynomial": lambda strategy: (
        tpgen.Polynomial({"x": "4x0e+4x1o", "y": "0e+1o"}, "4x0e+4x1o", [("x", "x", "y"), ("x",)], strategy=strategy)
        .double(),
        rows(16, 4),
    ),
    "contraction": contraction,
}  # fmt: skip
MAKERS = {**FORMS, **POLYNOMIALS, **{name: of_products(name) for name in FIVE}}
OF_FORMS = [(name, strategy) for name in FORMS for strategy in STRATEGIES] + [
    pytest.param(name, "kernel", marks=KERNEL.marks) for name in FORMS
]
OF_POLYNOMIALS = [(name, strategy) for name in POLYNOMIALS for strategy in ("einsum", "unrolled")] + [
    pytest.param(name, "kernel", marks=KERNEL.marks) for name in POLYNOMIALS
]
of_all = pytest.mark.parametrize("name, strategy", [*OF_FORMS, *OF_POLYNOMIALS])


def saved(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda module: pickle.loads(pickle.dumps(module)), "save": saved}


@pytest.mark.parametrize("again", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("name, strategy", [*OF_FORMS, *OF_POLYNOMIALS, *((name, "auto") for name in FIVE)])
def test_copies(name: str, strategy: str, again: Callable) -> None:
    module, arguments = MAKERS[name](strategy)
    want, other = module(*arguments), again(module)
    assert (type(other), other.choice) == (type(module), module.choice)
    assert sorted(repr(other).splitlines()) == sorted(repr(module).splitlines())  # programs are made anew, and so last
    assert torch.equal(other(*arguments), want)
    assert [i for i, _ in other.named_parameters()] == [i for i, _ in module.named_parameters()]
    for own in other.parameters():
        nn.init.zeros_(own)
    assert torch.equal(module(*arguments), want)


@of_all
def test_a_copy_of_a_compiled_module_runs_its_own_weights(name: str, strategy: str) -> None:
    module, arguments = MAKERS[name](strategy)
    twin = MAKERS[name](strategy)[0]
    twin.load_state_dict(module.state_dict())
    module.compile(backend="aot_eager")
    module(*arguments)
    copies = copy.deepcopy(module), pickle.loads(pickle.dumps(module))
    with torch.no_grad():
        for own in (own for each in (twin, *copies) for own in each.parameters()):
            own.mul_(2.0)
    for other in copies:
        assert_close(other(*arguments), twin(*arguments))


@of_all
def test_shapes_on_the_meta_device(name: str, strategy: str) -> None:
    module, arguments = MAKERS[name](strategy)
    want = module(*arguments)
    assert module.to("meta")(*(x.to("meta") for x in arguments)).shape == want.shape


@of_all
def test_tensors_of_a_state_take_the_place_of_those_on_meta(name: str, strategy: str) -> None:
    module, arguments = MAKERS[name](strategy)
    other = MAKERS[name](strategy)[0].to("meta")
    other.load_state_dict(module.state_dict(), assign=True)
    assert_close(other(*arguments), module(*arguments))


@of_all
def test_one_graph_under_torch_compile_and_exported(name: str, strategy: str) -> None:
    torch.compiler.reset()
    module, arguments = MAKERS[name](strategy)
    want = module(*arguments)
    assert_close(torch.compile(module, backend="aot_eager", fullgraph=True)(*arguments), want)
    assert_close(torch.export.export(module, tuple(arguments)).module()(*arguments), want)
