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
from tpgen.kernels.cuda.launch import EdgeRows, Launch, launches_of
from tpgen.kernels.cuda.orders import order_of
from tpgen.kernels.cuda.placement import AnyPlacement
from tpgen.kernels.cuda.prelude import COLLECT_ENTRY, ENTRY, JOIN_ENTRY, SUM_ENTRY

_HERE = Path(__file__).parent
_MARGIN = 64  # numbers around every tensor that nobody may read or write

_KERNEL = """
#undef COPIES
#define COPIES {copies}
#define {entry} kernel_{n}
#define {sum_entry} sum_{n}
#define {join_entry} join_{n}
#define {collect_entry} collect_{n}
namespace k{n} {{
using namespace {names};
{text}
}}
#undef {entry}
#undef {sum_entry}
#undef {join_entry}
#undef {collect_entry}
extern "C" const char* run_{n}(unsigned blocks, unsigned count, unsigned shared, unsigned seed,
                              const k{n}::Call* call) {{
  return launch([=] {{ k{n}::kernel_{n}(*call); }}, blocks, count, shared, seed);
}}
"""
_SUM = """extern "C" const char* add_{n}(unsigned blocks, unsigned count, unsigned shared, unsigned seed,
                              const k{n}::num* sums, k{n}::real* d_w, int parts) {{
  return launch([=] {{ k{n}::sum_{n}(sums, d_w, parts); }}, blocks, count, shared, seed);
}}
"""
_JOIN = """extern "C" const char* put_together_{n}(unsigned blocks, unsigned count, unsigned shared, unsigned seed,
                              const k{n}::Call* call, int runs) {{
  return launch([=] {{ k{n}::join_{n}(*call, runs); }}, blocks, count, shared, seed);
}}
"""
_COLLECT = """extern "C" const char* collect_of_{n}(unsigned blocks, unsigned count, unsigned shared, unsigned seed,
                                      const k{n}::real* parts, const k{n}::i64* first, const k{n}::i64* order,
                                      k{n}::real* to) {{
  return launch([=] {{ k{n}::collect_{n}(parts, first, order, to); }}, blocks, count, shared, seed);
}}
"""
_NAMES = {2: "engine", 1: "async", 0: "standin"}
_CALLED = {ENTRY: "run", SUM_ENTRY: "add", JOIN_ENTRY: "put_together", COLLECT_ENTRY: "collect_of"}
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


class StandIn:
    """Kernels in one library; copies are made as on a device where ``copies`` is 2 (sm_90), 1 (sm_80) or 0."""

    def __init__(
        self, sources: Sequence[CudaSource], copies: Sequence[int], folder: Path, counted: bool = False
    ) -> None:
        self.sources = sources
        text = []
        for n, (source, way) in enumerate(zip(sources, copies, strict=True)):
            entries = {"entry": ENTRY, "sum_entry": SUM_ENTRY, "join_entry": JOIN_ENTRY, "collect_entry": COLLECT_ENTRY}
            text.append(_KERNEL.format(text=source.text, n=n, copies=way, names=_NAMES[way], **entries))
            if source.placement.owner:
                text.append(_JOIN.format(n=n))
            if source.placement.scattered:
                text.append(_COLLECT.format(n=n))
            if source.placement.sums_weights:
                text.append(_SUM.format(n=n))
        self.library = Library("".join(text), folder, counted)

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
        launches, dtype = launches_of(p, CallSizes(torch.device("cpu"), rows), blocks), getattr(torch, p.dtype)
        given = {s: _inside(operands[s].to(dtype)) for s in p.given}
        room = {s: _inside(torch.full_like(operands[s], float("nan"), dtype=dtype)) for s in p.opened}
        scratch = {name: x.fill_(float("nan")) for name, x in launches.scratch("cpu").items()}
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

    def launch(self, n: int, one: Launch, seed: int) -> None:
        """Run one kernel of a source."""
        self.call(n, one.entry, one.blocks, *self.sources[n].placement.entries[one.entry], seed, *one.arguments)

    def call(self, n: int, entry: str, *given: Any) -> None:
        """Call a kernel by its name with blocks, threads and shared memory, a seed, and its arguments."""
        structs = (ctypes.byref(x) if isinstance(x, ctypes.Array) else x for x in given)
        self.library.call(f"{_CALLED[entry]}_{n}", *structs)


def _inside(x: Tensor) -> tuple[Tensor, Tensor]:
    """A copy of a tensor with no numbers around it, and that with them."""
    around = torch.full((x.numel() + 2 * _MARGIN,), float("nan"), dtype=x.dtype)
    inner = around[_MARGIN:-_MARGIN].view(x.shape)
    inner.copy_(x)
    return around, inner


def _untouched(around: Tensor, _: Tensor) -> bool:
    return bool(around[:_MARGIN].isnan().all() and around[-_MARGIN:].isnan().all())


def _gather(p: AnyPlacement, operands: dict[str, Tensor], edges: tuple[Tensor, Tensor] | None) -> EdgeRows | None:
    if edges is None:
        return None
    owners = {name: len(operands[name]) for name in ("x1", "out")}
    orders = {name: order_of(index, n) for index, (name, n) in zip(edges, owners.items(), strict=True)}
    order = orders[p.by].order if p.by else None
    return EdgeRows(order, *edges, owners.get(p.by or "", 0), collected=orders["x1"] if p.scattered else None)
