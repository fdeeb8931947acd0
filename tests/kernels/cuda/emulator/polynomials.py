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
from tpgen.kernels.arguments import Sizes
from tpgen.kernels.cuda.generate import CudaSource
from tpgen.kernels.cuda.nvrtc import need_nvrtc
from tpgen.kernels.cuda.orders import Order, order_of
from tpgen.kernels.cuda.tasks import Geometry, call_struct

_ROOM = 1 << 20  # bytes of memory for tables and margins


class EmulatedPolynomial:
    """The kernels of one call, as NVRTC compiles them for the chip of their placement."""

    def __init__(self, source: CudaSource, ptx: str = "") -> None:
        self.placement = source.placement
        self.ptx = ptx or need_nvrtc().ptx(source.text, source.placement.chip.arch)
        self.module = parse(self.ptx)
        self.issued = Counter[str]()

    def run(
        self, given: Sequence[Tensor], index: Tensor | None, sizes: Sizes, at_once: int = 3, seed: int = 0
    ) -> list[Tensor]:
        """The open slots of the call, in its order and in float64."""
        p = self.placement
        name = p.target.dtype
        dtype, geometry = getattr(torch, name), Geometry(p, sizes, at_once)
        shapes = [_shape(p.operands[slot], sizes) for slot in p.opened]
        scratch = geometry.scratch(dtype, torch.device("cpu"))
        arena = Arena(
            _ROOM + 24 * sum(x.numel() for x in (*given, *scratch)) + 8 * sum(map(torch.Size.numel, shapes)),
            GRAINS[name],
        )
        operands = [arena.place(x.to(dtype)) for x in given]
        room = [arena.place(torch.full(shape, torch.nan, dtype=dtype)) for shape in shapes]
        parts = [arena.place(x.fill_(torch.nan)) for x in scratch]
        order = None if index is None else Order(*map(arena.place, order_of(index, sizes.elements)))
        call = call_struct(geometry, operands, room, parts, order)
        for entry, block in p.entries.items():
            self.issued = launch(self.module, entry, arena, [call], (geometry.blocks[entry], *block), seed)
        return [x.double() for x in room]


def _shape(operand: object, sizes: Sizes) -> torch.Size:
    o = operand
    return torch.Size(
        (sizes.elements if o.weights else sizes.rows, o.dim * (sizes.channels if o.channels else 1))  # type: ignore[attr-defined]
    )
