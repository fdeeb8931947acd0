"""Large results use pages again, and only those that nothing can see any more."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch

from tpgen.kernels.operators import memory
from tpgen.kernels.operators.memory import (
    _KEPT,
    _PAGE,
    _WINDOW,
    _limit,
    _mapped,
    _rounded,
    _Slabs,
    empty,
    kept,
    release,
)

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


def test_what_is_kept_follows_what_was_in_use_at_once() -> None:
    """There is no size at which reuse ends.  (Nothing is touched here, so this takes no memory.)"""
    slabs, size = _Slabs(limit=None), _KEPT + _PAGE
    both = [slabs.take(size), slabs.take(size)]
    for slab in both:
        slabs.give_back(slab)
    assert slabs.held == 2 * size
    assert {id(slabs.take(size)), id(slabs.take(size))} == {id(slab) for slab in both}
    for slab in both:
        slabs.give_back(slab)
    for _ in range(2 * _WINDOW):
        slabs.give_back(slabs.take(_PAGE))
    assert slabs.held + slabs.used <= _KEPT


def test_results_of_two_sizes_that_take_turns_find_their_pages() -> None:
    """As weights of edges and gradients of other sizes do in a step of training; `_new` maps what is not found."""
    slabs, size, made = _Slabs(limit=None), _KEPT, []
    slabs._new = lambda size: made.append(size) or _mapped(size)  # type: ignore[method-assign]
    for _ in range(3):
        first, second = slabs.take(size), slabs.take(size)
        slabs.give_back(first)
        third = slabs.take(size // 2)
        slabs.give_back(second)
        slabs.give_back(third)
    assert made == [size, size, size // 2]


def test_a_slab_serves_about_its_size() -> None:
    slabs = _Slabs(limit=None)
    large, small = slabs.take(5 * _PAGE), slabs.take(4 * _PAGE)
    for slab in (large, small):
        slabs.give_back(slab)
    assert slabs.take(4 * _PAGE) is small
    assert slabs.take(4 * _PAGE) is large
    slabs.give_back(large)
    assert slabs.take(3 * _PAGE) is not large
    for size in range(2**20, 2**22, 12345):
        assert size <= _rounded(size) <= size * 9 / 8


def test_a_collection_may_come_at_any_point() -> None:
    """A tensor that dies while slabs are looked through or counted comes back all the same."""
    slabs = _Slabs(limit=None)
    inner = slabs.take(_PAGE)
    outer = slabs.take(_PAGE)

    class Collecting(type(slabs._free)):  # type: ignore[misc]
        def __reversed__(self):
            slabs.give_back(inner)
            return super().__reversed__()

        def items(self):
            slabs.give_back(inner)
            return super().items()

    slabs.give_back(outer)
    slabs._free = Collecting(slabs._free)
    assert slabs.take(_PAGE) is outer
    slabs._free = type(slabs._free).__mro__[1](slabs._free)
    assert slabs.take(_PAGE) is inner


def test_memory_that_is_kept_is_given_up_before_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    slabs, refused = _Slabs(limit=None), []
    slabs.give_back(slabs.take(_PAGE))

    def full(size: int) -> mmap.mmap:
        if slabs.held or size > 2 * _PAGE:
            refused.append(size)
            raise OSError(12, "Cannot allocate memory")
        return mmap.mmap(-1, size)

    monkeypatch.setattr(memory, "_mapped", full)
    assert len(slabs.take(2 * _PAGE)) == 2 * _PAGE
    assert (refused, slabs.held, slabs.used) == ([2 * _PAGE], 0, 2 * _PAGE)
    monkeypatch.setattr(memory, "_slabs", slabs)
    assert empty((3 * _PAGE,), torch.float32).shape == (3 * _PAGE,)  # torch's own, or torch's own error
    assert slabs.used == 2 * _PAGE


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs /proc")
def test_results_take_the_room_that_they_fill() -> None:
    def resident() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmRSS")).split()[1])

    release()
    before = resident()
    made = [empty((2**18 + 8000,), torch.float32).fill_(1.0) for _ in range(100)]
    assert resident() - before < 1.2 * sum(x.nbytes for x in made)


def test_what_is_kept_can_be_seen_and_released() -> None:
    del_me = empty(LARGE, torch.float32)
    del del_me
    assert kept() >= LARGE[0] * 4
    release()
    assert kept() == 0


@pytest.mark.parametrize("text", ["64MB", "²", "-1", "1.5"])
def test_a_limit_that_is_no_number_is_said(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TPGEN_REUSE_MB", text)
    with pytest.warns(UserWarning, match=f"TPGEN_REUSE_MB must be a whole number of MB, got '{text}'"):
        assert _limit() is None


def test_a_limit_is_a_number_of_mb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPGEN_REUSE_MB", "64")
    assert _limit() == 64 * 2**20
    monkeypatch.delenv("TPGEN_REUSE_MB")
    assert _limit() is None
