"""Large results use pages again, and only those that nothing can see any more."""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from resource import RUSAGE_SELF, getrusage
from typing import Any, NamedTuple

import pytest
import torch

from tests.machine import needs_compiler
from tpgen.kernels.build.build import LibraryRequest, load_library
from tpgen.kernels.runtime.memory import LARGE as LEAST
from tpgen.kernels.runtime.memory import disable_memory_reuse, empty_tensor, kept_bytes, release
from tpgen.kernels.runtime.native import runtime as native
from tpgen.kernels.runtime.native.runtime import load_cpp_runtime
from tpgen.kernels.runtime.native.source import libtorch, read_native_header

pytestmark = needs_compiler
PAGE, KEPT, RESERVED = 2**21, 256 * 2**20, 2**30
WINDOW, OFFERED = 1000, 64
LARGE = (3 * PAGE // 4 + 5,)  # three pages of float32

# The memory without torch's tensors; the system notes what it is offered, and can be made to refuse.
HARNESS = """
typedef long long i64;
static i64 offers, most_mapped, refusals, refusing;
{torch}
#define madvise noted_madvise
#define mmap limited_mmap
{memory}
#undef madvise
#undef mmap
#pragma GCC visibility push(default)
extern "C" {{
int madvise(void*, unsigned long, int);
void* mmap(void*, unsigned long, int, int, int, long);
int noted_madvise(void* at, unsigned long size, int advice) {{
  if (advice == OFFER) offers = offers * 1000 + size / PAGE;
  return refusing ? -1 : madvise(at, size, advice);
}}
void* limited_mmap(void* at, unsigned long size, int a, int b, int c, long d) {{
  if (most_mapped && (i64)size > most_mapped) return ++refusals, (void*)-1;
  return mmap(at, size, a, b, c, d);
}}
void reset(i64 limit) {{
  for (i64 n = 0; n < arena.count; ++n) close(arena.region[n]);
  arena = {{}};
  arena.limit = limit, offers = most_mapped = refusals = refusing = 0;
}}
bool take_place(i64 size, Place* p) {{ return take(size, *p); }}
void give_place(const Place* p) {{ give_back(*p); }}
void trim_to(i64 keep) {{ trim(keep); }}
void* address(const Place* p) {{ return p->region->base + p->begin; }}
void hinder(i64 mapped, i64 all) {{ most_mapped = mapped, refusing = all; }}
void facts(i64* f) {{
  f[0] = arena.filled, f[1] = arena.used, f[2] = arena.count, f[3] = offers, f[4] = refusals;
  f[5] = 2 * most(arena.before, arena.now);
}}
}}
"""


class Facts(NamedTuple):
    """Of an arena: bytes with memory and of tensors, regions, pages that were offered, refusals, twice the peak."""

    filled: int
    used: int
    regions: int
    offers: int
    refusals: int
    twice: int

    @property
    def kept(self) -> int:
        return self.filled - self.used


class Place(ctypes.Structure):
    _fields_ = (("region", ctypes.c_void_p), ("begin", ctypes.c_int64), ("size", ctypes.c_int64))


class Arena:
    """The memory of native/memory.h, as it is when nothing has been taken yet."""

    def __init__(self, limit: int = -1) -> None:
        text = HARNESS.format(torch=read_native_header("torch"), memory=read_native_header("memory"))
        self.library: Any = load_library(LibraryRequest(text, "reset", (libtorch(),)))
        self.library.address.restype = ctypes.c_void_p
        self.library.reset(ctypes.c_int64(limit))

    def take(self, size: int) -> Place:
        place = Place()
        if not self.library.take_place(ctypes.c_int64(size), ctypes.byref(place)) & 1:
            raise MemoryError
        return place

    def give_back(self, *places: Place) -> None:
        for place in places:
            self.library.give_place(ctypes.byref(place))

    def trim(self, keep: int) -> None:
        self.library.trim_to(ctypes.c_int64(keep))

    def hinder(self, mapped: int = 0, advice: bool = False) -> None:
        self.library.hinder(ctypes.c_int64(mapped), ctypes.c_int64(advice))

    def bytes_of(self, place: Place) -> ctypes.Array[ctypes.c_char]:
        return (ctypes.c_char * place.size).from_address(self.library.address(ctypes.byref(place)))

    @property
    def facts(self) -> Facts:
        found = (ctypes.c_int64 * 6)()
        self.library.facts(found)
        return Facts(*found)


def same(a: Place, b: Place) -> bool:
    return (a.region, a.begin) == (b.region, b.begin)


# -- tensors -----------------------------------------------------------------------------------------------------------


def test_a_place_comes_back_with_the_last_view() -> None:
    first = empty_tensor(LARGE, torch.float32)
    place, view = first.data_ptr(), first[10:20]
    del first
    second = empty_tensor(LARGE, torch.float32)
    assert second.data_ptr() != place
    view.fill_(7.0)
    second.fill_(1.0)
    assert view.eq(7.0).all()
    del view
    assert empty_tensor(LARGE, torch.float32).data_ptr() == place


def test_a_graph_keeps_what_it_saved() -> None:
    x = empty_tensor(LARGE, torch.float32).fill_(3.0).requires_grad_()
    y = x.detach().clone().requires_grad_()
    product = x * y
    del x
    others = [empty_tensor(LARGE, torch.float32).fill_(0.0) for _ in range(3)]
    (g,) = torch.autograd.grad(product.sum(), y)
    assert g.eq(3.0).all()
    assert len(others) == 3


def test_small_tensors_are_ordinary() -> None:
    assert empty_tensor((4, 0), torch.float64).shape == (4, 0)
    assert empty_tensor((4, 3), torch.bfloat16).dtype == torch.bfloat16


def test_gradients_are_summed_in_place() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: torch.Tensor) -> torch.Tensor:
            return x.sum()

        @staticmethod
        def backward(ctx, g: torch.Tensor) -> torch.Tensor:
            made = empty_tensor(LARGE, torch.float32).fill_(1.0)
            places.append(made.data_ptr())
            return made

    places: list[int] = []
    x = torch.zeros(LARGE, requires_grad=True)
    (gradient,) = torch.autograd.grad(Twice.apply(x) + Twice.apply(x), x)
    assert gradient.eq(2.0).all()
    assert gradient.data_ptr() in places


def test_a_steady_loop_causes_no_page_faults() -> None:
    """Counted by the system: pages stay, also those that are marked for it to take when it runs out."""

    def step() -> int:
        before = getrusage(RUSAGE_SELF).ru_minflt
        first, second = (empty_tensor((n * PAGE // 4,), torch.float32).fill_(1.0) for n in (24, 17))
        del first
        third = empty_tensor((29 * PAGE // 4,), torch.float32).fill_(1.0)
        assert second.sum() + third.sum() > 0
        return getrusage(RUSAGE_SELF).ru_minflt - before

    release()
    found = [step() for _ in range(8)]
    assert found[0] >= 70  # one for each huge page, or many more
    assert min(found[3:]) < 10


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs /proc")
def test_results_take_the_room_that_they_fill() -> None:
    def resident() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmRSS")).split()[1])

    release()
    before = resident()
    made = [empty_tensor((2**18 + 8000,), torch.float32).fill_(1.0) for _ in range(100)]
    assert resident() - before < 1.2 * sum(x.nbytes for x in made)


def test_what_is_kept_can_be_seen_and_released() -> None:
    del_me = empty_tensor(LARGE, torch.float32)
    del del_me
    assert kept_bytes() >= LARGE[0] * 4
    release()
    assert kept_bytes() == 0


def test_the_least_size_is_that_of_the_runtime() -> None:
    release()
    below, at = empty_tensor((LEAST // 4 - 1,), torch.float32), empty_tensor((LEAST // 4,), torch.float32)
    del below
    assert kept_bytes() == PAGE - LEAST
    del at
    assert kept_bytes() == PAGE


def test_more_than_there_is_is_torchs_error() -> None:
    """Also of addresses: pages that are promised and not there would end the process where it writes."""
    for size in (2**40, 2**50):
        if size == 2**50 or Path("/proc/sys/vm/overcommit_memory").read_text().strip() != "1":
            with pytest.raises(RuntimeError, match="allocate memory"):
                empty_tensor((size,), torch.float32)


def test_nothing_is_kept_meanwhile() -> None:
    release()
    with disable_memory_reuse():
        made = empty_tensor(LARGE, torch.float32)
        del made
        assert kept_bytes() == 0
    made = empty_tensor(LARGE, torch.float32)
    del made
    assert kept_bytes() > 0


def test_a_forked_process_has_the_memory() -> None:
    found = load_cpp_runtime()
    assert found is not None
    found._library.tpgen_memory_limit(-1)
    if (child := os.fork()) == 0:
        made = empty_tensor(LARGE, torch.float32).fill_(2.0)
        os._exit(0 if float(made[-1]) == 2.0 else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("text", ["64MB", "²", "-1", "1.5"])
def test_a_limit_that_is_no_number_is_said(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TPGEN_REUSE_MB", text)
    with pytest.warns(UserWarning, match=f"TPGEN_REUSE_MB must be a whole number of MB, got '{text}'"):
        assert native.read_memory_limit() is None


def test_a_limit_is_a_number_of_mb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPGEN_REUSE_MB", "64")
    assert native.read_memory_limit() == 64 * 2**20
    monkeypatch.delenv("TPGEN_REUSE_MB")
    assert native.read_memory_limit() is None


# -- places ------------------------------------------------------------------------------------------------------------


def test_places_are_kept_up_to_a_limit() -> None:
    arena = Arena(limit=2 * PAGE)
    made = [arena.take(PAGE) for _ in range(3)]
    arena.give_back(*made)
    assert arena.facts.kept == 2 * PAGE
    assert same(arena.take(PAGE), made[0])
    assert arena.facts.kept == PAGE


def test_a_system_without_huge_pages() -> None:
    arena = Arena(limit=PAGE)
    arena.hinder(advice=True)
    arena.give_back(arena.take(PAGE))
    assert arena.facts.kept == PAGE


def test_free_pages_are_offered_to_the_system_now_and_then() -> None:
    """An offer at each return would cost a small kernel a fifth of its time."""
    arena = Arena()
    held = arena.take(PAGE // 2)  # the page that it shares is not free
    for _ in range(2 * OFFERED):
        arena.give_back(arena.take(3 * PAGE // 2))
    assert arena.facts.offers == 1_001
    arena.give_back(arena.take(KEPT))  # as much at once is offered at once
    assert arena.facts.offers == 1_001_128
    arena.give_back(held)


def test_what_is_kept_follows_what_was_in_use_at_once() -> None:
    """There is no size at which reuse ends.  (Nothing is touched here, so this takes no memory.)"""
    arena, size = Arena(), KEPT + PAGE
    both = [arena.take(size), arena.take(size)]
    arena.give_back(*both)
    assert 2 * size <= arena.facts.kept <= 2 * size + PAGE
    assert all(map(same, [arena.take(size), arena.take(size)], both))
    arena.give_back(*both)
    for _ in range(2 * WINDOW):
        arena.give_back(arena.take(PAGE))
    assert arena.facts.filled <= KEPT


def steps(arena: Arena, sizes: Sequence[int], overlap: int) -> Iterator[int]:
    """Bytes of fresh pages that each step of a loop needs, in which results overlap as in a network."""
    while True:
        before, fresh, held = arena.facts.filled, 0, deque[Place]()
        for size in sizes:
            held.append(arena.take(size))
            now = arena.facts.filled
            fresh, before = fresh + max(0, now - before), now
            if len(held) > overlap:
                arena.give_back(held.popleft() if size % 3 else held.pop())
                before = arena.facts.filled
        arena.give_back(*held)
        yield fresh


@pytest.mark.parametrize("seed", range(8))
def test_a_steady_loop_needs_no_fresh_pages(seed: int) -> None:
    """Whatever the sizes: what is free becomes one span, and the rule keeps it."""
    random = Random(seed)
    sizes = [random.randrange(2**20, 2 ** random.randrange(21, 30)) for _ in range(40)]
    arena = Arena()
    needed = list(islice(steps(arena, sizes, overlap=random.randrange(2, 8)), 6))
    assert needed[0] > 0
    assert needed[3:] == [0, 0, 0]
    assert arena.facts.kept <= max(KEPT, arena.facts.twice)


@pytest.mark.parametrize("seed", range(20))
def test_places_never_overlap(seed: int) -> None:
    """Each is written with a number of its own, which stands until it is given back."""
    random, arena = Random(seed), Arena()
    held: list[tuple[Place, bytes]] = []
    for turn in range(400):
        if held and random.random() < 0.45:
            place, mark = held.pop(random.randrange(len(held)))
            found = arena.bytes_of(place)
            assert (found[0], found[place.size - 1]) == (mark, mark)
            arena.give_back(place)
        else:
            place, mark = arena.take(random.randrange(1, 4 * PAGE)), bytes([turn % 256])
            found = arena.bytes_of(place)
            found[0] = found[place.size - 1] = mark
            held.append((place, mark))
    spans = sorted((place.region, place.begin, place.begin + place.size) for place, _ in held)
    assert all(a[0] != b[0] or a[2] <= b[1] for a, b in pairwise(spans))
    assert arena.facts.used == sum(place.size for place, _ in held)
    arena.give_back(*(place for place, _ in held))
    arena.trim(0)
    assert arena.facts[:3] == (0, 0, 0)


def test_neighbours_become_one_span() -> None:
    arena = Arena()
    places = [arena.take(2 * PAGE) for _ in range(4)]
    assert [place.begin for place in places] == [2 * n * PAGE for n in range(4)]
    for n in (0, 2, 1):
        arena.give_back(places[n])
    assert arena.take(6 * PAGE).begin == 0


def test_whole_pages_go_back_from_the_top() -> None:
    arena = Arena()
    first, second = arena.take(PAGE + 4096), arena.take(2 * PAGE)
    arena.give_back(second)
    assert arena.facts.filled == 4 * PAGE
    arena.trim(arena.facts.kept - PAGE)
    assert arena.facts.filled == 3 * PAGE
    arena.trim(0)
    assert arena.facts.filled == 2 * PAGE  # the page that is used in part stays
    assert arena.take(2 * PAGE).begin == PAGE + 4096
    arena.give_back(first)


def test_pages_that_are_given_back_are_zero_again() -> None:
    arena = Arena()
    place = arena.take(2 * PAGE)
    arena.bytes_of(place).raw = b"7" * 2 * PAGE
    arena.give_back(place)
    arena.trim(PAGE)
    again = arena.bytes_of(arena.take(2 * PAGE)).raw
    assert again[PAGE:] == bytes(PAGE)
    assert again[:PAGE] in (b"7" * PAGE, bytes(PAGE))  # kept, unless the system needed it


def test_addresses_that_do_not_suffice_are_followed_by_more() -> None:
    arena = Arena()
    places = [arena.take(size) for size in (RESERVED - PAGE, 2 * PAGE, 3 * RESERVED)]
    assert len({place.region for place in places}) == arena.facts.regions == 3
    arena.give_back(*places)
    arena.trim(0)
    assert arena.facts[:3] == (0, 0, 0)


def test_memory_that_is_kept_is_given_up_before_there_is_none() -> None:
    arena = Arena()
    arena.give_back(arena.take(PAGE))
    arena.hinder(mapped=2 * RESERVED + PAGE)
    held = arena.take(2 * RESERVED)  # with all others it would be more
    assert (held.size, arena.facts.kept, arena.facts.refusals) == (2 * RESERVED, PAGE, 1)
    with pytest.raises(MemoryError):
        arena.take(3 * RESERVED)
    assert (arena.facts.kept, arena.facts.used) == (0, 2 * RESERVED)
