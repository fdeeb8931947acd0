"""Shared memory and the copies that run beside the threads: which has to wait for which, and by what it may know.

The copy engine sees what a thread wrote only behind that thread's proxy fence; a thread sees what the engine
brought once it, or one that it met since, has waited for the barrier's phase; and a thread may write again what the
engine takes away once the copy was drained.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from tests.kernels.cuda.emulator.memory import Arena, Clock, Fault, Watched

_MOST = 1 << 20  # bytes that a barrier's phase may expect


@dataclass
class Barrier:
    """An mbarrier."""

    maker: int
    made: int  # time of its block
    fences: int  # of its maker, when it was made
    seen: np.ndarray  # phases that each thread knows to have ended
    pending: int = 1
    bytes: int = 0
    phase: int = 0

    def turn(self) -> None:
        if not self.pending and not self.bytes:
            self.phase, self.pending = self.phase + 1, 1


@dataclass
class Incoming:
    """A bulk copy under way to shared memory."""

    grains: np.ndarray
    data: np.ndarray
    barrier: int
    phase: int


@dataclass
class Chunk:
    """What a thread asked for by an asynchronous copy."""

    thread: int
    group: int
    grains: np.ndarray
    data: np.ndarray


@dataclass
class Outgoing:
    """A bulk copy under way from shared memory."""

    thread: int
    group: int
    grains: np.ndarray
    drained: bool = False


@dataclass
class Proxies:
    """How many fences to the copy engine each thread has passed, and how many at the last barrier of the block."""

    now: np.ndarray
    met: np.ndarray
    groups_in: np.ndarray
    groups_out: np.ndarray

    @staticmethod
    def of(threads: int) -> Proxies:
        return Proxies(*(np.zeros(threads, np.int32) for _ in range(4)))


@dataclass
class Copies:
    """All that is under way in a block."""

    incoming: list[Incoming] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    outgoing: list[Outgoing] = field(default_factory=list)


class Shared(Watched):
    """The shared memory of one block."""

    def __init__(self, size: int, grain: int, clock: Clock, arena: Arena, rng: random.Random) -> None:
        super().__init__("shared memory", np.full(-(-size // 16) * 16, 0xFF, np.uint8), grain, clock)
        count, threads = len(self.data), clock.threads
        self.arena, self.rng, self.threads = arena, rng, threads
        self.arriving, self.leaving = np.zeros(count, np.int8), np.zeros(count, np.int8)
        self.by_engine = np.full(count, -1, np.int32)  # barrier by which the engine brought it
        self.brought = np.zeros(count, np.int32)  # in which of its phases
        self.write_fences = np.zeros(count, np.int32)
        self.barriers, self.copies, self.proxies = dict[int, Barrier](), Copies(), Proxies.of(threads)

    # -- accesses of threads --

    def may_read(self, grains: np.ndarray, by: np.ndarray) -> None:
        self.check("reads what a copy is to bring", self.arriving[grains] != 0, grains, by)
        brought = self.by_engine[grains]
        for place in set(brought[brought >= 0].tolist()):
            mine = brought == place
            unknown = mine & (self.barriers[place].seen[by] <= self.brought[grains])
            self.check("reads what a copy brought, and has not waited for it", unknown, grains, by)

    def may_write(self, grains: np.ndarray, by: np.ndarray) -> None:
        self.check("writes where a copy arrives", self.arriving[grains] != 0, grains, by)
        self.check("writes what a copy takes away", self.leaving[grains] != 0, grains, by)

    def note_write(self, grains: np.ndarray, by: np.ndarray) -> None:
        super().note_write(grains, by)
        self.by_engine[grains] = -1
        self.write_fences[grains] = self.proxies.now[by]

    # -- barriers and fences --

    def meet(self) -> None:
        """All threads have passed a barrier of the block: what one knew, all know."""
        self.clock.block += 1
        self.proxies.met[:] = self.proxies.now
        for barrier in self.barriers.values():
            barrier.seen[:] = barrier.seen.max()
        left = []
        for copy in self.copies.outgoing:
            if copy.drained:
                self.leaving[copy.grains] -= 1
            else:
                left.append(copy)
        self.copies.outgoing = left

    def fence(self, threads: np.ndarray) -> None:
        self.proxies.now[threads] += 1

    def make_barrier(self, place: int, thread: int) -> None:
        if place % 8:
            raise Fault(f"a barrier at {place}")
        seen = np.zeros(self.threads, np.int32)
        self.barriers[place] = Barrier(thread, self.clock.block, int(self.proxies.now[thread]), seen)

    def barrier(self, place: int, thread: int) -> Barrier:
        """One that a thread may use."""
        if place not in self.barriers:
            raise Fault(f"thread {thread} uses a barrier at {place} that nobody has made")
        found = self.barriers[place]
        if thread != found.maker and found.made == self.clock.block:
            raise Fault(f"thread {thread} uses a barrier that another has just made")
        return found

    def expect(self, place: int, size: int, thread: int) -> None:
        barrier = self.barrier(place, thread)
        barrier.pending -= 1
        barrier.bytes += size
        if barrier.pending < 0 or barrier.bytes >= _MOST:
            raise Fault(f"a phase with {-barrier.pending} arrivals too many and {barrier.bytes} bytes")
        barrier.turn()

    def try_wait(self, place: int, parity: np.ndarray, threads: np.ndarray) -> np.ndarray:
        """Whether the phase has ended, by a thread each."""
        barrier = next(self.barrier(place, int(t)) for t in threads)
        done = (barrier.phase & 1) != parity
        barrier.seen[threads[done]] = barrier.phase
        return done

    # -- the copy engine --

    def _known_to_engine(self, made: np.ndarray, maker: np.ndarray, thread: int) -> np.ndarray:
        """Whether what its maker did with so many fences behind is to be seen by a copy that a thread starts."""
        return np.where(maker == thread, self.proxies.now[maker], self.proxies.met[maker]) > made

    def _seen_by_engine(self, what: str, grains: np.ndarray, thread: int) -> None:
        writer = self.written.thread[grains]
        mine = (writer >= 0) & (self.by_engine[grains] < 0)
        hidden = mine & ~self._known_to_engine(self.write_fences[grains], np.maximum(writer, 0), thread)
        self.check(f"{what} what a thread wrote, without a fence", hidden, grains, np.full(len(grains), thread))

    def _sixteens(self, place: int, size: int) -> np.ndarray:
        if place % 16 or size % 16 or not size:
            raise Fault(f"a copy of {size} bytes at {place} is not aligned")
        return self.grains(np.arange(place, place + size, 16), 16).ravel()

    def _in_memory(self, address: int, size: int) -> np.ndarray:
        """The same of the device's memory."""
        if address % 16:
            raise Fault("a copy is not aligned")
        place = address - self.arena.base
        return self.arena.grains(np.arange(place, place + size, self.arena.grain), self.arena.grain).ravel()

    def bulk_in(self, place: int, address: int, size: int, at: int, thread: int) -> None:
        grains, source = self._sixteens(place, size), self._in_memory(address, size)
        barrier = self.barrier(at, thread)
        if not self._known_to_engine(np.array(barrier.fences), np.array(barrier.maker), thread):
            raise Fault("a copy is to arrive at a barrier whose making it does not see")
        by = np.full(len(source), thread)
        self.arena.may_read(source, by)
        self.check("copies over what a copy takes away", self.leaving[grains] != 0, grains, by)
        self.check("copies where a copy arrives", self.arriving[grains] != 0, grains, by)
        self.check("copies over what is read", self.read.unordered(grains, by, self.clock), grains, by)
        self.check("copies over what is written", self.written.unordered(grains, by, self.clock), grains, by)
        self._seen_by_engine("copies over", grains, thread)
        self.arriving[grains], self.data[grains] = 1, np.iinfo(self.data.dtype).max
        self.copies.incoming.append(Incoming(grains, self.arena.data[source], at, barrier.phase))

    def arrive(self) -> bool:
        """One of the copies under way, drawn at random, arrives; none where there are none."""
        if not self.copies.incoming:
            return False
        copy = self.copies.incoming.pop(self.rng.randrange(len(self.copies.incoming)))
        self.data[copy.grains], self.arriving[copy.grains] = copy.data, 0
        self.by_engine[copy.grains], self.brought[copy.grains] = copy.barrier, copy.phase
        self.written.forget(copy.grains)
        self.read.forget(copy.grains)
        barrier = self.barriers[copy.barrier]
        barrier.bytes -= len(copy.grains) * self.grain
        barrier.turn()
        return True

    def bulk_out(self, address: int, place: int, size: int, thread: int) -> None:
        grains, target = self._sixteens(place, size), self._in_memory(address, size)
        by = np.full(len(grains), thread)
        self.may_read(grains, by)
        self._seen_by_engine("takes away", grains, thread)
        self.check("takes away what is written", self.written.unordered(grains, by, self.clock), grains, by)
        self.leaving[grains] += 1
        self.copies.outgoing.append(Outgoing(thread, int(self.proxies.groups_out[thread]), grains))
        self.arena.may_write(target, by)
        self.arena.note_write(target, by)
        self.arena.data[target] = self.data[grains]

    def drain(self, threads: np.ndarray) -> None:
        """Wait until all groups of these threads have been read."""
        for copy in self.copies.outgoing:
            if copy.thread in threads and copy.group < self.proxies.groups_out[copy.thread]:
                copy.drained = True

    # -- asynchronous copies of threads --

    def ask(self, places: np.ndarray, addresses: np.ndarray, size: int, threads: np.ndarray) -> None:
        data = self.arena.load(addresses - self.arena.base, size, threads)
        grains = self.grains(places, size)
        flat, by = grains.ravel(), np.repeat(threads, grains.shape[1])
        self.may_write(flat, by)
        self.check("asks for a place that is read", self.read.unordered(flat, by, self.clock), flat, by)
        self.check("asks for a place that is written", self.written.unordered(flat, by, self.clock), flat, by)
        self.arriving[flat], self.data[flat] = 1, np.iinfo(self.data.dtype).max
        groups = self.proxies.groups_in[threads]
        self.copies.chunks += [Chunk(*row) for row in zip(threads.tolist(), groups.tolist(), grains, data, strict=True)]

    def wait_for_groups(self, left: int, threads: np.ndarray) -> None:
        """All but the last so many groups of these threads are there, for these threads alone."""
        mine = set(threads.tolist())
        come = [c for c in self.copies.chunks if c.thread in mine and c.group < self.proxies.groups_in[c.thread] - left]
        if not come:
            return
        self.copies.chunks = _without(self.copies.chunks, come)
        grains = np.concatenate([c.grains for c in come])
        by = np.repeat([c.thread for c in come], [len(c.grains) for c in come])
        self.arriving[grains] = 0
        self.note_write(grains, by)
        self.data[grains] = np.concatenate([c.data for c in come])

    def end(self) -> None:
        """The block ends."""
        if any(not copy.drained for copy in self.copies.outgoing):
            raise Fault("a block ends while copies take its memory away")


def _without(chunks: list[Chunk], gone: list[Chunk]) -> list[Chunk]:
    ids = set(map(id, gone))
    return [c for c in chunks if id(c) not in ids]
