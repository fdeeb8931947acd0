"""A placement to CUDA C++: one source for each set of open slots, deterministic, without includes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from tpgen.kernels.cpp.text import GeneratedSource, Writer, read_header
from tpgen.kernels.cuda.channel_text import ChannelText
from tpgen.kernels.cuda.chips import Chip
from tpgen.kernels.cuda.counts import AnyPlacement
from tpgen.kernels.cuda.gather_placement import GatherPlacement
from tpgen.kernels.cuda.gather_text import GathersText
from tpgen.kernels.cuda.placement import place_cuda
from tpgen.kernels.cuda.rows_text import RowsText
from tpgen.kernels.placement.matrix import AnySchedule

ENTRY, SUM_ENTRY = "tpgen_kernel", "tpgen_sum"
_TYPES = {"float32": ("float", "float"), "float64": ("double", "double"), "bfloat16": ("unsigned short", "float")}


P_co = TypeVar("P_co", covariant=True)


@dataclass(frozen=True)
class Placed(Generic[P_co]):
    """Generated kernels, and where their work is placed, which a launch needs to know."""

    source: GeneratedSource
    placement: P_co

    @property
    def text(self) -> str:
        return self.source.text


CudaSource = Placed[AnyPlacement]


def header(name: str) -> str:
    """The text of a header beside this file."""
    return read_header(Path(__file__).with_name(f"{name}.h"))


def generate_cuda(schedule: AnySchedule, opened: tuple[str, ...], chip: Chip, indexed: bool = False) -> CudaSource:
    """The source that computes the open slots of a form in one sweep.

    Raises `EmitError` where a row does not fit the chip, and for slots that cannot be open together.
    """
    placement = place_cuda(schedule, opened, chip, indexed)
    w = Writer()
    with w.part("placement"):
        for line in str(placement).split("\n"):
            w.line(f"// {line}")
    KernelText(placement, w).write()
    return CudaSource(w.done(), placement)


def write_numbers(w: Writer, dtype: str, *counts: str) -> None:
    """The numbers in memory and in registers, what is counted with, and what a device brings."""
    real, num = _TYPES[dtype]
    w.line("typedef long long i64; typedef unsigned long long u64;")
    w.line(f"typedef {real} real;  // in memory")
    w.line(f"typedef {num} num;  // in registers")
    for count in counts:
        w.line(f"enum {{ {count} }};")
    w.raw("#ifndef TPGEN_DEVICE")
    w.raw(header("device"))
    w.raw("#endif")
    if dtype == "bfloat16":
        w.raw(header("numbers"))
    else:
        w.line("DEVICE num widen(real x) { return x; }")
        w.line("DEVICE real narrow(num x) { return x; }")


class KernelText:
    """Writes a kernel: what is constant, the functions of its units, and the loop over the rows of a block."""

    def __init__(self, placement: AnyPlacement, w: Writer) -> None:
        self.p, self.s, self.w = placement, placement.schedule, w
        self.dtype = placement.schedule.target.dtype
        self.body = GathersText(placement, w) if isinstance(placement, GatherPlacement) else ChannelText(placement, w)

    def write(self) -> None:
        self._prelude()
        self._in_part("tables", self.body.write_constants)
        self._in_part("a step", self._step)
        self.body.write_functions()
        rows = RowsText(self.p, self.w)
        self._in_part("rows fetched", rows.write_fetch)
        self._in_part("a step", self._compute)
        self._in_part("rows delivered", rows.write_deliver)
        self._in_part("the kernel", self._kernel)
        if self.p.sums_weights:
            self._in_part("the kernel", self._sum)

    def _in_part(self, name: str, write: Callable[[], None]) -> None:
        with self.w.part(name):
            write()

    def _prelude(self) -> None:
        w, p = self.w, self.p
        counts = {"THREADS": p.threads, "BLOCKS": p.blocks_at_once, "ROWS": p.rows, "STAGES": p.stage_count}
        write_numbers(w, self.dtype, ", ".join(f"{name} = {count}" for name, count in counts.items()))
        w.raw(header("copies"))
        w.raw(header("gather" if isinstance(self.p, GatherPlacement) else "lanes"))

    # -- what a step works on --

    def _step(self) -> None:
        p, w = self.p, self.w
        with w.block("struct Step", "};"):
            for o in p.given:
                w.line(f"const real* {o};")
            for o in p.opened:
                w.line(f"{'num' if p.added(o) else 'real'}* d_{o};")
            for name, size in p.between.items():
                if size:
                    w.line(f"num* {name};")
            w.line("int rows;")

    def _compute(self) -> None:
        with self.w.block("DEVICE void compute(const Step& s)"):
            self.body.write_step()

    # -- the kernel --

    def _kernel(self) -> None:
        p, w = self.p, self.w
        with w.block(f'extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) {ENTRY}(const Call call)'):
            w.line("unsigned char* const shared = shared_memory();")
            w.line("u64* const barriers = (u64*)shared;")
            w.line("if (threadIdx.x == 0) for (int n = 0; n < STAGES; ++n) barrier_init(barriers + n);")
            w.line("Step s;")
            self._fixed_places()
            w.line("int at = 0;")
            w.line("unsigned parity = 0;")
            w.line("__syncthreads();")
            if p.owner:
                self._owners(p.owner)
            else:
                w.line("const i64 begin = (i64)blockIdx.x * ROWS, by = (i64)gridDim.x * ROWS, end = call.rows;")
                self._steps()
            w.line("delivered();")

    def _fixed_places(self) -> None:
        """Areas that stay where they are."""
        p, w = self.p, self.w
        kinds = {f"d_{o}": "num" if p.added(o) else "real" for o in p.opened}
        for name, place in p.areas.items():
            w.line(f"s.{name} = ({kinds.get(name, 'num')}*)(shared + {place});")
        if p.schedule.shared_weights and "w" in p.given and p.dim["w"]:
            w.line("s.w = call.w;")
        if p.sums_weights:
            w.line(f"s.d_w = call.sums + (i64)blockIdx.x * {p.dim['w']};")
            w.line(f"clear(s.d_w, {p.dim['w']});")
        if p.rows == 1:
            w.line("s.rows = 1;")

    def _owners(self, owner: str) -> None:
        """The edges of one row of the owner after the other, added up in their order."""
        w, dim = self.w, self.p.dim[owner]
        with w.block("for (i64 o = blockIdx.x; o < call.owners; o += gridDim.x)"):
            w.line("const i64 begin = call.first[o], by = ROWS, end = call.first[o + 1];")
            w.line(f"clear(s.d_{owner}, {dim});")
            self._steps()
            w.line("__syncthreads();")
            w.line(f"write_out(call.d_{owner} + o * {dim}, s.d_{owner}, {dim});")
            w.line("__syncthreads();")

    def _steps(self) -> None:
        w, p = self.w, self.p
        size = -(-p.stage_bytes // 128) * 128
        place = f"shared + {p.stages_at} + {{0}} * {size}, barriers + {{0}}"
        if p.stage_count > 1:
            with w.block("for (int n = 0; n < STAGES - 1; ++n)"):
                w.line("const i64 q = begin + n * by;")
                w.line(f"if (q < end) fetch_rows(call, {place.format('(at + n) % STAGES')}, q, rows_of(q, end));")
                w.line("fetch_end();")
        with w.block("for (i64 q = begin; q < end; q += by)"):
            w.line("delivered();")
            w.line("const i64 ahead = q + (STAGES - 1) * by;")
            next_place = place.format("(at + STAGES - 1) % STAGES")
            w.line(f"if (ahead < end) fetch_rows(call, {next_place}, ahead, rows_of(ahead, end));")
            w.line("fetch_end();")
            w.line("fetched(barriers + at, parity);")
            w.line(f"unsigned char* const stage = shared + {p.stages_at} + at * {size};")
            self._places_of_step()
            w.line("compute(s);")
            w.line("deliver_rows(call, s, q, s.rows);")
            w.line("if (++at == STAGES) at = 0, parity ^= 1;")

    def _places_of_step(self) -> None:
        p, w = self.p, self.w
        for o, place in p.stage.items():
            w.line(f"s.{o} = (const real*)(stage + {place});")
            if o in p.results and p.in_place(o) and not p.added(o):
                w.line(f"s.d_{o} = (real*)(stage + {place});")
        if p.rows > 1:
            w.line("s.rows = rows_of(q, end);")

    def _sum(self) -> None:
        """The blocks' parts of the gradient of weights that all rows share, added up."""
        self.w.line(f"enum {{ WEIGHTS = {self.p.dim['w']} }};")
        self.w.raw(header("sum"))
