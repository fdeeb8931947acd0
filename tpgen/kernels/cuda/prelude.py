"""Head of CUDA texts, and kernel names."""

from __future__ import annotations

from pathlib import Path

from tpgen.kernels.cpp.text import Writer, read_header

ENTRY, SUM_ENTRY, JOIN_ENTRY, COLLECT_ENTRY = "tpgen_kernel", "tpgen_sum", "tpgen_join", "tpgen_collect"
CHANNELS_ENTRY = "tpgen_channels"
_TYPES = {"float32": ("float", "float"), "float64": ("double", "double"), "bfloat16": ("unsigned short", "float")}


def cuda_header(name: str) -> str:
    """Text of a header beside this file."""
    return read_header(Path(__file__).with_name(f"{name}.h"))


def write_cuda_prelude(w: Writer, dtype: str, *enumerators: str) -> None:
    """Write number types, enums of constants (``"A = 1, B = 2"``) and device helpers."""
    real, num = _TYPES[dtype]
    w.line("typedef long long i64; typedef unsigned long long u64;")
    w.line(f"typedef {real} real;  // in memory")
    w.line(f"typedef {num} num;  // in registers")
    for one in enumerators:
        w.line(f"enum {{ {one} }};")
    w.raw("#ifndef TPGEN_DEVICE")
    w.raw(cuda_header("device"))
    w.raw("#endif")
    if dtype == "bfloat16":
        w.raw(cuda_header("numbers"))
    else:
        w.line("DEVICE num widen(real x) { return x; }")
        w.line("DEVICE real narrow(num x) { return x; }")
