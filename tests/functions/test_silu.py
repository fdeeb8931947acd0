"""SiLU on many rows."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

from tests.machine import needs_compiler
from tpgen.functions import silu as silu_module
from tpgen.functions.silu import silu


@pytest.fixture(autouse=True)
def _all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silu_module, "WORTH_SILU", 0)


def numbers() -> torch.Tensor:
    return (3 * torch.randn(4, 3, dtype=torch.float64)).requires_grad_()


def test_three_orders_of_derivatives() -> None:
    assert torch.autograd.gradcheck(silu, numbers(), check_batched_grad=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(silu, numbers(), check_batched_grad=True)

    def second(x: torch.Tensor) -> torch.Tensor:
        (first,) = torch.autograd.grad(silu(x).pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), x, create_graph=True)[0]

    assert torch.autograd.gradcheck(second, numbers())


def test_second_derivatives_are_torchs_with_and_without_a_graph() -> None:
    x, g, c = (numbers() for _ in range(3))

    def backwards(f, keep: bool) -> tuple[torch.Tensor, ...]:
        (first,) = torch.autograd.grad(f(x), x, g, create_graph=True)
        return torch.autograd.grad(first, (x, g), c, create_graph=keep)

    wanted = backwards(torch.nn.functional.silu, False)
    for keep in (False, True):
        torch.testing.assert_close(backwards(silu, keep), wanted)


def test_extreme_numbers() -> None:
    x = torch.tensor([-1e4, -100.0, 0.0, 100.0, 1e4], requires_grad=True)
    (first,) = torch.autograd.grad(silu(x).sum(), x, create_graph=True)
    torch.testing.assert_close(first, torch.tensor([0.0, 0.0, 0.5, 1.0, 1.0]))
    torch.testing.assert_close(torch.autograd.grad(first.sum(), x)[0], torch.tensor([0.0, 0.0, 0.5, 0.0, 0.0]))


def test_transforms() -> None:
    x = numbers().detach()
    torch.testing.assert_close(torch.func.vmap(silu)(x), torch.nn.functional.silu(x))
    hessian = torch.func.hessian(lambda x: silu(x).sum())
    torch.testing.assert_close(hessian(x[0]), torch.func.hessian(lambda x: torch.nn.functional.silu(x).sum())(x[0]))


def test_tangents_may_come_to_the_backward_alone() -> None:
    x, g, tangent = numbers(), numbers().detach(), numbers().detach()
    found = []
    for f in (silu, lambda x: x * torch.sigmoid(x)):  # torch's own takes none
        y = f(x)
        with forward_ad.dual_level():
            (first,) = torch.autograd.grad(y, x, forward_ad.make_dual(g, tangent))
            found.append(forward_ad.unpack_dual(first))
    torch.testing.assert_close(found[0].primal, found[1].primal)
    torch.testing.assert_close(found[0].tangent, found[1].tangent)


def test_without_a_compiler_it_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silu_module, "can_build_kernel", lambda *_: False)
    test_second_derivatives_are_torchs_with_and_without_a_graph()


@needs_compiler
def test_second_derivatives_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    kernel = silu_module.silu_second_grad
    monkeypatch.setattr(silu_module, "silu_second_grad", lambda *given: (calls.append(1), kernel(*given))[1])
    test_second_derivatives_are_torchs_with_and_without_a_graph()
    assert len(calls) == 2


def test_nothing_is_recorded_where_nothing_asks() -> None:
    assert silu(numbers().detach()).grad_fn is None
    with torch.no_grad():
        assert silu(numbers()).grad_fn is None
