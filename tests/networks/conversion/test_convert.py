"""Networks that compute with tpgen after `convert`, and stay what they were otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import e3nn
import pytest
import torch
from e3nn import o3
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from tests.machine import KERNEL
from tests.networks.conversion.networks import (
    GRAPHS,
    VECTORS,
    Layer,
    Mixed,
    check_conversion,
    mixed_inputs,
    pickled,
)
from tpgen.base.errors import OptionError, TpgenError
from tpgen.networks.conversion.convert import conversion_report, convert, restore
from tpgen.networks.conversion.products import CONVERTED, PROGRAM
from tpgen.networks.conversion.swap import get_swap_mark
from tpgen.networks.holders import held_networks


@pytest.mark.parametrize("strategy", ["grouped", KERNEL])
def test_a_network_of_all_products_is_stock(strategy: str) -> None:
    report = check_conversion(Mixed, mixed_inputs(), copies=(deepcopy, pickled), limit=1e-13, strategy=strategy)
    assert [d.what for d in report.proof.differences] == ["outputs", "gradients", "second derivatives"]
    assert [d.tensors for d in report.proof.differences] == [2, 7, 7]


@pytest.mark.parametrize("strategy", ["grouped", KERNEL])
@pytest.mark.parametrize("cls", CONVERTED)
def test_a_product_is_stock(cls: type[nn.Module], strategy: str) -> None:
    make = {
        o3.TensorProduct: lambda: cls("2x1o", "2x1o", "2x1e", [(0, 0, 0, "uuu", True)]),
        o3.FullyConnectedTensorProduct: lambda: cls("2x1o", "2x1o", "2x1e"),
        o3.TensorSquare: lambda: cls("2x1o", "2x0e"),
    }.get(cls, lambda: cls("2x1o", "2x1o"))
    inputs = [torch.randn(3, 6) for _ in range(1 if cls is o3.TensorSquare else 2)]
    check_conversion(make, inputs, CONVERTED[cls], strategy=strategy)


def test_a_module_of_two_names_is_one_module() -> None:
    network = convert(Mixed(), **GRAPHS)
    assert network.connected is network.again
    assert ("connected", "again") in {r.paths for r in conversion_report(network).replaced}


def test_training_goes_on_after_either() -> None:
    network, inputs = Mixed(), mixed_inputs()
    optimizer = torch.optim.Adam(network.parameters())
    for change in (lambda n: convert(n, **GRAPHS), restore):
        change(network)
        before = network.connected.weight.clone()
        network(*inputs)["squares"].sum().backward()
        optimizer.step()
        assert not torch.equal(network.connected.weight, before)


def test_a_copy_has_its_buffers_in_the_same_order() -> None:
    network = convert(Layer(), **GRAPHS)
    assert [name for name, _ in deepcopy(network).named_buffers()] == [name for name, _ in network.named_buffers()]


@pytest.mark.parametrize("when", ["before", "after", "late"])
def test_averages_go_on(when: str) -> None:
    """Torch pairs the buffers of a network and its average by their order; an average made before is converted too."""
    network = Layer()
    stock = deepcopy(network)
    wanted = AveragedModel(stock)
    if when == "before":
        average = convert(AveragedModel(network), **GRAPHS)
        convert(network, **GRAPHS)
    elif when == "late":
        average = AveragedModel(network)
        convert(network, **GRAPHS)
        with pytest.raises((RuntimeError, ValueError)):  # torch's own, as the page says
            average.update_parameters(network)
        convert(average, **GRAPHS)
    else:
        average = AveragedModel(convert(network, **GRAPHS))
    for model, averaged in ((network, average), (stock, wanted)):
        for factor in (1.0, 3.0):
            for parameter in model.parameters():
                parameter.data.mul_(factor)
            averaged.update_parameters(model)
    inputs = torch.randn(3, 6), torch.randn(3, 3)
    torch.testing.assert_close(average(*inputs), wanted(*inputs))
    assert list(average.state_dict()) == list(wanted.state_dict())


def test_weights_may_be_given_as_e3nn_takes_them() -> None:
    product = o3.FullyConnectedTensorProduct(*VECTORS)
    x, y, w = torch.randn(3, 6), torch.randn(3, 3), torch.randn(4)
    wanted = product(x, y, w)
    convert(product, **GRAPHS)
    torch.testing.assert_close(product(x, y, w), wanted)
    torch.testing.assert_close(product(x, y, [w]), wanted)


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """A group of this process alone."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("when", ["before", "after"])
def test_distributed_training_goes_on(when: str, process_group: None) -> None:
    network, inputs = Layer(), (torch.randn(3, 6), torch.randn(3, 3))
    network(*inputs).square().sum().backward()
    wanted = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
    network.zero_grad()
    if when == "before":
        wrapped = convert(DistributedDataParallel(network), **GRAPHS)
    else:
        wrapped = DistributedDataParallel(convert(network, **GRAPHS))
    wrapped(*inputs).square().sum().backward()
    for name, gradient in wanted.items():
        torch.testing.assert_close(network.get_parameter(name).grad, gradient)
    assert get_swap_mark(network.product) is not None


def test_moving_to_another_dtype_moves_the_program() -> None:
    network = convert(Mixed(), **GRAPHS).double()
    assert network(*mixed_inputs(dtype=torch.float64))["squares"].dtype == torch.float64


def test_hooks_and_modes_stay() -> None:
    product, seen = o3.FullyConnectedTensorProduct(*VECTORS).eval(), []
    product.register_forward_hook(lambda *_: seen.append(1))
    convert(product, **GRAPHS)(torch.randn(3, 6), torch.randn(3, 3))
    assert seen == [1]
    assert not product.get_submodule(PROGRAM).training


@pytest.fixture
def scripted_programs() -> Iterator[None]:
    """e3nn scripts the programs inside its modules, as it does by default in many versions."""
    before = e3nn.get_optimization_defaults()
    e3nn.set_optimization_defaults(**({"jit_mode": "script"} if "jit_mode" in before else {"jit_script_fx": True}))
    yield
    e3nn.set_optimization_defaults(**before)


def test_products_of_scripted_programs_are_converted(scripted_programs: None) -> None:
    network, inputs = Mixed(), mixed_inputs()
    assert isinstance(network.full._compiled_main_left_right, torch.jit.ScriptModule)
    wanted = network(*inputs)["squares"]
    assert not conversion_report(convert(network, prove=inputs, **GRAPHS)).kept
    torch.testing.assert_close(network(*inputs)["squares"], wanted)


def test_weights_of_another_architecture_are_refused_as_by_stock() -> None:
    network, stock = convert(Layer(), **GRAPHS), Layer()
    other = nn.ModuleDict({"product": o3.FullyConnectedTensorProduct("3x1o", "1o", "2x1e+0e"), "more": nn.Linear(2, 2)})
    with pytest.raises(RuntimeError) as wanted:
        stock.load_state_dict(other.state_dict())
    with pytest.raises(
        RuntimeError, match=r"(?s)Unexpected key.*more.weight.*size mismatch for product.weight"
    ) as found:
        network.load_state_dict(other.state_dict())
    assert str(found.value).partition("\n")[2] == str(wanted.value).partition("\n")[2]


def test_a_network_without_products_is_an_error() -> None:
    with pytest.raises(
        TpgenError,
        match=r"Linear holds no tensor product, linear layer or harmonics of e3nn's .*there is nothing to convert",
    ):
        convert(nn.Linear(2, 2))
    with pytest.raises(TpgenError, match=r"holds nothing that tpgen.convert has converted: nothing to restore"):
        restore(Mixed())


def test_converting_twice_is_an_error() -> None:
    network = convert(Mixed(), **GRAPHS)
    with pytest.raises(TpgenError, match=r"Mixed is converted already: tpgen.restore\(network\) undoes it"):
        convert(network, **GRAPHS)


def test_options_are_those_that_leave_the_network_alone() -> None:
    with pytest.raises(OptionError, match=r"convert takes no layout: .* e3nn's mul_ir"):
        convert(Mixed(), layout="ir_mul")
    with pytest.raises(OptionError, match=r"unknown option 'stratgy'"):
        convert(Mixed(), stratgy="kernel")
    with pytest.raises(OptionError, match=r"unknown option 'internal_weights'; known options: (?!.*layout)"):
        convert(Mixed(), internal_weights=False)


@pytest.mark.parametrize(
    "call, why",
    [
        (lambda n, x: convert("abc"), "network: convert takes a torch.nn.Module, got a str"),
        (lambda n, x: convert([5]), "network: convert takes a torch.nn.Module, got a list"),
        (lambda n, x: restore(SimpleNamespace(model=n)), "Mixed holds nothing that tpgen.convert has converted"),
        (
            lambda n, x: conversion_report(SimpleNamespace(device="cpu", models=[nn.ReLU(), n, n, Mixed()])),
            r"got a SimpleNamespace that holds 2: give each by itself, such as `given\.models\[1\]`",
        ),
        (lambda n, x: restore(None), "network: restore takes a torch.nn.Module, got a NoneType"),
        (lambda n, x: conversion_report(3), "network: conversion_report takes a torch.nn.Module, got an int"),
        (lambda n, x: convert(n, prove=5), r"prove: give the arguments of a call as a tuple, .*got an int"),
        (lambda n, x: convert(n, report=5), r"report: give a function of the Conversion, as in report=print, got 5"),
        (lambda n, x: convert(n, measure=x[0]), r"measure: give the arguments of a call as a tuple, .*got a Tensor"),
        (lambda n, x: convert(n, prove=x[:1]), r"cannot be called with these inputs \(TypeError: .*missing 2 required"),
        (lambda n, x: convert(n, measure=x[:1]), r"cannot be called with these inputs \(TypeError"),
    ],
)
def test_wrong_arguments_are_named(call, why: str) -> None:
    network = Mixed()
    with pytest.raises(TpgenError, match=why):
        call(network, mixed_inputs())
    assert get_swap_mark(network.full) is None


def test_networks_that_something_holds_are_converted_all_or_none() -> None:
    one, other, inputs, reports = Mixed(), Mixed(), mixed_inputs(), []
    wanted = [network(*inputs) for network in (one, other)]
    calculator = SimpleNamespace(device="cpu", models=[one, other, one], first=one, part=one.full)
    assert convert(calculator, report=reports.append, **GRAPHS) is calculator
    assert len(reports) == 2
    assert conversion_report(SimpleNamespace(model=one)).replaced
    torch.testing.assert_close([network(*inputs) for network in calculator.models[:2]], wanted)
    with pytest.raises(TpgenError, match="Linear holds nothing that tpgen"):
        restore([one, nn.Linear(2, 2)])
    assert get_swap_mark(one.full) is not None
    assert restore(calculator) is calculator
    assert get_swap_mark(one.full) is get_swap_mark(other.full) is None
    with pytest.raises(TpgenError, match="Linear holds no tensor product"):
        convert([one, nn.Linear(2, 2)], **GRAPHS)
    assert get_swap_mark(one.full) is None


class Calculator:
    """As ASE's: what it holds is looked into, wherever a calculator stands."""

    __module__ = "ase.calculators.mixing"

    def __init__(self, **held: Any) -> None:
        vars(self).update(held, itself=self)


def test_calculators_below_others_are_found_and_other_networks_stay() -> None:
    network, dispersion = Mixed(), nn.Linear(2, 2)
    calculators = [Calculator(models=[network]), Calculator(dftd_module=dispersion, device=SimpleNamespace(n=Mixed()))]
    given = Calculator(mixer=Calculator(calcs=calculators))
    assert [*held_networks(given)] == [".mixer.calcs[0].models[0]", ".mixer.calcs[1].dftd_module"]
    assert convert(given, **GRAPHS) is given
    assert conversion_report(given).replaced
    with pytest.raises(TpgenError, match="Mixed is converted already"):
        convert(given)
    restore(given)
    assert get_swap_mark(network.full) is None
    with pytest.raises(TpgenError, match="Mixed holds nothing that tpgen"):
        restore(given)
    with pytest.raises(TpgenError, match="Linear holds no tensor product"):
        convert(calculators[1])


def test_integers_are_promoted_as_by_e3nn() -> None:
    product, x, y = o3.ElementwiseTensorProduct("2x0e+1o", "3x0e"), torch.randn(4, 5), torch.arange(12).view(4, 3)
    wanted = product(x, y)
    torch.testing.assert_close(convert(product, **GRAPHS)(x, y), wanted)


def _exported() -> torch.export.ExportedProgram:
    return torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),))


@pytest.mark.parametrize(
    "given, words",
    [
        (lambda: torch.jit.freeze(torch.jit.script(nn.Linear(2, 2).eval())), "convert the network before it is scrip"),
        (lambda: torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), "a scripted or traced network"),
        (lambda: torch.fx.symbolic_trace(nn.Linear(2, 2)), "a graph that was traced or exported"),
        (lambda: _exported().module(), "a graph that was traced or exported"),
        (_exported, "got an ExportedProgram: an exported program: convert the network before it is exported"),
        (lambda: "my.model", r"load the file first, as in torch.load\('my.model', weights_only=False\)"),
        (lambda: nn.Linear(2, 2).state_dict(), "tensors alone are no network"),
        (lambda: {"model": nn.Linear(2, 2)}, "Linear holds no tensor product"),
    ],
)
def test_what_cannot_be_converted_says_what_to_do_instead(given: Callable[[], Any], words: str) -> None:
    with pytest.raises(TpgenError, match=words):
        convert(given())
