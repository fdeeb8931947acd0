"""Kernels of polynomials by the emulator, as `PolynomialStandIn` runs them by a C++ compiler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from tests.kernels.cuda.emulator.machine import launch
from tests.kernels.cuda.emulator.memory import Arena
from tests.kernels.cuda.emulator.parse import parse
from tests.kernels.cuda.emulator.products import GRAINS
from tpgen.kernels.arguments import CallSizes
from tpgen.kernels.cuda.generate import CudaSource
from tpgen.kernels.cuda.launch import launches_of
from tpgen.kernels.cuda.nvrtc import need_nvrtc
from tpgen.kernels.cuda.orders import Order, order_of

_ROOM = 1 << 20  # bytes of memory for tables and margins


class EmulatedPolynomial:
    """The kernels of one call, as NVRTC compiles them for the chip of their placement."""

    def __init__(self, source: CudaSource, ptx: str = "") -> None:
        self.placement = source.placement
        self.ptx = ptx or need_nvrtc().ptx(source.text, source.placement.chip.arch)
        self.module = parse(self.ptx)
        self.issued = Counter[str]()

    def run(
        self, given: Sequence[Tensor], index: Tensor | None, sizes: CallSizes, at_once: int = 3, seed: int = 0
    ) -> list[Tensor]:
        """The open slots of the call, in its order and in float64."""
        p = self.placement
        launches, dtype = launches_of(p, sizes, at_once), getattr(torch, p.dtype)
        shapes = {slot: _shape(p.operands[slot], sizes) for slot in p.opened}
        scratch = launches.scratch("cpu")
        numbers = sum(x.numel() for x in (*given, *scratch.values()))
        arena = Arena(_ROOM + 24 * numbers + 8 * sum(map(torch.Size.numel, shapes.values())), GRAINS[p.dtype])
        operands = {slot: arena.place(x.to(dtype)) for slot, x in zip(p.given, given, strict=True)}
        room = {s: arena.place(torch.full(shape, torch.nan, dtype=dtype)) for s, shape in shapes.items()}
        parts = {name: arena.place(x.fill_(torch.nan)) for name, x in scratch.items()}
        order = None if index is None else Order(*map(arena.place, order_of(index, sizes.elements)))
        for one in launches.list_launches(operands, room, parts, order):
            block = p.entries[one.entry]
            self.issued = launch(self.module, one.entry, arena, [*one.arguments], (one.blocks, *block), seed)
        return [x.double() for x in room.values()]


def _shape(operand: object, sizes: CallSizes) -> torch.Size:
    o = operand
    return torch.Size(
        (sizes.elements if o.weights else sizes.rows, o.dim * (sizes.channels if o.channels else 1))  # type: ignore[attr-defined]
    )
