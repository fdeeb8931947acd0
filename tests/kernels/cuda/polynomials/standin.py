"""Kernels of polynomials compiled for a CPU, many in one library, and run in random orders."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from tests.kernels.cuda.standin import Library, _inside, _untouched
from tpgen.kernels.arguments import CallSizes
from tpgen.kernels.cuda.generate import CudaSource
from tpgen.kernels.cuda.launch import launches_of
from tpgen.kernels.cuda.orders import order_of

_ENTRIES = ("kernel", "sum", "channels")
_RUN = """extern "C" const char* run_{entry}_{n}(unsigned blocks, unsigned count, unsigned shared, unsigned seed,
                                 const k{n}::Call* call) {{
  return launch([=] {{ k{n}::{entry}_{n}(*call); }}, blocks, count, shared, seed);
}}
"""


class PolynomialStandIn:
    """The kernels of some sources."""

    def __init__(self, sources: Sequence[CudaSource], folder: Path, counted: bool = False) -> None:
        self.sources = sources
        text = []
        for n, source in enumerate(sources):
            there = [entry for entry in _ENTRIES if f" tpgen_{entry}(" in source.text]
            text += [f"#define tpgen_{entry} {entry}_{n}\n" for entry in there]
            text += [f"namespace k{n} {{\n{source.text}\n}}\n"]
            text += [f"#undef tpgen_{entry}\n{_RUN.format(n=n, entry=entry)}" for entry in there]
        self.library = Library("".join(text), folder, counted)

    def run(
        self, n: int, given: Sequence[Tensor], index: Tensor | None, sizes: CallSizes, at_once: int = 3, seed: int = 0
    ) -> list[Tensor]:
        """The open slots of one call, in its order."""
        placement = self.sources[n].placement
        launches, dtype = launches_of(placement, sizes, at_once), getattr(torch, placement.dtype)
        around = {slot: _inside(x.to(dtype)) for slot, x in zip(placement.given, given, strict=True)}
        empty = {s: torch.full(_shape(placement, s, sizes), float("nan"), dtype=dtype) for s in placement.opened}
        room = {slot: _inside(x) for slot, x in empty.items()}
        scratch = {name: _inside(x.fill_(float("nan"))) for name, x in launches.scratch("cpu").items()}
        order = None if index is None else order_of(index, sizes.elements)
        inner = [{name: x for name, (_, x) in part.items()} for part in (around, room, scratch)]
        named = inner[0] | {f"d_{slot}": x for slot, x in inner[1].items()}
        named |= {name if name == "sums" else f"sums of {name}": x for name, x in inner[2].items()}
        with self.library.watching(named | ({} if order is None else {"first": order.first, "order": order.order})):
            for one in launches.list_launches(*inner, order):
                name = one.entry.removeprefix("tpgen_")
                block = placement.entries[one.entry]
                self.library.call(f"run_{name}_{n}", one.blocks, *block, seed, *map(ctypes.byref, one.arguments))
        inside = (pair for part in (around, room, scratch) for pair in part.values())
        assert all(_untouched(*pair) for pair in inside), "written beside a tensor"
        return [x.clone() for x in inner[1].values()]


def _shape(placement: object, slot: str, sizes: CallSizes) -> tuple[int, ...]:
    o = placement.operands[slot]  # type: ignore[attr-defined]
    return (sizes.elements if o.weights else sizes.rows, o.dim * (sizes.channels if o.channels else 1))
