"""Blocks of threads that run a function of PTX: which warps go on is drawn at random, and when copies arrive.

Lanes of a warp that have parted run the earliest of their places first, until they meet again.  Warps at the same
place may run together, which is quicker to compute.
"""

from __future__ import annotations

import ctypes
import random
from dataclasses import dataclass, field

import numpy as np
import torch

from tests.kernels.cuda.emulator.copies import Shared
from tests.kernels.cuda.emulator.instructions import Run, decode
from tests.kernels.cuda.emulator.memory import WARP, Arena, Clock, Fault
from tests.kernels.cuda.emulator.parse import Function, Instruction, Module
from tests.kernels.cuda.emulator.registers import Lanes, Place, Registers

_SHARED_END = 1 << 24  # shared memory begins at no address, and the device's is far behind it
_TURNS = (1, 20, 500)  # stretches that some warps run before others
_PATIENCE = 10_000  # waits in vain, one after the other
_ENDS = ("bra", "bar", "ret", "exit", "call")
RUNNING, WAITING, WARP_WAITING, DONE = range(4)


@dataclass
class Stretch:
    """Instructions that only the last of which may leave for another place than the next stretch."""

    frame: Frame
    runs: list[Run] = field(default_factory=list)
    end: Instruction | None = None


class Frame:
    """What instructions of one function see of their block."""

    def __init__(self, machine: Machine, function: Function) -> None:
        self.machine, self.function = machine, function
        self.registers = Registers(function, machine.threads, machine.known)

    def place(self, operand: str, type_: str) -> Place:
        return self.registers.place(operand, type_)

    def ids(self, lanes: Lanes) -> np.ndarray:
        return self.machine.numbers[lanes]

    @property
    def shared(self) -> Shared:
        return self.machine.shared

    def parameters(self, name: str) -> np.ndarray:
        """The bytes of a parameter, of each thread."""
        return self.machine.parameters.setdefault(name, np.zeros((self.machine.threads, 64), np.uint8))

    def waited(self, done: bool) -> None:
        self.machine.waited(done)

    def read(self, addresses: np.ndarray, size: int, threads: np.ndarray) -> np.ndarray:
        """From whichever memory they are of."""
        if addresses.max() < _SHARED_END:
            return self.shared.load(addresses, size, threads)
        return self.machine.arena.load(addresses - self.machine.arena.base, size, threads)

    def write(self, addresses: np.ndarray, values: np.ndarray, threads: np.ndarray) -> None:
        if addresses.max() < _SHARED_END:
            self.shared.store(addresses, values, threads)
        else:
            self.machine.arena.store(addresses - self.machine.arena.base, values, threads)


class Machine:
    """One launch of a function: blocks one after the other."""

    def __init__(
        self,
        module: Module,
        entry: str,
        arena: Arena,
        given: list[bytes],
        blocks: int,
        threads: int,
        shared: int,
        seed: int,
    ) -> None:
        self.arena, self.blocks, self.threads, self.shared_bytes = arena, blocks, threads, shared
        self.rng, self.clock = random.Random(seed), Clock(threads)
        self.numbers, self.parameters = np.arange(threads), dict[str, np.ndarray]()
        self.known = self._known(module, entry, given)
        self.stretches = list[Stretch]()
        self.begins, self.starts = dict[str, int](), dict[tuple[str, str], int]()
        for name in (entry, *(n for n in module.functions if n != entry and ".func" and n.startswith("_"))):
            self._decode(module.functions[name])
        self.pc, self.state, self.returns = (np.zeros(threads, np.int64) for _ in range(3))
        self.patience, self.yielding = _PATIENCE, False

    def _known(self, module: Module, entry: str, given: list[bytes]) -> dict[str, np.ndarray]:
        """Names that are no registers of a function: what a thread is, and addresses."""
        full = lambda value, dtype=np.uint64: np.full(self.threads, value, dtype)  # noqa: E731
        counts = {"%ntid.x": self.threads, "%nctaid.x": self.blocks, "%ctaid.x": 0}
        known = {name: full(count, np.uint32) for name, count in counts.items()}
        known |= {"%tid.x": self.numbers.astype(np.uint32), "tpgen_shared": full(0)}
        for name, data in module.tables.items():
            known[name] = full(self._put(data))
        for n, data in enumerate(given):
            name = f"{entry}_param_{n}"
            known[name] = full(self._put(data))
            self.parameters[name] = np.tile(np.frombuffer(data, np.uint8), (self.threads, 1))
        return known

    def _put(self, data: bytes) -> int:
        return self.arena.place(torch.frombuffer(bytearray(data), dtype=torch.uint8)).data_ptr()

    # -- decoding --

    def _decode(self, function: Function) -> None:
        """Cut a function into stretches."""
        frame, first = Frame(self, function), len(self.stretches)
        self.begins[function.name] = first
        at_label: dict[int, list[str]] = {}
        for label, n in function.labels.items():
            at_label.setdefault(n, []).append(label)
        now = Stretch(frame)
        for n, instruction in enumerate(function.instructions):
            if n in at_label and now.runs:
                self.stretches.append(now)
                now = Stretch(frame)
            for label in at_label.get(n, ()):
                self.starts[function.name, label] = len(self.stretches)
            if instruction.opcode[0] in _ENDS:
                now.end = instruction
                self.stretches.append(now)
                now = Stretch(frame)
            else:
                now.runs.append(decode(instruction, frame))
        self.stretches.append(now)

    # -- running --

    def run(self) -> None:
        self.arena.begin_kernel()
        self.arena.clock = self.clock
        with np.errstate(all="ignore"):
            for block in range(self.blocks):
                self._run_block(block)

    def _run_block(self, block: int) -> None:
        self.clock.block += 1
        self.arena.block_began = self.clock.block
        self.known["%ctaid.x"][:] = block
        self.shared = Shared(self.shared_bytes, self.arena.grain, self.clock, self.arena, self.rng)
        self.pc[:], self.state[:] = 0, RUNNING
        while True:
            ready = np.unique(self.numbers[self.state == RUNNING] // WARP)
            if len(ready):
                self._turn(ready if self.rng.random() < 0.5 else np.array([self.rng.choice(ready.tolist())]))
            elif (self.state == DONE).all():
                break
            elif WARP_WAITING in self.state:
                raise Fault("lanes wait for others of their warp that never come")
            else:  # those that have ended are not waited for
                self.shared.meet()
                self.state[self.state == WAITING] = RUNNING
            if self.rng.random() < 0.2:
                self.shared.arrive()
        self.shared.end()

    def _turn(self, warps: np.ndarray) -> None:
        """The lanes of some warps that stand at the earliest place, until they come to where others wait."""
        lanes = (warps[:, None] * WARP + np.arange(WARP)).ravel()
        lanes = lanes[self.state[lanes] == RUNNING]
        places = self.pc[lanes]
        at = int(places.min())
        later = places[places > at]
        end = int(later.min()) if len(later) else len(self.stretches)
        running = _as_slice(lanes[places == at])
        for _ in range(self.rng.choice(_TURNS)):
            stretch = self.stretches[at]
            for run in stretch.runs:
                run(running)
            found = self._leave(at, stretch, running)
            if found is None:
                return
            at = found
            if at >= end or self.yielding:
                break
        self.pc[running] = at
        self.yielding = False

    def waited(self, done: bool) -> None:
        """A barrier of copies was asked; where it was in vain others go on, and a copy may arrive."""
        self.patience = _PATIENCE if done else self.patience - 1
        if not done:
            self.yielding = True
            if not self.shared.arrive() and not self.patience:
                raise Fault("waits for copies that never arrive")

    # -- how a stretch is left --

    def _leave(self, at: int, stretch: Stretch, lanes: Lanes) -> int | None:
        """Where all of its lanes go on; nothing where they part or wait, which is written down."""
        i = stretch.end
        if i is None:
            return at + 1
        if not i.guard:
            return self._end(at, stretch.frame, i, lanes)
        taken = stretch.frame.place(i.guard, "pred")[lanes] != i.negated
        if not taken.any():
            return at + 1
        if taken.all():
            return self._end(at, stretch.frame, i, lanes)
        threads = self.numbers[lanes]
        self.pc[threads[~taken]] = at + 1
        went = self._end(at, stretch.frame, i, threads[taken])
        if went is not None:
            self.pc[threads[taken]] = went
        return None

    def _end(self, at: int, frame: Frame, i: Instruction, lanes: Lanes) -> int | None:
        name = frame.function.name
        if i.opcode[0] == "bra":
            return self.starts[name, i.operands[0]]
        if i.opcode[0] == "call":
            return self._call(at, i, lanes)
        if i.opcode[0] in ("ret", "exit"):
            return self._return(name, lanes)
        self.pc[lanes] = at + 1
        if i.opcode[1] != "warp":
            self.state[lanes] = WAITING
            return None
        self.state[lanes] = WARP_WAITING
        for warp in np.unique(self.numbers[lanes] // WARP):
            mine = slice(warp * WARP, (warp + 1) * WARP)
            if (self.state[mine] == WARP_WAITING).all():
                self.state[mine] = RUNNING
                self.clock.warps[mine] += 1
        return None

    def _call(self, at: int, i: Instruction, lanes: Lanes) -> int:
        """A function whose parameters were stored before."""
        callee, given = i.operands[0], i.operands[1].strip("()")
        for n, name in enumerate(given.split(",")):
            target = self.parameters.setdefault(f"{callee}_param_{n}", np.zeros((self.threads, 64), np.uint8))
            target[lanes] = self.parameters[name.strip()][lanes]
        self.returns[lanes] = at + 1
        return self.begins[callee]

    def _return(self, name: str, lanes: Lanes) -> int | None:
        if self.begins[name] == 0:
            self.state[lanes] = DONE
            return None
        self.pc[lanes] = self.returns[lanes]
        return None


def _as_slice(threads: np.ndarray) -> Lanes:
    """Threads side by side as a slice, which is quicker."""
    begin, end = int(threads[0]), int(threads[-1]) + 1
    return slice(begin, end) if len(threads) == end - begin else threads


def launch(
    module: Module,
    entry: str,
    arena: Arena,
    given: list[ctypes.Array | ctypes._SimpleCData],
    geometry: tuple[int, int, int],
    seed: int = 0,
) -> None:
    """Run an entry with its parameters on (blocks, threads of each, bytes of shared memory)."""
    Machine(module, entry, arena, [bytes(x) for x in given], *geometry, seed).run()
