"""Large results use pages again, and only those that nothing can see any more."""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from resource import RUSAGE_SELF, getrusage

import pytest
import torch

from tpgen.kernels.runtime import memory
from tpgen.kernels.runtime.memory import _KEPT, _OFFERED, _RESERVED, _WINDOW, _Arena, _limit, empty, kept, release
from tpgen.kernels.runtime.pages import PAGE, Region

LARGE = (3 * PAGE // 4 + 5,)  # three pages of float32


def test_a_place_comes_back_with_the_last_view() -> None:
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


def test_places_are_kept_up_to_a_limit() -> None:
    arena = _Arena(limit=2 * PAGE)
    made = [arena.take(PAGE) for _ in range(3)]
    for place in made:
        arena.give_back(place)
    assert arena.kept == 2 * PAGE
    assert arena.take(PAGE) == made[0]
    assert arena.kept == PAGE


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

    monkeypatch.setattr("tpgen.kernels.runtime.pages.mmap.mmap", Plain)
    arena = _Arena(limit=PAGE)
    arena.give_back(arena.take(PAGE))
    assert arena.kept == PAGE


def test_free_pages_are_offered_to_the_system_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """An offer at each return would cost a small kernel a fifth of its time."""
    offers: list[int] = []

    class Noted(mmap.mmap):
        def madvise(self, advice: int, begin: int, size: int) -> None:
            if advice == mmap.MADV_FREE:
                offers.append(size)

    monkeypatch.setattr("tpgen.kernels.runtime.pages.mmap.mmap", Noted)
    arena = _Arena(limit=None)
    held = arena.take(PAGE // 2)  # the page that it shares is not free
    for _ in range(2 * _OFFERED):
        arena.give_back(arena.take(3 * PAGE // 2))
    assert offers == [PAGE, PAGE]
    arena.give_back(arena.take(_KEPT))  # as much at once is offered at once
    assert offers == [PAGE, PAGE, _KEPT]
    arena.give_back(held)


def test_what_is_kept_follows_what_was_in_use_at_once() -> None:
    """There is no size at which reuse ends.  (Nothing is touched here, so this takes no memory.)"""
    arena, size = _Arena(limit=None), _KEPT + PAGE
    both = [arena.take(size), arena.take(size)]
    for place in both:
        arena.give_back(place)
    assert 2 * size <= arena.kept <= 2 * size + PAGE
    assert [arena.take(size), arena.take(size)] == both
    for place in both:
        arena.give_back(place)
    for _ in range(2 * _WINDOW):
        arena.give_back(arena.take(PAGE))
    assert arena.filled <= _KEPT


def steps(arena: _Arena, sizes: Sequence[int], overlap: int) -> Iterator[int]:
    """Bytes of fresh pages that each step of a loop needs, in which results overlap as in a network."""
    while True:
        before, fresh, held = arena.filled, 0, deque()
        for size in sizes:
            held.append(arena.take(size))
            fresh, before = fresh + max(0, arena.filled - before), arena.filled
            if len(held) > overlap:
                arena.give_back(held.popleft() if size % 3 else held.pop())
                before = arena.filled
        for place in held:
            arena.give_back(place)
        yield fresh


@pytest.mark.parametrize("seed", range(8))
def test_a_steady_loop_needs_no_fresh_pages(seed: int) -> None:
    """Whatever the sizes: what is free becomes one span, and the rule keeps it."""
    random = Random(seed)
    sizes = [random.randrange(2**20, 2 ** random.randrange(21, 30)) for _ in range(40)]
    arena = _Arena(limit=None)
    needed = list(islice(steps(arena, sizes, overlap=random.randrange(2, 8)), 6))
    assert needed[0] > 0
    assert needed[3:] == [0, 0, 0]
    assert arena.kept <= max(_KEPT, 2 * max(arena._peaks))


def test_a_steady_loop_causes_no_page_faults() -> None:
    """Counted by the system: pages stay, also those that are marked for it to take when it runs out."""

    def step() -> int:
        before = getrusage(RUSAGE_SELF).ru_minflt
        first, second = (empty((n * PAGE // 4,), torch.float32).fill_(1.0) for n in (24, 17))
        del first
        third = empty((29 * PAGE // 4,), torch.float32).fill_(1.0)
        assert second.sum() + third.sum() > 0
        return getrusage(RUSAGE_SELF).ru_minflt - before

    release()
    found = [step() for _ in range(8)]
    assert found[0] >= 70  # one for each huge page, or many more
    assert min(found[3:]) < 10


def test_neighbours_become_one_span() -> None:
    region = Region(8 * PAGE)
    places = [region.take(2 * PAGE) for _ in range(4)]
    assert places == [(2 * n * PAGE, 2 * PAGE) for n in range(4)]
    assert region.take(1) is None
    for n in (0, 2, 1):
        region.give_back(2 * n * PAGE, 2 * PAGE)
    assert region.take(6 * PAGE) == (0, 0)
    region.give_back(0, 6 * PAGE)
    region.give_back(6 * PAGE, 2 * PAGE)
    assert region.trim(9 * PAGE) == 8 * PAGE
    assert region.empty


def test_a_region_gives_back_whole_pages_from_the_top() -> None:
    region = Region(4 * PAGE)
    region.take(PAGE + 4096)
    region.take(2 * PAGE)
    region.give_back(PAGE + 4096, 2 * PAGE)
    assert region.trim(PAGE) == PAGE
    assert region.trim(9 * PAGE) == PAGE  # the page that is used in part stays
    assert region.take(2 * PAGE) == (PAGE + 4096, 2 * PAGE)


def test_pages_that_are_given_back_are_zero_again() -> None:
    region = Region(2 * PAGE)
    begin, _ = region.take(2 * PAGE) or (0, 0)
    region.lease(begin, 2 * PAGE).raw = b"7" * 2 * PAGE
    region.give_back(begin, 2 * PAGE)
    region.trim(PAGE)
    assert region.lease(PAGE, PAGE).raw == bytes(PAGE)
    assert region.lease(0, PAGE).raw in (b"7" * PAGE, bytes(PAGE))  # kept, unless the system needed it


def test_addresses_that_do_not_suffice_are_followed_by_more() -> None:
    arena = _Arena(limit=None)
    first, second, third = (arena.take(size) for size in (_RESERVED - PAGE, 2 * PAGE, 3 * _RESERVED))
    assert len({first.region, second.region, third.region}) == 3
    for place in (first, second, third):
        arena.give_back(place)
    arena.release()
    assert (arena.filled, arena.used, arena._regions) == (0, 0, [])


def test_a_collection_may_come_at_any_point() -> None:
    """A tensor that dies while spans are looked through comes back all the same."""
    arena = _Arena(limit=None)
    dying, other = [arena.take(PAGE)], arena.take(PAGE)

    class Collecting(list):  # type: ignore[type-arg]
        def __iter__(self):
            while dying:
                arena.give_back(dying.pop())
            return super().__iter__()

    other.region._free = Collecting(other.region._free)
    assert arena.take(PAGE).begin > other.begin
    assert not dying
    assert arena.take(PAGE).begin == 0


def test_memory_that_is_kept_is_given_up_before_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    arena, refused = _Arena(limit=None), []
    arena.give_back(arena.take(PAGE))

    def full(size: int) -> Region:
        if arena.filled or size > 2 * _RESERVED:
            refused.append(size)
            raise OSError(12, "Cannot allocate memory")
        return Region(size)

    monkeypatch.setattr(memory, "Region", full)
    assert arena.take(2 * _RESERVED).size == 2 * _RESERVED
    assert (refused, arena.kept) == ([2 * _RESERVED], 0)
    monkeypatch.setattr(memory, "_arena", arena)
    assert empty((3 * _RESERVED,), torch.bool).shape == (3 * _RESERVED,)  # torch's own, or torch's own error
    assert arena.used == 2 * _RESERVED


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
