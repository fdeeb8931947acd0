"""Kernels of products by the emulator, as `StandIn` runs them by a C++ compiler."""

from __future__ import annotations

import ctypes
from collections import Counter

import torch
from torch import Tensor

from tests.kernels.cuda.emulator.machine import launch
from tests.kernels.cuda.emulator.memory import Arena
from tests.kernels.cuda.emulator.parse import parse
from tpgen.kernels.cuda.counts import AnyPlacement
from tpgen.kernels.cuda.generate import CudaSource
from tpgen.kernels.cuda.launch import Collect, EdgeRows, Join, arguments, blocks_of, edge_rows
from tpgen.kernels.cuda.nvrtc import need_nvrtc
from tpgen.kernels.cuda.orders import Order, order_of
from tpgen.kernels.cuda.prelude import COLLECT_ENTRY, ENTRY, JOIN_ENTRY, SUM_ENTRY
from tpgen.kernels.cuda.sums import THREADS, WeightSum
from tpgen.kernels.sweep.terms import SLOTS

_ROOM = 1 << 20  # bytes of memory for tables, margins and small operands
GRAINS = {"float64": 4, "float32": 4, "bfloat16": 2}


class Emulated:
    """A kernel as NVRTC compiles it for the chip of its placement; or another text of it."""

    def __init__(self, source: CudaSource, ptx: str = "") -> None:
        self.source, self.placement = source, source.placement
        self.ptx = ptx or need_nvrtc().ptx(source.text, source.placement.chip.arch)
        self.module = parse(self.ptx)
        self.issued = Counter[str]()

    def run(
        self,
        operands: dict[str, Tensor],
        edges: tuple[Tensor, Tensor] | None = None,
        blocks: int = 2,
        seed: int = 0,
    ) -> dict[str, Tensor]:
        """The open slots, in float64; on so many blocks or as many as have work."""
        p = self.placement
        blocks = blocks_of(p, operands["x2"].shape[0], blocks)
        name = p.schedule.target.dtype
        dtype, size = getattr(torch, name), sum(x.numel() for x in operands.values()) + blocks * 2 * sum(p.dim.values())
        arena = Arena(_ROOM + 16 * size, GRAINS[name])
        given = [arena.place(operands[s].to(dtype)) if s in p.given else None for s in SLOTS]
        room = [
            arena.place(torch.full_like(operands[s], torch.nan, dtype=dtype)) if s in p.opened else None for s in SLOTS
        ]
        sums = arena.place(torch.full((blocks, p.dim["w"]), torch.nan, dtype=torch.promote_types(dtype, torch.float32)))
        gather = None if edges is None else _gather(p, operands, edges, arena)
        written = [
            arena.place(edge_rows(len(operands["x2"]), x).fill_(torch.nan)) if x is not None and s in p.scattered else x
            for s, x in zip(SLOTS, room, strict=True)
        ]
        join = Join(p, blocks)
        ends = arena.place(join.room(sums.device).fill_(torch.nan)) if join.needed else None
        call = arguments(given, written, operands["x2"].shape[0], gather, sums, ends)
        self.issued = launch(self.module, ENTRY, arena, [call], (blocks, p.threads, p.shared), seed)
        if join.needed:
            launch(self.module, JOIN_ENTRY, arena, [call, ctypes.c_int(blocks)], (join.blocks, p.threads, 0), seed)
        for n in map(SLOTS.index, p.scattered):
            collect, pointers = Collect(p, len(room[n])), (written[n], gather, room[n])
            launch(
                self.module, COLLECT_ENTRY, arena, collect.arguments(*pointers), (collect.blocks, p.threads, 0), seed
            )
        if p.sums_weights:
            d_w = room[SLOTS.index("w")]
            assert d_w is not None
            how = WeightSum(d_w.numel(), sums.element_size())
            pointers = [ctypes.c_void_p(x.data_ptr()) for x in (sums, d_w)]
            launch(
                self.module,
                SUM_ENTRY,
                arena,
                [*pointers, ctypes.c_int(blocks)],
                (how.blocks, THREADS, how.shared),
                seed,
            )
        return {s: x.double() for s, x in zip(SLOTS, room, strict=True) if x is not None}


def _gather(p: AnyPlacement, operands: dict[str, Tensor], edges: tuple[Tensor, Tensor], arena: Arena) -> EdgeRows:
    owners = {name: len(operands[name]) for name in ("x1", "out")}
    ends = zip(edges, owners.items(), strict=True)
    orders = {name: Order(*map(arena.place, order_of(index, n))) for index, (name, n) in ends}
    order = orders[p.by].order if p.by else None
    there = map(arena.place, edges)
    return EdgeRows(order, *there, owners.get(p.by or "", 0), collected=orders["x1"] if p.scattered else None)
