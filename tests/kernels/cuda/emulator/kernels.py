"""Kernels by the emulator, as `StandIn` runs them by a C++ compiler."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.kernels.cuda.emulator.machine import launch
from tests.kernels.cuda.emulator.memory import Arena
from tests.kernels.cuda.emulator.parse import parse
from tests.kernels.cuda.standin import shape_of
from tpgen.kernels.arguments import CallSizes
from tpgen.kernels.cuda.generate import CudaSource
from tpgen.kernels.cuda.launch import EdgeIndices, KernelLaunch, plan_launches
from tpgen.kernels.cuda.nvrtc import need_nvrtc
from tpgen.kernels.cuda.orders import SortedRows, sort_by_owner
from tpgen.kernels.cuda.placement import AnyPlacement

_ROOM = 1 << 20  # bytes of memory for tables, margins and small operands
GRAINS = {"float64": 4, "float32": 4, "bfloat16": 2}


class Emulated:
    """A kernel as NVRTC compiles it for the chip of its placement; or another text of it."""

    def __init__(self, source: CudaSource, ptx: str = "") -> None:
        self.source, self.placement = source, source.placement
        self.ptx = ptx or need_nvrtc().ptx(source.text, source.placement.chip.arch)
        self.module = parse(self.ptx)

    def run(
        self,
        operands: dict[str, Tensor],
        edges: tuple[Tensor, Tensor] | None = None,
        blocks: int = 2,
        seed: int = 0,
    ) -> dict[str, Tensor]:
        """The open slots, in float64; on so many blocks or as many as have work."""
        p, rows = self.placement, len(operands["x2"])
        launches, dtype = plan_launches(p, CallSizes(torch.device("cpu"), rows), blocks), getattr(torch, p.dtype)
        size = sum(x.numel() for x in operands.values()) + blocks * 2 * sum(p.dim.values())
        arena = Arena(_ROOM + 16 * size, GRAINS[p.dtype])
        given = {s: arena.place(operands[s].to(dtype)) for s in p.given}
        room = {s: arena.place(torch.full_like(operands[s], torch.nan, dtype=dtype)) for s in p.opened}
        scratch = {name: arena.place(x.fill_(torch.nan)) for name, x in launches.allocate_scratch("cpu").items()}
        gather = None if edges is None else _gather(p, operands, edges, arena)
        self._launch(launches.list_launches(given, room, scratch, gather), arena, seed)
        return {s: x.double() for s, x in room.items()}

    def run_polynomial(
        self, given: Sequence[Tensor], index: Tensor | None, sizes: CallSizes, at_once: int = 3, seed: int = 0
    ) -> list[Tensor]:
        """The open slots of a polynomial's call, in its order and in float64."""
        p = self.placement
        launches, dtype = plan_launches(p, sizes, at_once), getattr(torch, p.dtype)
        results = [torch.full(shape_of(p.operands[slot], sizes), torch.nan, dtype=dtype) for slot in p.opened]
        scratch = launches.allocate_scratch("cpu")
        arena = Arena(_ROOM + 24 * sum(x.numel() for x in (*given, *scratch.values(), *results)), GRAINS[p.dtype])
        operands = {slot: arena.place(x.to(dtype)) for slot, x in zip(p.given, given, strict=True)}
        room = dict(zip(p.opened, map(arena.place, results), strict=True))
        parts = {name: arena.place(x.fill_(torch.nan)) for name, x in scratch.items()}
        order = None if index is None else SortedRows(*map(arena.place, sort_by_owner(index, sizes.elements)))
        self._launch(launches.list_launches(operands, room, parts, order), arena, seed)
        return [x.double() for x in room.values()]

    def _launch(self, launches: Sequence[KernelLaunch], arena: Arena, seed: int) -> None:
        for one in launches:
            block = self.placement.block_sizes_by_kernel[one.entry]
            launch(self.module, one.entry, arena, [*one.arguments], (one.blocks, *block), seed)


def _gather(p: AnyPlacement, operands: dict[str, Tensor], edges: tuple[Tensor, Tensor], arena: Arena) -> EdgeIndices:
    owners = {name: len(operands[name]) for name in ("x1", "out")}
    ends = zip(edges, owners.items(), strict=True)
    orders = {name: SortedRows(*map(arena.place, sort_by_owner(index, n))) for index, (name, n) in ends}
    order = orders[p.by].order if p.by else None
    there = map(arena.place, edges)
    return EdgeIndices(order, *there, owners.get(p.by or "", 0), collected=orders["x1"] if p.scattered else None)
