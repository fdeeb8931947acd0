"""Kernels' texts compiled for a CPU, many in one library, and run in random orders."""

from __future__ import annotations

import atexit
import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tpgen.kernels.arguments import CallSizes
from tpgen.kernels.build.compiler import need_compiler
from tpgen.kernels.cuda.generate import CudaSource
from tpgen.kernels.cuda.launch import EdgeIndices, KernelLaunch, plan_launches
from tpgen.kernels.cuda.orders import sort_by_owner
from tpgen.kernels.cuda.placement import AnyPlacement
from tpgen.kernels.cuda.polynomial_placement import CudaPolynomialPlacement
from tpgen.kernels.cuda.prelude import CHANNELS_ENTRY, COLLECT_ENTRY, ENTRY, JOIN_ENTRY, SUM_ENTRY
from tpgen.planner.plan import Operand

_HERE = Path(__file__).parent
_MARGIN = 64  # numbers around every tensor that nobody may read or write

_KERNELS = """
#undef COPIES
#define COPIES {copies}
{renamed}
namespace k{n} {{
using namespace {names};
{text}
}}
{restored}
{called}
"""
_CALLED = """extern "C" const char* run_{kernel}_{n}(unsigned blocks, unsigned count, unsigned shared, unsigned seed,
                                     {arguments}) {{
  return launch([=] {{ k{n}::{kernel}_{n}({values}); }}, blocks, count, shared, seed);
}}
"""
# what kernels take besides, of products and of polynomials
_CALL = ("const k{n}::Call* call", "*call")
_OF_PRODUCTS = {
    ENTRY: _CALL,
    JOIN_ENTRY: ("const k{n}::Call* call, int runs", "*call, runs"),
    SUM_ENTRY: ("const k{n}::num* sums, k{n}::real* d_w, int parts", "sums, d_w, parts"),
    COLLECT_ENTRY: (
        "const k{n}::real* parts, const k{n}::i64* first, const k{n}::i64* order, k{n}::real* to",
        "parts, first, order, to",
    ),
}
_OF_POLYNOMIALS = dict.fromkeys((ENTRY, SUM_ENTRY, CHANNELS_ENTRY), _CALL)
_NAMES = {2: "engine", 1: "async", 0: "standin"}
_COUNTED = ("-DCOUNTED", "-fsanitize=thread", "-fsanitize-coverage=trace-pc")  # calls to traffic.cpp, no library's


class Traffic(NamedTuple):
    """What the warps of a kernel asked of an area of memory; traffic.cpp says how it is counted."""

    bytes: int
    answered: int  # sectors of 32 bytes, or rounds of the banks of shared memory, over all requests
    fewest: int  # that could have answered the same requests


class Library:
    """Texts compiled for a CPU into one library, whose functions return what is wrong."""

    def __init__(self, text: str, folder: Path, counted: bool = False) -> None:
        self.counted, self.traffic = counted, dict[str, Traffic]()
        file, library = folder / "kernels.cpp", folder / "kernels.so"
        file.write_text(f'#include "{_HERE / "standin.h"}"\n{text}', encoding="utf-8")
        kernels = _object(file, folder / "kernels.o", "-O0", *(_COUNTED if counted else ()))
        _compile("-shared", "-o", str(library), *map(str, (kernels, *_runtime())))
        self._library = ctypes.CDLL(str(library))

    def call(self, name: str, *values: object) -> None:
        """Calls a function, in which nothing may be wrong."""
        function = getattr(self._library, name)
        function.restype = ctypes.c_char_p
        fault = function(*values).decode()
        assert not fault, f"{name}: {fault}"

    @contextmanager
    def watching(self, tensors: Mapping[str, Tensor | None]) -> Iterator[None]:
        """Counts, where that is compiled in, what kernels ask of shared memory and of these tensors meanwhile."""
        if not self.counted:
            yield
            return
        watched = {name: x for name, x in tensors.items() if x is not None and x.numel()}
        numbers = ctypes.c_uint64 * len(watched)
        begins = [x.data_ptr() for x in watched.values()]
        ends = [x.data_ptr() + x.numel() * x.element_size() for x in watched.values()]
        self._library.traffic_watch(len(watched), numbers(*begins), numbers(*ends))
        yield
        counts = (ctypes.c_uint64 * (3 * (1 + len(watched))))()
        self._library.traffic_read(counts)
        rows = zip(*[iter(counts)] * 3, strict=True)
        self.traffic = {name: Traffic(*row) for name, row in zip(("shared", *watched), rows, strict=True)}


@cache
def _runtime() -> tuple[Path, ...]:
    """What runs threads and counts, compiled once in a process."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return tuple(_object(_HERE / f"{name}.cpp", folder / f"{name}.o", "-O1") for name in ("standin", "traffic"))


def _object(file: Path, to: Path, *options: str) -> Path:
    _compile("-std=c++20", "-w", "-fPIC", *options, "-c", str(file), "-o", str(to))
    return to


def _compile(*options: str) -> None:
    done = subprocess.run([*need_compiler().program, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]


def _text(n: int, source: CudaSource, copies: int) -> str:
    polynomial = isinstance(source.placement, CudaPolynomialPlacement)
    takes = _OF_POLYNOMIALS if polynomial else _OF_PRODUCTS
    kernels = {entry: entry.removeprefix("tpgen_") for entry in takes if f" {entry}(" in source.text}
    called = (
        _CALLED.format(n=n, kernel=name, arguments=takes[entry][0].format(n=n), values=takes[entry][1])
        for entry, name in kernels.items()
    )
    return _KERNELS.format(
        n=n,
        copies=copies,
        names="standin" if polynomial else _NAMES[copies],
        text=source.text,
        renamed="\n".join(f"#define {entry} {name}_{n}" for entry, name in kernels.items()),
        restored="\n".join(f"#undef {entry}" for entry in kernels),
        called="".join(called),
    )


class StandIn:
    """Kernels in one library; copies are made as on a device where ``copies`` is 2 (sm_90), 1 (sm_80) or 0."""

    def __init__(
        self, sources: Sequence[CudaSource], copies: Sequence[int], folder: Path, counted: bool = False
    ) -> None:
        self.sources = sources
        texts = (_text(n, source, way) for n, (source, way) in enumerate(zip(sources, copies, strict=True)))
        self.library = Library("".join(texts), folder, counted)

    def run(
        self,
        n: int,
        operands: dict[str, Tensor],
        edges: tuple[Tensor, Tensor] | None = None,
        blocks: int = 2,
        seed: int = 0,
    ) -> dict[str, Tensor]:
        """The open slots of one kernel, on so many blocks or as many as have work."""
        p, rows = self.sources[n].placement, len(operands["x2"])
        launches, dtype = plan_launches(p, CallSizes(torch.device("cpu"), rows), blocks), getattr(torch, p.dtype)
        given = {s: _inside(operands[s].to(dtype)) for s in p.given}
        room = {s: _inside(torch.full_like(operands[s], float("nan"), dtype=dtype)) for s in p.opened}
        scratch = {name: x.fill_(float("nan")) for name, x in launches.allocate_scratch("cpu").items()}
        gather = _gather(p, operands, edges)  # which holds the tensors that the calls point into
        inner = [{s: x for s, (_, x) in part.items()} for part in (given, room)]
        indices = {} if gather is None else {name: getattr(gather, name) for name in ("order", "src", "dst")}
        written = {f"d_{s}": x for s, x in inner[1].items()} | scratch
        first, *others = launches.list_launches(*inner, scratch, gather)
        with self.library.watching(inner[0] | written | indices):
            self.launch(n, first, seed)
            for one in others:
                if one.entry != COLLECT_ENTRY:  # whose reading is its own
                    self.launch(n, one, seed)
        for one in others:
            if one.entry == COLLECT_ENTRY:
                self.launch(n, one, seed)
        for around in (*given.values(), *room.values()):
            assert _untouched(*around), "written beside a tensor"
        return {s: x.clone() for s, x in inner[1].items()}

    def launch(self, n: int, one: KernelLaunch, seed: int) -> None:
        """Run one kernel of a source."""
        self.call(
            n, one.entry, one.blocks, *self.sources[n].placement.block_sizes_by_kernel[one.entry], seed, *one.arguments
        )

    def call(self, n: int, entry: str, *given: Any) -> None:
        """Call a kernel by its name with blocks, threads and shared memory, a seed, and its arguments."""
        structs = (ctypes.byref(x) if isinstance(x, ctypes.Array) else x for x in given)
        self.library.call(f"run_{entry.removeprefix('tpgen_')}_{n}", *structs)

    def run_polynomial(
        self, n: int, given: Sequence[Tensor], index: Tensor | None, sizes: CallSizes, at_once: int = 3, seed: int = 0
    ) -> list[Tensor]:
        """The open slots of a polynomial's call, in its order."""
        p = self.sources[n].placement
        launches, dtype = plan_launches(p, sizes, at_once), getattr(torch, p.dtype)
        around = {slot: _inside(x.to(dtype)) for slot, x in zip(p.given, given, strict=True)}
        shapes = {slot: shape_of(p.operands[slot], sizes) for slot in p.opened}
        room = {slot: _inside(torch.full(shape, float("nan"), dtype=dtype)) for slot, shape in shapes.items()}
        scratch = {name: _inside(x.fill_(float("nan"))) for name, x in launches.allocate_scratch("cpu").items()}
        order = None if index is None else sort_by_owner(index, sizes.elements)
        inner = [{name: x for name, (_, x) in part.items()} for part in (around, room, scratch)]
        named = inner[0] | {f"d_{slot}": x for slot, x in inner[1].items()}
        named |= {name if name == "sums" else f"sums of {name}": x for name, x in inner[2].items()}
        with self.library.watching(named | ({} if order is None else {"first": order.first, "order": order.order})):
            for one in launches.list_launches(*inner, order):
                self.launch(n, one, seed)
        inside = (pair for part in (around, room, scratch) for pair in part.values())
        assert all(_untouched(*pair) for pair in inside), "written beside a tensor"
        return [x.clone() for x in inner[1].values()]


def shape_of(o: Operand, sizes: CallSizes) -> tuple[int, ...]:
    """Shape of the tensor of a polynomial's operand."""
    return (sizes.elements if o.weights else sizes.rows, o.dim * (sizes.channels if o.channels else 1))


def _inside(x: Tensor) -> tuple[Tensor, Tensor]:
    """A copy of a tensor with no numbers around it, and that with them."""
    around = torch.full((x.numel() + 2 * _MARGIN,), float("nan"), dtype=x.dtype)
    inner = around[_MARGIN:-_MARGIN].view(x.shape)
    inner.copy_(x)
    return around, inner


def _untouched(around: Tensor, _: Tensor) -> bool:
    return bool(around[:_MARGIN].isnan().all() and around[-_MARGIN:].isnan().all())


def _gather(p: AnyPlacement, operands: dict[str, Tensor], edges: tuple[Tensor, Tensor] | None) -> EdgeIndices | None:
    if edges is None:
        return None
    owners = {name: len(operands[name]) for name in ("x1", "out")}
    orders = {name: sort_by_owner(index, n) for index, (name, n) in zip(edges, owners.items(), strict=True)}
    order = orders[p.by].order if p.by else None
    return EdgeIndices(order, *edges, owners.get(p.by or "", 0), collected=orders["x1"] if p.scattered else None)
