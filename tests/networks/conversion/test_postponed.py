"""Postponed tensors are the tensors that they stand for, whatever is done with them."""

from __future__ import annotations

import pickle
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tpgen.base.errors import InputError
from tpgen.networks.conversion.postponed import Postponed, swap_tensors_if_possible


def function(x: Tensor, y: Tensor) -> Tensor:
    return x @ y.sin()


@pytest.fixture
def given() -> list[Tensor]:
    return [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((5, 3), (3, 4))]


def postponed(given: list[Tensor]) -> Postponed:
    return Postponed.make_postponed(function, given, (5, 4))


def test_what_needs_no_numbers(given: list[Tensor]) -> None:
    x = postponed(given)
    assert (x.shape, x.size(1), x.dim(), x.ndim, len(x), x.numel()) == ((5, 4), 4, 2, 2, 5, 20)
    assert (x.dtype, x.device, x.requires_grad, x.is_cuda) == (torch.float64, torch.device("cpu"), True, False)
    assert x.new_zeros(2, x.shape[1]).shape == (2, 4)
    assert torch.zeros_like(x).stride() == (4, 1)
    assert torch.arange(5)[:, None].expand_as(x).shape == (5, 4)
    assert type(x) is Postponed
    assert not postponed([t.detach() for t in given]).requires_grad


def assert_gradients_agree(found: Tensor, wanted: Tensor, given: list[Tensor]) -> None:
    gradients = []
    for x in (found, wanted):
        x.backward()
        gradients.append([t.grad for t in given])
        for t in given:
            t.grad = None
    torch.testing.assert_close(*gradients)


class Doubled(torch.autograd.Function):
    """A function of a user's, which torch hands tensors below Python's functions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g


@torch.jit.script
def scripted(x: Tensor) -> Tensor:
    return 2 * x


WAYS = {
    "operator": lambda x: x + x,
    "function": lambda x: torch.cat([x[:2], x[2:]]) * 2,
    "in place": lambda x: x.mul_(2),
    "augmented": lambda x: x.__imul__(2),
    "rows": lambda x: torch.stack([*x]) * 2,
    "scripted": scripted,
    "autograd.Function": Doubled.apply,
    "twice": lambda x: x.sin() * 0 + x * 2,
    "module": lambda x: nn.functional.linear(x, 2 * torch.eye(4, dtype=x.dtype)),
    "index": lambda x: x.new_zeros(5, 4).scatter_add(0, torch.arange(5)[:, None].expand_as(x), x) * 2,
    "checkpoint": lambda x: checkpoint(lambda y: 2 * y, x, use_reentrant=False),
    "older checkpoint": lambda x: checkpoint(lambda y: 2 * y, x, use_reentrant=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_whatever_reads_it_gets_numbers_and_gradients(given: list[Tensor], way: str) -> None:
    found, wanted = (WAYS[way](x).cos().sum() for x in (postponed(given), function(*given)))
    torch.testing.assert_close(found, wanted)
    if way == "older checkpoint":  # which knows backward() alone
        assert_gradients_agree(found, wanted, given)
        return
    first, other = (torch.autograd.grad(x, given, create_graph=True) for x in (found, wanted))
    torch.testing.assert_close(first, other)
    second, again = (torch.autograd.grad(g[0].sin().sum() + g[1].cos().sum(), given) for g in (first, other))
    torch.testing.assert_close(second, again)


@pytest.mark.parametrize("older", [True, False])
def test_one_that_a_checkpoint_makes(given: list[Tensor], older: bool) -> None:
    found, wanted = (checkpoint(make, *given, use_reentrant=older) for make in (lambda *x: postponed([*x]), function))
    assert type(found) is Postponed
    assert_gradients_agree(found.cos().sum(), wanted.cos().sum(), given)


def test_writes_in_place_stay(given: list[Tensor]) -> None:
    with torch.no_grad():
        x, wanted = postponed(given), function(*given)
        x.add_(1)
        x[0] = 0
    wanted = wanted.add(1).index_fill(0, torch.tensor(0), 0)
    assert torch.equal(x + 0, wanted)
    assert type(x) is Tensor


def test_one_that_torch_holds_stands_beside_its_numbers(given: list[Tensor]) -> None:
    made = postponed([t.detach() for t in given])
    held = torch._C._WeakTensorRef(made)  # type: ignore[attr-defined]  # as a profiler that records shapes has
    assert torch.equal(torch.cat((made, made)), torch.cat((function(*given),) * 2))
    assert type(made) is Postponed
    assert not held.expired()


def test_a_swap_that_torch_refuses_changes_nothing() -> None:
    first, second = nn.Parameter(torch.zeros(2)), torch.ones(3)
    second.name_of_user = "b"  # type: ignore[attr-defined]
    held = torch._C._WeakTensorRef(second)  # type: ignore[attr-defined]
    assert not swap_tensors_if_possible(first, second)
    assert type(first) is nn.Parameter
    assert type(second) is Tensor
    assert (first.shape, second.shape, vars(first), vars(second)) == ((2,), (3,), {}, {"name_of_user": "b"})
    del held
    assert swap_tensors_if_possible(first, second)
    assert first.shape == (3,)


def test_copies_and_pickles_are_plain(given: list[Tensor]) -> None:
    x = postponed([t.detach() for t in given])
    wanted = function(*given).detach()
    for copy in (deepcopy(x), pickle.loads(pickle.dumps(x)), torch.from_numpy(x.numpy()), torch.tensor(x.tolist())):
        assert torch.equal(copy + 0, wanted.to(copy.dtype) if copy.dtype != wanted.dtype else wanted)
    assert "Postponed" not in repr(x)


def test_the_mode_of_its_making_counts(given: list[Tensor]) -> None:
    tracked = postponed(given)
    with torch.no_grad():
        assert not (tracked + 0).requires_grad
        untracked = postponed(given)
    assert tracked.requires_grad
    assert not (untracked + 0).requires_grad


def test_an_operand_that_was_written_to_is_an_error(given: list[Tensor]) -> None:
    x = postponed(given)
    with torch.no_grad():
        given[0].zero_()
    with pytest.raises(InputError, match="keep="):
        x.sum()
