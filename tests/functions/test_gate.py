"""Gates as autograd, transforms and torch's compiler see them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.machine import needs_compiler
from tpgen.base.errors import InputError
from tpgen.functions import gate as gate_module
from tpgen.functions.gate import gate, gate_by_torch, make_gate_table

TABLE = make_gate_table(
    [("silu", 1.3, 2, 0, 0), ("tanh", 1.0, 0, 0, 0)]
    + [("sigmoid", 0.7, 3, 6, 3), ("sigmoid", 0.7, 4, 9, 3), ("tanh", 1.1, 1, 12, 5), ("identity", 1.0, 5, 17, 1)]
)
IDENTITY = make_gate_table([("identity", 1.0, 0, 0, 0)])  # of which second derivatives do not depend on anything


def numbers(*shape: int, table=TABLE) -> Tensor:
    return torch.randn(*shape, table.dim_in, dtype=torch.float64).requires_grad_()


def ours(x: Tensor) -> Tensor:
    return gate(TABLE, x)


def torchs(x: Tensor) -> Tensor:
    return gate_by_torch(TABLE, x)


def test_three_orders_of_derivatives() -> None:
    x = numbers(2)
    assert torch.autograd.gradcheck(ours, x, check_batched_grad=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(ours, x, check_batched_grad=True)

    def second(x: Tensor) -> Tensor:
        (first,) = torch.autograd.grad(ours(x).pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), x, create_graph=True)[0]

    assert torch.autograd.gradcheck(second, x)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,), (2, 0)])
@pytest.mark.parametrize("table", [TABLE, IDENTITY], ids=["several", "identity"])
def test_four_orders_are_torchs_for_any_leading_dimensions(shape: tuple[int, ...], table) -> None:
    x, g, c, e = (numbers(*shape, table=table) for _ in range(4))
    g = torch.randn(*shape, table.dim_out, dtype=torch.float64).requires_grad_()

    def orders(f: Callable[[Tensor], Tensor]) -> list[Tensor]:
        out = f(x)
        found = [out, *torch.autograd.grad(out, x, g, create_graph=True)]
        found += torch.autograd.grad(found[1], (g, x), c, create_graph=True, materialize_grads=True)
        third = torch.autograd.grad(found[3], (c, g, x), e, create_graph=True, materialize_grads=True)
        return [*found, *third, *torch.autograd.grad(third[2] + 0 * x, (c, g, x, e), x, materialize_grads=True)]

    for found, wanted in zip(orders(lambda x: gate(table, x)), orders(lambda x: gate_by_torch(table, x)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@needs_compiler
def test_each_order_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    ours_by_order = enumerate(gate_module._GATE.kernels)
    counted = [lambda *given, n=n, k=k: (calls.append(n), k(*given))[1] for n, k in ours_by_order]
    monkeypatch.setattr(gate_module, "_GATE", gate_module._GATE._replace(kernels=tuple(counted)))
    x = numbers(4)
    torch.autograd.grad(ours(x).sum(), x)
    assert calls == [0, 1]
    (first,) = torch.autograd.grad(ours(x).sum(), x, create_graph=True)
    torch.autograd.grad(first.sum(), x)
    assert calls == [0, 1, 0, 1, 2]


def test_hooks_on_an_operand_are_called_once() -> None:
    def third(f: Callable[[Tensor], Tensor]) -> tuple[list[float], Tensor]:
        torch.manual_seed(0)
        leaf = numbers(2)
        x, seen = 1 * leaf, []
        x.register_hook(lambda g: seen.append(g.detach().sum().item()))
        (first,) = torch.autograd.grad(f(x).pow(2).sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.pow(2).sum(), leaf, create_graph=True)
        second.pow(2).sum().backward()
        return seen, leaf.grad

    (seen, found), (by_torch, wanted) = third(ours), third(torchs)
    assert seen == pytest.approx(by_torch)
    torch.testing.assert_close(found, wanted)


def test_transforms() -> None:
    x, v = numbers(3).detach(), torch.randn(4, 3, TABLE.dim_out, dtype=torch.float64)
    torch.testing.assert_close(torch.func.vmap(ours)(x), torchs(x))
    hessian = torch.func.hessian(lambda x: ours(x).pow(2).sum())
    torch.testing.assert_close(hessian(x[0]), torch.func.hessian(lambda x: torchs(x).pow(2).sum())(x[0]))
    x.requires_grad_()
    y = ours(x)
    for found in (
        torch.func.vmap(lambda v: torch.autograd.grad(y, x, v, retain_graph=True)[0])(v),
        torch.autograd.grad(y, x, v, is_grads_batched=True)[0],
    ):
        torch.testing.assert_close(found, torch.stack([torch.autograd.grad(torchs(x), x, each)[0] for each in v]))


def test_traced_and_compiled_it_is_torchs_operations() -> None:
    x = numbers(3).detach()
    wanted = ours(x)
    torch.testing.assert_close(torch.jit.trace(ours, x)(x), wanted)
    torch.testing.assert_close(torch.fx.symbolic_trace(ours)(x), wanted)
    torch.testing.assert_close(torch.compile(ours, backend="eager", fullgraph=True)(x), wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64])
def test_other_dtypes_are_torchs(dtype: torch.dtype) -> None:
    x = numbers(3).detach().to(dtype)
    torch.testing.assert_close(ours(x), torchs(x))


def test_autocast_leaves_it_as_it_is() -> None:
    x = numbers(3).detach().float()
    with torch.autocast("cpu"):
        torch.testing.assert_close(ours(x), torchs(x))


@pytest.mark.parametrize("kernels", [True, False])
def test_without_kernels_it_is_torchs(kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "can_build_kernel" if kernels else "are_plain", lambda *given: None)
    monkeypatch.setattr(gate_module, "_GATE", gate_module._GATE._replace(kernels=()))
    x = numbers(3)
    torch.testing.assert_close(gate(TABLE, x, kernels), torchs(x))


def test_nothing_is_recorded_where_nothing_asks() -> None:
    assert ours(numbers(2).detach()).grad_fn is None
    with torch.no_grad():
        assert ours(numbers(2)).grad_fn is None


@pytest.mark.parametrize("shape", [(), (3, 4), (3, TABLE.dim_in + 1)])
def test_rows_of_another_length_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"features:.*18.*\("):
        gate(TABLE, torch.zeros(shape))
