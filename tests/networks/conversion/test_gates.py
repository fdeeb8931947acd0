"""e3nn's gates: converted ones against stock."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from e3nn import o3
from e3nn.nn import Activation, Gate
from e3nn.util.jit import compile as e3nn_compile
from torch import Tensor, nn

from tests.machine import needs_compiler
from tests.networks.conversion.networks import check_conversion, pickled
from tpgen.functions import gate as gate_module
from tpgen.networks.conversion import gates
from tpgen.networks.conversion.convert import conversion_report, convert, restore
from tpgen.networks.conversion.gates import ConvertedGate
from tpgen.networks.tracer import trace_network

silu = nn.functional.silu


def mixed() -> Gate:
    """Irreps in an order that e3nn sorts, gates that serve parts of two irreps, and functions of every kind."""
    functions = [silu, torch.abs, torch.sigmoid], [torch.sigmoid, torch.tanh]
    return Gate("3x0e+2x0o+4x0e", functions[0], "2x0e+5x0o", functions[1], "3x1o+2x1o+1x2e+1x0o")


GATES: dict[str, Callable[[], Gate]] = {
    "mixed": mixed,
    "e3nn's example": lambda: Gate("16x0o", [torch.tanh], "32x0o", [torch.tanh], "16x1e+16x1o"),
    "sorted otherwise": lambda: Gate("4x0o+4x0e", [torch.tanh, silu], "8x0e", [silu], "4x2o+2x1o+2x1e"),
    "scalars alone": lambda: Gate("5x0e", [silu], "", [], ""),
    "no scalars": lambda: Gate("", [], "5x0e", [torch.sigmoid], "5x1o"),
    "no function": lambda: Gate("5x0o+2x0e", [None, torch.relu], "3x0e", [None], "3x3o"),
    "odd gates of many": lambda: Gate("17x0e", [nn.functional.tanh], "35x0o", [nn.functional.tanh], "17x1e+18x2o"),
    "functions as modules": lambda: Gate(
        "4x0e+4x0o", [nn.SiLU(), nn.Tanh()], "5x0e+3x0e", [nn.Sigmoid(), nn.ReLU()], "8x1o"
    ),
    "functions of no table": lambda: Gate(
        "3x0e+2x0o+4x0e", [_shifted, torch.sin, nn.ELU()], "2x0e+5x0o", [silu, torch.sin], "3x1o+2x1o+1x2e+1x0o"
    ),
    "functions that write": lambda: Gate("4x0e", [nn.SiLU(inplace=True)], "5x0e", [nn.ReLU(inplace=True)], "5x1o"),
    "an empty irrep": lambda: Gate("0x0o+3x0e", [torch.tanh, silu], "2x0e", [silu], "0x2e+2x1o"),
}


def rows(gate: nn.Module, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, gate.irreps_in.dim, dtype=dtype)


def pair(make: Callable[[], Gate] = mixed) -> tuple[Gate, Gate]:
    """A stock gate and a converted one, in float64 as they would be if built in it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        stock = make()
    finally:
        torch.set_default_dtype(before)
    return stock, convert(deepcopy(stock))


@pytest.mark.parametrize("name", GATES)
def test_three_orders_are_those_of_stock(name: str) -> None:
    stock, ours = pair(GATES[name])
    given = [rows(stock, 2, 3).requires_grad_() for _ in range(3)]

    def orders(gate: nn.Module) -> list[Tensor]:
        x, c, e = given
        torch.manual_seed(0)
        out = gate(x)
        g = torch.randn_like(out).requires_grad_()
        found = [out, *torch.autograd.grad(out, x, g, create_graph=True)]
        found += torch.autograd.grad(found[1], (g, x), c, create_graph=True, materialize_grads=True)
        return [*found, *torch.autograd.grad(found[3] + 0 * x, (c, x), e, materialize_grads=True)]

    for found, wanted in zip(orders(ours), orders(stock), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", GATES)
def test_a_gate_built_in_float32_is_stock(name: str) -> None:
    check_conversion(GATES[name], [rows(GATES[name](), 4, dtype=torch.float32)], ConvertedGate, (deepcopy, pickled))


@pytest.mark.parametrize("shape", [(), (0,), (2, 3, 4), (1, 0)])
def test_any_leading_dimensions(shape: tuple[int, ...]) -> None:
    stock, ours = pair()
    x = rows(stock, *shape)
    torch.testing.assert_close(ours(x), stock(x))


def test_scripted_traced_and_compiled() -> None:
    stock, ours = pair()
    x = rows(stock, 3)
    wanted = stock(x)
    others = (e3nn_compile(deepcopy(ours)), torch.compile(ours, backend="aot_eager", fullgraph=True))
    for other in (*others, trace_network(nn.Sequential(ours)), torch.jit.trace(ours, x)):
        torch.testing.assert_close(other(x), wanted)


def test_transforms_see_through_it() -> None:
    stock, ours = pair()
    x = rows(stock, 2)
    torch.testing.assert_close(torch.func.vmap(ours)(x), stock(x))
    jacobians = [torch.func.jacrev(gate)(x[0]) for gate in (stock, ours)]
    torch.testing.assert_close(*jacobians)
    torch.testing.assert_close(torch.func.jacfwd(ours)(x[0]), jacobians[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_changes_as_little_as_in_stock(dtype: torch.dtype) -> None:
    stock, ours = mixed().to(dtype), convert(mixed().to(dtype))
    x = rows(stock, 3, dtype=dtype)
    with torch.autocast("cpu"):
        found, wanted = ours(x), stock(x)
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted)


@needs_compiler
def test_one_kernel_runs_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    stock, ours = pair()
    calls: list = []
    monkeypatch.setattr(
        gate_module, "gate_value", lambda table, x: (calls.append(1), (x.new_empty(3, table.dim_out),))[1]
    )
    for x in (rows(stock, 3), rows(stock, 3).bfloat16(), rows(stock, 3).to("meta")):
        ours(x)
    assert len(calls) == 1


@needs_compiler
def test_the_report_follows_dtype_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(gate: nn.Module) -> str:
        (row,) = conversion_report(gate).replaced
        return row.now

    assert told(convert(mixed())) == "tpgen kernel (activations and product in one)"
    assert told(convert(mixed(), strategy="grouped")) == "torch operations, fewer than e3nn's"
    assert re.search(r"kernels of gates compute in float32 and float64 on a CPU", told(convert(mixed()).half()))
    monkeypatch.setattr(gates, "find_compiler", lambda: None)
    assert re.search(r"kernels need a C\+\+ compiler, and none was found", told(convert(mixed())))


@needs_compiler
def test_a_strategy_without_kernels_takes_torchs_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = mixed()
    x = rows(gate, 3, dtype=torch.float32)
    wanted = gate(x)
    monkeypatch.setattr(gate_module, "gate_value", None)
    torch.testing.assert_close(convert(gate, strategy="grouped")(x), wanted)


@pytest.mark.parametrize("name", ["gate", "gate.mul", "e3nn.Gate", "e3nn.ElementwiseTensorProduct"])
def test_a_part_that_is_kept_keeps_the_gate(name: str) -> None:
    network = nn.ModuleDict({"gate": mixed(), "linear": o3.Linear("2x1o", "1o")})
    convert(network, keep=name)
    assert type(network["gate"]) is Gate
    assert type(network["gate"].mul) is o3.ElementwiseTensorProduct


def test_its_product_may_have_been_converted_before() -> None:
    stock, gate = pair()
    restore(gate)
    convert(gate.mul)
    x = rows(stock, 3)
    torch.testing.assert_close(convert(gate)(x), stock(x))
    assert type(restore(gate).mul) is o3.ElementwiseTensorProduct


class _Doubled(Gate):
    def forward(self, features: Tensor) -> Tensor:
        return 2 * super().forward(features)


def test_a_subclass_keeps_its_code_and_its_product_is_converted() -> None:
    gate = _Doubled("3x0e", [silu], "2x0e", [silu], "2x1o")
    x = rows(gate, 3, dtype=torch.float32)
    wanted = gate(x)
    assert type(convert(gate)) is _Doubled
    torch.testing.assert_close(gate(x), wanted)


def _shifted(x: Tensor) -> Tensor:
    return nn.functional.softplus(x) - 1


class _Zero(nn.Module):
    output_mask = torch.zeros(1)

    def forward(self, x: Tensor, _: Tensor) -> Tensor:
        return 0 * x


def _add_one(_module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
    return (given[0] + 1,)


def _double(_module: nn.Module, _given: tuple, out: Tensor) -> Tensor:
    return 2 * out


def _set_activation(name: str, functions: list) -> Callable[[Gate], None]:
    return lambda gate: setattr(gate, name, Activation(getattr(gate, name).irreps_in, functions))


Change = Callable[[Gate], object]
FORWARDS: dict[str, Change] = {
    "forward of a part": lambda gate: setattr(gate.act_gates, "forward", lambda x: x + 1),
    "forward of a function": lambda gate: setattr(gate.act_gates.acts[1], "forward", lambda x: x + 1),
}
HOOKS: dict[str, Change] = {
    "on a part": lambda gate: gate.sc.register_forward_hook(lambda _module, _given, out: tuple(2 * x for x in out)),
    "on a function": lambda gate: gate.act_scalars.acts[0].register_forward_hook(_double),
    "on the cut": lambda gate: gate.sc.cut.register_forward_pre_hook(_add_one),
    "on the product": lambda gate: gate.mul.register_forward_pre_hook(lambda _, given: (given[0], 2 * given[1])),
}
# e3nn 0.4.4 scripts its programs, and scripted modules refuse hooks
if not isinstance(mixed().sc.cut._compiled_forward, torch.jit.ScriptModule):
    HOOKS["on a program"] = lambda gate: gate.sc.cut._compiled_forward.register_forward_pre_hook(_add_one)
OTHERS: dict[str, Change] = {
    "another product": lambda gate: setattr(gate, "mul", _Zero()),
    "another function": _set_activation("act_gates", [_shifted, torch.tanh]),
    "a module": _set_activation("act_gates", [nn.ELU(), torch.tanh]),
    "a known function": _set_activation("act_scalars", [torch.sigmoid, torch.abs, silu]),
    "another scale": lambda gate: setattr(gate.act_scalars.acts[0], "cst", 7.0),
    "on the gate itself": lambda gate: gate.register_forward_hook(_double),
}
CHANGES = {**FORWARDS, **HOOKS, **OTHERS}
WHY = {
    **dict.fromkeys(FORWARDS, "its forward is replaced on the instance"),
    **dict.fromkeys(HOOKS, "of hooks inside it"),
    "another product": r"of a part mul that is a tests\._Zero, not e3nn's",
}


@pytest.mark.parametrize("change", WHY)
def test_a_changed_gate_stays(change: str) -> None:
    network = nn.ModuleDict({"first": mixed(), "changed": mixed()})
    CHANGES[change](network["changed"])
    x = rows(network["changed"], 3, dtype=torch.float32)
    wanted = network["changed"](x)
    with pytest.warns(UserWarning, match=f"'changed': {WHY[change]}"):
        convert(network)
    assert type(network["changed"]) is Gate
    torch.testing.assert_close(network["changed"](x), wanted)


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_afterwards_counts(change: str) -> None:
    stock, ours = pair()
    x = rows(stock, 3)
    before = stock(x)
    for each in (stock, ours):
        CHANGES[change](each)
    torch.testing.assert_close(ours(x), stock(x))
    assert not torch.equal(stock(x), before)
    (row,) = conversion_report(ours).replaced
    assert (row.now == "e3nn's own code, as a part was changed since") == (change != "on the gate itself")
