"""Large results use pages again, and only those that nothing can see any more."""

from __future__ import annotations

import mmap

import pytest
import torch

from tpgen.kernels.operators.memory import _PAGE, _limit, _Slabs, empty

LARGE = (3 * _PAGE // 4 + 5,)  # three pages of float32


def test_a_slab_comes_back_with_the_last_view() -> None:
    first = empty(LARGE, torch.float32)
    place, view = first.data_ptr(), first[10:20]
    del first
    second = empty(LARGE, torch.float32)
    assert second.data_ptr() != place
    view.fill_(7.0)
    second.fill_(1.0)
    assert view.eq(7.0).all()
    del view
    assert empty(LARGE, torch.float32).data_ptr() == place


def test_a_graph_keeps_what_it_saved() -> None:
    x = empty(LARGE, torch.float32).fill_(3.0).requires_grad_()
    y = x.detach().clone().requires_grad_()
    product = x * y
    del x
    others = [empty(LARGE, torch.float32).fill_(0.0) for _ in range(3)]
    (g,) = torch.autograd.grad(product.sum(), y)
    assert g.eq(3.0).all()
    assert len(others) == 3


def test_slabs_are_kept_up_to_a_limit() -> None:
    slabs = _Slabs(limit=2 * _PAGE)
    made = [slabs.take(_PAGE) for _ in range(3)]
    for slab in made:
        slabs.give_back(slab)
    assert slabs.held == 2 * _PAGE
    assert slabs.take(_PAGE) is made[2]
    assert slabs.held == _PAGE


def test_small_tensors_are_ordinary() -> None:
    assert empty((4, 0), torch.float64).shape == (4, 0)
    assert empty((4, 3), torch.bfloat16).dtype == torch.bfloat16


def test_gradients_are_summed_in_place() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: torch.Tensor) -> torch.Tensor:
            return x.sum()

        @staticmethod
        def backward(ctx, g: torch.Tensor) -> torch.Tensor:
            made = empty(LARGE, torch.float32).fill_(1.0)
            places.append(made.data_ptr())
            return made

    places: list[int] = []
    x = torch.zeros(LARGE, requires_grad=True)
    (gradient,) = torch.autograd.grad(Twice.apply(x) + Twice.apply(x), x)
    assert gradient.eq(2.0).all()
    assert gradient.data_ptr() in places


def test_a_system_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain(mmap.mmap):
        def madvise(self, *advice: int) -> None:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr("tpgen.kernels.operators.memory.mmap.mmap", Plain)
    assert len(_Slabs(limit=_PAGE).take(_PAGE)) == _PAGE


def test_a_limit_that_is_no_number_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPGEN_REUSE_MB", "64MB")
    with pytest.warns(UserWarning, match="TPGEN_REUSE_MB must be a whole number of MB, got '64MB'"):
        assert _limit() == 256 * 2**20
