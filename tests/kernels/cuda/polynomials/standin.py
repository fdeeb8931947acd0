"""Kernels of polynomials compiled for a CPU, many in one library, and run in random orders."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from tests.kernels.cuda.standin import Library, _inside, _untouched
from tpgen.kernels.arguments import Sizes
from tpgen.kernels.build.compiler import DTYPES
from tpgen.kernels.cuda.generate import CudaSource
from tpgen.kernels.cuda.orders import order_of
from tpgen.kernels.cuda.polynomial_placement import CudaPolynomialPlacement
from tpgen.kernels.cuda.tasks import Geometry, call_struct

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
        self, n: int, given: Sequence[Tensor], index: Tensor | None, sizes: Sizes, at_once: int = 3, seed: int = 0
    ) -> list[Tensor]:
        """The open slots of one call, in its order."""
        placement = self.sources[n].placement
        dtype = next(d for d, name in DTYPES.items() if name == placement.target.dtype)
        geometry = Geometry(placement, sizes, at_once)
        around = [_inside(x.to(dtype)) for x in given]
        empty = [torch.full(_shape(placement, slot, sizes), float("nan"), dtype=dtype) for slot in placement.opened]
        room = [_inside(x) for x in empty]
        scratch = [_inside(x.fill_(float("nan"))) for x in geometry.scratch(dtype, torch.device("cpu"))]
        order = None if index is None else order_of(index, sizes.elements)
        inner = [[x for _, x in part] for part in (around, room, scratch)]
        call = call_struct(geometry, *inner, order)
        names = (*placement.given, *(f"d_{slot}" for slot in placement.opened), *_scratch(placement))
        tensors = dict(zip(names, (x for part in inner for x in part), strict=True))
        with self.library.watching(tensors | ({} if order is None else {"first": order.first, "order": order.order})):
            self._launch(n, geometry, seed, call)
        assert all(_untouched(*pair) for pair in (*around, *room, *scratch)), "written beside a tensor"
        return [x.clone() for _, x in room]

    def _launch(self, n: int, geometry: Geometry, seed: int, call: ctypes.Array) -> None:
        for entry, block in geometry.placement.entries.items():
            name = entry.removeprefix("tpgen_")
            self.library.call(f"run_{name}_{n}", geometry.blocks[entry], *block, seed, call)


def _scratch(placement: CudaPolynomialPlacement) -> list[str]:
    """Names of what a call gets as scratch."""
    return ["sums", *(f"sums of {slot}" for slot in placement.summed)]


def _shape(placement: object, slot: str, sizes: Sizes) -> tuple[int, ...]:
    o = placement.operands[slot]  # type: ignore[attr-defined]
    return (sizes.elements if o.weights else sizes.rows, o.dim * (sizes.channels if o.channels else 1))
