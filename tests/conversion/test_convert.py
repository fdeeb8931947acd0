"""Networks that compute with tpgen after `convert`, and stay what they were otherwise."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import e3nn
import pytest
import torch
from e3nn import o3
from e3nn.util.jit import compile as e3nn_compile
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations, parametrize
from torch.optim.swa_utils import AveragedModel

from tests.conversion.networks import Layer, Mixed, Scaled, mixed_inputs
from tests.machine import KERNEL, needs_compiler
from tpgen.conversion.adapters import ADAPTERS, register_adapter
from tpgen.conversion.convert import conversion_report, convert, restore
from tpgen.conversion.products import CONVERTED, PROGRAM, find_product
from tpgen.conversion.proof import Proof, _difference
from tpgen.conversion.swap import Kept, Swap, apply_all, mark_of
from tpgen.errors import OptionError, TpgenError

GRAPHS = {"strategy": "grouped"}
VECTORS = ("2x1o", "1o", "2x1e")


def attributes(network: nn.Module) -> dict[str, set[str]]:
    """Everything that modules hold, by name."""
    return {
        name: {*m.__dict__, *m._modules, *m._buffers, *m._parameters, type(m).__name__}
        for name, m in network.named_modules()
        if "_compiled" not in name  # e3nn's own programs
    }


@pytest.mark.parametrize("strategy", ["grouped", KERNEL])
def test_values_and_derivatives_are_those_of_stock(strategy: str) -> None:
    network = Mixed()
    convert(network, strategy=strategy)
    proof = conversion_report(network, prove=mixed_inputs()).proof
    assert proof is not None
    assert [d.what for d in proof.differences] == ["outputs", "gradients", "second derivatives"]
    assert [d.tensors for d in proof.differences] == [2, 7, 7]
    assert all(d.relative < 1e-13 for d in proof.differences), proof


def test_tensors_and_names_stay() -> None:
    network, stock = Mixed(), Mixed()
    parameters, keys = dict(network.named_parameters()), list(network.state_dict())
    convert(network, **GRAPHS)
    assert all(network.get_parameter(name) is p for name, p in parameters.items())
    assert list(dict(network.named_parameters())) == list(parameters)
    assert list(network.state_dict()) == keys
    stock.load_state_dict(network.state_dict(), strict=True)
    network.load_state_dict(stock.state_dict(), strict=True)
    assert all(
        isinstance(network.get_submodule(n), type(m))
        for n, m in stock.named_modules()
        if isinstance(m, o3.TensorProduct)
    )


def test_a_module_of_two_names_is_one_module() -> None:
    network = convert(Mixed(), **GRAPHS)
    assert network.connected is network.again
    assert ("connected", "again") in {r.paths for r in conversion_report(network).replaced}


def test_restoring_leaves_nothing_behind() -> None:
    network = Mixed()
    before, inputs = attributes(network), mixed_inputs()
    wanted = network(*inputs)
    convert(network, **GRAPHS)
    assert attributes(network) != before
    assert restore(network) is network
    assert attributes(network) == before
    assert torch.equal(network(*inputs)["squares"], wanted["squares"])


def test_training_goes_on_after_either() -> None:
    network, inputs = Mixed(), mixed_inputs()
    optimizer = torch.optim.Adam(network.parameters())
    for change in (lambda n: convert(n, **GRAPHS), restore):
        change(network)
        before = network.connected.weight.clone()
        network(*inputs)["squares"].sum().backward()
        optimizer.step()
        assert not torch.equal(network.connected.weight, before)


@pytest.mark.parametrize("strategy", ["grouped", KERNEL])
def test_copies_pickles_and_scripts(strategy: str) -> None:
    network, inputs = convert(Mixed(), strategy=strategy), mixed_inputs()
    wanted = network(*inputs)["squares"]
    file = io.BytesIO()
    torch.save(network, file)
    file.seek(0)
    for other in (deepcopy(network), torch.load(file, weights_only=False)):
        assert mark_of(other.full) is not None
        torch.testing.assert_close(other(*inputs)["squares"], wanted)
        assert mark_of(restore(other).full) is None
        torch.testing.assert_close(other(*inputs)["squares"], wanted)


def test_a_copy_has_its_buffers_in_the_same_order() -> None:
    network = convert(Layer(), **GRAPHS)
    assert [name for name, _ in deepcopy(network).named_buffers()] == [name for name, _ in network.named_buffers()]


@pytest.mark.parametrize("when", ["before", "after"])
def test_averages_go_on(when: str) -> None:
    """Torch pairs the buffers of a network and its average by their order; an average made before is converted too."""
    network = Layer()
    stock = deepcopy(network)
    wanted = AveragedModel(stock)
    if when == "before":
        average = convert(AveragedModel(network), **GRAPHS)
        convert(network, **GRAPHS)
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


@pytest.mark.parametrize("strategy", ["grouped", KERNEL])
@pytest.mark.parametrize("cls", CONVERTED)
def test_a_converted_product_scripts(cls: type[nn.Module], strategy: str) -> None:
    x, y = torch.randn(3, 6), torch.randn(3, 6)
    product = {
        o3.TensorProduct: lambda: cls("2x1o", "2x1o", "2x1e", [(0, 0, 0, "uuu", True)]),
        o3.FullyConnectedTensorProduct: lambda: cls("2x1o", "2x1o", "2x1e"),
        o3.TensorSquare: lambda: cls("2x1o", "2x0e"),
    }.get(cls, lambda: cls("2x1o", "2x1o"))()
    inputs = (x,) if cls is o3.TensorSquare else (x, y)
    wanted = product(*inputs)
    convert(product, strategy=strategy)
    assert type(product) is CONVERTED[cls]
    torch.testing.assert_close(product(*inputs), wanted)
    torch.testing.assert_close(e3nn_compile(product)(*inputs), wanted)


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
    assert mark_of(network.product) is not None


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


def test_hooks_that_do_not_run_are_named() -> None:
    product = convert(o3.FullTensorProduct("2x1o", "1o"), **GRAPHS)
    product._compiled_main_left_right = nn.Identity()  # what e3nn 0.4 holds there takes no hooks
    product._compiled_main_left_right.register_forward_hook(lambda *_: None)
    (row,) = conversion_report(product).replaced
    assert row.now.endswith("; hooks on _compiled_main_left_right do not run: hook the module itself")


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


# --- what stays e3nn's, and why -------------------------------------------------------------------------------------


def scripted() -> nn.Module:
    return torch.jit.script(o3.FullTensorProduct("2x1o", "1o"))


def replaced_on_the_instance() -> nn.Module:
    product = o3.FullTensorProduct("2x1o", "1o")
    product.forward = lambda x, y: x  # type: ignore[method-assign]
    return product


def hooked_inside() -> nn.Module:
    product = o3.FullTensorProduct("2x1o", "1o")
    product._compiled_main_left_right = nn.Identity()  # what e3nn 0.4 holds there takes no hooks
    product._compiled_main_left_right.register_forward_hook(lambda *_: None)
    return product


@pytest.mark.parametrize(
    "make, why",
    [
        (lambda: Scaled(*VECTORS), r"a subclass of e3nn.FullyConnectedTensorProduct, whose own code a swap would skip"),
        (lambda: parametrizations.weight_norm(o3.FullyConnectedTensorProduct(*VECTORS)), r"weight parametrised"),
        (scripted, r"a scripted FullTensorProduct: convert the network before it is scripted"),
        (replaced_on_the_instance, r"its forward is replaced on the instance"),
        (hooked_inside, r"hooks on _compiled_main_left_right"),
    ],
)
def test_what_a_swap_would_lose_is_kept_and_named(make, why: str) -> None:
    network = nn.ModuleDict({"good": o3.FullTensorProduct("2x1o", "1o"), "other": make()})
    before = deepcopy(network["other"].state_dict())
    with pytest.warns(UserWarning, match=rf"1 module stays without tpgen, the first 'other': {why}"):
        convert(network, **GRAPHS)
    assert mark_of(network["good"]) is not None
    assert network["other"].state_dict().keys() == before.keys()
    (kept,) = conversion_report(network).kept
    assert kept.paths == ("other",)
    assert kept.why in str(conversion_report(network))
    with pytest.raises(TpgenError, match=rf"holds nothing that can be converted: {why}"):
        convert(make(), **GRAPHS)


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


class Scale(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * x


class Wrong(Scale):
    def forward(self, x: Tensor) -> Tensor:
        return 4 * x


def test_what_is_converted_later_is_proven_too(monkeypatch: pytest.MonkeyPatch) -> None:
    network = nn.Sequential(o3.Linear("2x0e", "2x0e"), Scale())
    convert(network, **GRAPHS)
    monkeypatch.setitem(
        ADAPTERS, "tests", lambda found, _: [Swap(m, Wrong, "a factor") for m in found.modules() if type(m) is Scale]
    )
    with pytest.raises(TpgenError, match="NOT equal"):
        convert(network, prove=(torch.randn(5, 2),))
    assert type(network[1]) is Scale
    proof = conversion_report(network, prove=(torch.randn(5, 2),)).proof
    assert proof is not None
    assert proof.holds, "a report takes the network as it is"


def test_options_are_those_that_leave_the_network_alone() -> None:
    with pytest.raises(OptionError, match=r"convert takes no layout: .* e3nn's mul_ir"):
        convert(Mixed(), layout="ir_mul")
    with pytest.raises(OptionError, match=r"unknown option 'stratgy'"):
        convert(Mixed(), stratgy="kernel")
    with pytest.raises(OptionError, match=r"unknown option 'internal_weights'; known options: (?!.*layout)"):
        convert(Mixed(), internal_weights=False)


# --- all or nothing -------------------------------------------------------------------------------------------------


def test_a_swap_that_fails_undoes_those_before_it() -> None:
    network = Mixed()
    before = attributes(network)
    swaps = [find_product(m, GRAPHS) for m in network.modules()]
    good = [s for s in swaps if isinstance(s, Swap)]
    bad = Swap(network.rest, type(network.rest), "nothing", {"training": True})
    with pytest.raises(AttributeError, match=r"has attributes training already"):
        apply_all([*good, bad])
    assert attributes(network) == before


class _Particular(o3.FullTensorProduct):
    """Takes no attribute of one name."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "refused":
            raise ValueError("no")
        super().__setattr__(name, value)


def test_a_swap_that_fails_half_way_undoes_itself() -> None:
    module = o3.FullTensorProduct("2x1o", "1o")
    before = attributes(module)
    with pytest.raises(ValueError, match="no"):
        apply_all([Swap(module, _Particular, "nothing", {"taken": 1, "refused": 2})])
    assert attributes(module) == before


def test_a_warning_that_is_an_error_leaves_the_network_alone() -> None:
    network = nn.ModuleList([o3.FullTensorProduct("2x1o", "1o"), Scaled(*VECTORS)])
    before = attributes(network)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="1 module stays without tpgen"):
            convert(network, **GRAPHS)
    assert attributes(network) == before


def test_restoring_refuses_what_was_changed_since() -> None:
    network = nn.ModuleList([o3.FullTensorProduct("2x1o", "1o"), o3.FullyConnectedTensorProduct(*VECTORS)])
    x, y = torch.randn(3, 6), torch.randn(3, 3)
    convert(network, **GRAPHS)
    parametrizations.weight_norm(network[1])
    wanted = network[1](x, y)
    for undo in (restore, lambda network: conversion_report(network, prove=(x, y))):
        with pytest.raises(TpgenError, match=r"ParametrizedConverted.*take that off first"):
            undo(network)
    assert mark_of(network[0]) is not None, "nothing is undone"
    assert torch.equal(network[1](x, y), wanted)
    parametrize.remove_parametrizations(network[1], "weight")
    restore(network)
    torch.testing.assert_close(network[1](x, y), wanted)


class _Wrong(o3.FullTensorProduct):
    def forward(self, x: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        return 1.001 * super().forward(x, y, weight)


def test_a_proof_that_fails_leaves_the_network_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    network, inputs = Mixed(), mixed_inputs()
    before = attributes(network)
    monkeypatch.setitem(CONVERTED, o3.FullTensorProduct, _Wrong)
    with pytest.raises(TpgenError, match=r"left as it was: in float64, stock and converted are NOT equal"):
        convert(network, prove=inputs, **GRAPHS)
    assert attributes(network) == before


@pytest.mark.parametrize("where", ["stock", "converted"])
def test_a_nan_fails_the_proof_whatever_comes_after_it(where: str) -> None:
    whole, broken = {"a": torch.ones(2), "b": torch.ones(2)}, {"a": torch.tensor([torch.nan, 1.0]), "b": torch.ones(2)}
    found = _difference("outputs", *((broken, whole) if where == "stock" else (whole, broken)))
    assert found.where == "a"
    assert not Proof((found,)).holds


def test_a_proof_without_tensors_is_none() -> None:
    class Held:
        def __init__(self, value: Tensor) -> None:
            self.value = value

    class Holding(Mixed):
        def forward(self, *given: Tensor) -> Held:  # type: ignore[override]
            return Held(super().forward(*given)["squares"])

    network = Holding()
    with pytest.raises(TpgenError, match=r"returns no floating tensors that prove can see: .*_pytree"):
        convert(network, prove=mixed_inputs(), **GRAPHS)
    assert mark_of(network.full) is None


class Forces(nn.Module):
    """Casts to the dtype that it was built in, writes into the dict that it is given, and differentiates."""

    def __init__(self) -> None:
        super().__init__()
        self.model_dtype = torch.get_default_dtype()
        self.product = o3.FullyConnectedTensorProduct("1o", "1o", "0e")

    def forward(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        data["edges"] = data["x"].to(self.model_dtype).detach().requires_grad_()
        energy = self.product(data["edges"], data["edges"]).square().sum()
        (data["forces"],) = torch.autograd.grad(energy, data["edges"], create_graph=self.training)
        data["energy"] = energy
        return data


def test_inputs_are_asked_for_gradients_as_they_are_given() -> None:
    """A dict that is written into holds more than inputs, and not all that floats is differentiable."""
    reports = []
    inputs = ({"x": torch.randn(4, 3, dtype=torch.float64)},)
    convert(Forces(), measure=inputs, prove=inputs, report=reports.append, **GRAPHS)
    assert reports[0].proof.holds
    assert [t.task for t in reports[0].times.tasks] == ["call", "call and gradients"]
    assert list(inputs[0]) == ["x"]
    assert torch.get_default_dtype() == torch.float32
    with pytest.raises(TpgenError, match=r"cannot be differentiated with these inputs .*call network.train\(\)"):
        convert(Forces().eval(), measure=inputs, **GRAPHS)


def test_a_proof_needs_a_graph_to_differentiate() -> None:
    class Forces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.product = o3.FullTensorProduct("1o", "1o")

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            energy = self.product(x, x).square().sum()
            return energy, torch.autograd.grad(energy, x)[0]

    with pytest.raises(TpgenError, match=r"cannot be differentiated with these inputs .*training step"):
        convert(Forces(), prove=(torch.randn(2, 3, requires_grad=True),), **GRAPHS)


def test_what_is_zero_but_for_rounding_is_measured_beside_the_rest() -> None:
    zero, whole = torch.full((2,), 1e-17, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    for noise, holds in ((-zero, True), (zero + 1e-13, False)):
        found = _difference("outputs", {"zero": zero, "whole": whole}, {"zero": noise, "whole": whole})
        assert Proof((found,)).holds is holds
    assert not Proof((_difference("outputs", {"zero": zero}, {"zero": -zero}),)).holds


@pytest.mark.parametrize(
    "call, why",
    [
        (lambda n, x: convert("abc"), "network: convert takes a torch.nn.Module, got a str"),
        (lambda n, x: restore(None), "network: restore takes a torch.nn.Module, got a NoneType"),
        (lambda n, x: conversion_report(3), "network: conversion_report takes a torch.nn.Module, got a int"),
        (lambda n, x: convert(n, prove=5), r"prove: give the arguments of a call as a tuple, .*got a int"),
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
    assert mark_of(network.full) is None


# --- the report -----------------------------------------------------------------------------------------------------


def test_the_report_says_all_of_it() -> None:
    reports = []
    convert(Mixed(), prove=mixed_inputs(), measure=mixed_inputs(), report=reports.append, **GRAPHS)
    (report,) = reports
    text = str(report)
    assert text.startswith("Mixed: 5 modules compute with tpgen, 0 stay as they are")
    for part in (
        "connected = again",
        "e3nn.TensorSquare",
        "tpgen grouped (asked for)",
        "are equal",
        "call and gradients",
    ):
        assert part in text
    read = json.loads(report.to_json())
    assert [r["paths"] for r in read["replaced"]][1] == ["connected", "again"]
    assert {t["task"] for t in read["times"]["tasks"]} == {"call", "call and gradients"}


def test_the_report_of_a_stock_network_says_what_can_be_converted() -> None:
    report = conversion_report(nn.ModuleList([o3.FullTensorProduct("2x1o", "1o"), Scaled(*VECTORS)]))
    assert str(report).startswith(
        "ModuleList: 0 modules compute with tpgen, 1 can be converted, 1 stays as it is\n\n"
        "module  is                      can compute with\n0       e3nn.FullTensorProduct  tpgen "
    )
    assert [r.paths for r in report.possible] == [("0",)]


def test_a_float32_network_is_proven_against_exact_couplings() -> None:
    network = nn.ModuleDict({"p": o3.FullyConnectedTensorProduct("2x2e", "2e", "2e")})
    convert(network["p"], prove=(torch.randn(3, 10), torch.randn(3, 5)), **GRAPHS)


# --- adapters -------------------------------------------------------------------------------------------------------


def test_an_adapter_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Mixed()

    def adapter(found: nn.Module, options: dict):
        assert options == GRAPHS
        yield Kept(found.full, "the adapter knows better")

    monkeypatch.setattr("tpgen.conversion.adapters.ADAPTERS", ADAPTERS)
    monkeypatch.setitem(ADAPTERS, "elsewhere", "not.imported:ever")
    register_adapter("tests", adapter)
    try:
        with pytest.warns(UserWarning, match=r"'full': the adapter knows better"):
            convert(network, **GRAPHS)
    finally:
        del ADAPTERS["tests"]
    assert mark_of(network.full) is None
    assert mark_of(network.connected) is not None


def _twice(found: nn.Module, options: dict) -> list[Swap]:
    return 2 * [Swap(found, type(found), "nothing")]


def _hiding(found: nn.Module, options: dict) -> list[Swap]:
    return [Swap(found.get_submodule("full"), nn.Module, "nothing", {"training": True})]


@pytest.mark.parametrize(
    "adapter, why",
    [
        (_twice, r"test_convert._twice swaps '' \(a tests.Mixed\) a second time"),
        (_hiding, r"test_convert._hiding swaps 'full' \(a e3nn.FullTensorProduct\) and hides its training"),
    ],
)
def test_an_adapter_that_swaps_wrongly_is_named(adapter, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ADAPTERS, "tests", adapter)
    with pytest.raises(TpgenError, match=why):
        convert(Mixed(), **GRAPHS)


def test_outputs_are_asked_more_of_than_derivatives() -> None:
    one = {"a": torch.ones(2, dtype=torch.float64)}
    near = {"a": one["a"] + 1e-9}
    assert not Proof((_difference("outputs", one, near),)).holds
    assert Proof((_difference("gradients", one, near),)).holds


def test_a_scripted_network_that_is_converted_is_called_so() -> None:
    scripted = torch.jit.script(convert(o3.FullTensorProduct("2x1o", "1o"), **GRAPHS))
    network = nn.ModuleList([scripted, o3.FullTensorProduct("1o", "1o")])
    with pytest.warns(UserWarning, match="'0': a scripted ConvertedFullTensorProduct, which computes with"):
        convert(network, **GRAPHS)
    with pytest.raises(TpgenError, match="of a scripted network, restore the one that it was scripted from"):
        restore(scripted)


def test_an_adapter_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ADAPTERS, "tests", "tests.nowhere:swaps")
    network = Mixed()
    with pytest.warns(UserWarning, match=r"of tests, whose adapter cannot be loaded .*No module named 'tests.nowhere'"):
        convert(network, **GRAPHS)
    assert mark_of(network.full) is not None


@needs_compiler
def test_nothing_is_said_where_all_is_converted() -> None:
    network = Mixed()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert(network)


def test_what_a_swap_no_longer_calls_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubled(Mixed):
        def forward(self, x: Tensor, y: Tensor, w: Tensor) -> Tensor:  # type: ignore[override]
            return 2 * x

    monkeypatch.setitem(
        ADAPTERS, "tests", lambda found, _: [Swap(found, Doubled, "a doubling", covers=("full", "rest.0"))]
    )
    network = convert(Mixed(), **GRAPHS)
    assert next(r.now for r in conversion_report(network).replaced) == "a doubling"
    assert mark_of(network.full) is mark_of(network.rest[0]) is None
    assert mark_of(network.connected) is not None


def test_integers_are_promoted_as_by_e3nn() -> None:
    product, x, y = o3.ElementwiseTensorProduct("2x0e+1o", "3x0e"), torch.randn(4, 5), torch.arange(12).view(4, 3)
    wanted = product(x, y)
    torch.testing.assert_close(convert(product, **GRAPHS)(x, y), wanted)


def test_a_report_that_fails_leaves_the_network_as_it_was() -> None:
    def failing(found: object) -> None:
        raise RuntimeError("no room to write")

    network = Layer()
    before = attributes(network)
    with pytest.raises(RuntimeError, match="no room to write"):
        convert(network, report=failing, **GRAPHS)
    assert attributes(network) == before
