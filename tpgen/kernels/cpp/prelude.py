"""C++ before the generated functions."""

from __future__ import annotations

from pathlib import Path

from tpgen.kernels.cpp.text import read_header
from tpgen.kernels.cpp.tiles import lane_list, partial_tile_transposes_text, tile_transposes_text
from tpgen.kernels.placement.values import Target

# storage type (tensors: unaligned, maybe bfloat16), compute type (also of scratch: aligned), integer type of the same
# width as the compute type
_TYPES = {
    "float32": ("float", "float", "unsigned int"),
    "float64": ("double", "double", "unsigned long long"),
    "bfloat16": ("unsigned short", "float", "unsigned int"),
}


def header_text(name: str) -> str:
    """Read a header beside this file."""
    return read_header(Path(__file__).with_name(f"{name}.h"))


def prelude_text(target: Target, transposed_shapes: set[tuple[int, int]], tile_rows: int) -> str:
    """C++ types and helpers before a kernel's functions, with transposes of shapes (width, items).

    ``tile_rows``: 0 without matrix products.
    """
    tails = {(width, items % target.lanes) for width, items in transposed_shapes if items % target.lanes}
    parts = [
        number_type_definitions(target),
        header_text("system"),
        header_text("threads"),
        header_text("bfloat16" if target.dtype == "bfloat16" else "plain"),
        header_text("lanes"),
        _lane_sum_function_source(target.lanes),
    ]
    parts += ["template <int D> struct Tile;  // W items of D numbers each <-> D vectors of W items"]
    parts += [tile_transposes_text(target.lanes, d) for d in sorted({1, *(width for width, _ in transposed_shapes)})]
    parts += [header_text("staging")]
    parts += [partial_tile_transposes_text(target.lanes, target.dtype, tails)] if tails else []
    if tile_rows:
        parts += [
            f"enum {{ R = {tile_rows} }};  // rows in a tile",
            _square_transpose_function_source(target.lanes),
            header_text("row_staging"),
            header_text("patch"),
            _matrix_product_functions_source(target),
            header_text("correlation"),
        ]
    return "\n".join(part.strip("\n") for part in parts)


def number_type_definitions(target: Target) -> str:
    """C++ that defines types: ``real`` of tensors, ``num`` of computation and scratch, ``vec`` of ``W`` lanes."""
    storage, compute, bits = _TYPES[target.dtype]
    width = 8 if compute == "double" else 4
    return f"""
typedef {storage} real;  // as the tensors hold it
typedef {compute} num;   // as it is computed with
typedef long long i64;
enum {{ W = {target.lanes} }};  // lanes
typedef num vec __attribute__((vector_size({target.lanes * width}), may_alias));
typedef num loose __attribute__((vector_size({target.lanes * width}), aligned({width}), may_alias));
typedef {bits} bits __attribute__((vector_size({target.lanes * width}), may_alias));
"""


def _lane_sum_function_source(lanes: int) -> str:
    # halve, add, repeat: the order of the sum is fixed
    lines, half = [], lanes // 2
    while half:
        order = ", ".join(str(n + half if n < half else n) for n in range(lanes))
        lines.append(f"  v += __builtin_shufflevector(v, v, {order});")
        half //= 2
    return "static inline num lane_sum(vec v) {\n" + "\n".join(lines) + "\n  return v[0];\n}"


def _square_transpose_function_source(lanes: int) -> str:
    # square transpose in log2(W) rounds of two-input shuffles
    statements, step = [], 1
    while step < lanes:
        for n in range(lanes):
            if not n & step:
                low = lane_list([lane if not lane & step else lanes + lane - step for lane in range(lanes)])
                high = lane_list([lane + step if not lane & step else lanes + lane for lane in range(lanes)])
                statements.append(f"a = v[{n}]; b = v[{n + step}];")
                statements.append(f"v[{n}] = __builtin_shufflevector(a, b, {low});")
                statements.append(f"v[{n + step}] = __builtin_shufflevector(a, b, {high});")
        step *= 2
    return "static inline void transpose(vec* v) {\n  vec a, b;\n  " + "\n  ".join(statements) + "\n}"


def _matrix_product_functions_source(target: Target) -> str:
    # Matrix products on whole tiles, blocked in registers: rows of scalars against columns of vectors.
    # Heights of 5 and 3 would take as long as 4 + 1 and 2 + 1 do.
    wide = 4 if target.registers >= 32 else 2
    cases = "\n".join(
        f"  for (; m + {h} <= M; m += {h}) patch<{h}, V>(add, C + m * cm, cm, A + m * am, am, ak, B, bk, K);"
        for h in (6, 4, 2, 1)
    )
    return f"""
// a panel of B stays in the nearest cache while all rows of A pass
template <int V> static __attribute__((noinline))
void panel(bool add, num* C, i64 cm, const num* A, i64 am, i64 ak, const num* B, i64 bk, int M, int K) {{
  int m = 0;
{cases}
}}
template <int N> static inline
void multiply(bool add, num* C, i64 cm, const num* A, i64 am, i64 ak, const num* B, i64 bk, int M, int K) {{
  enum {{ V = {wide}, REST = N / W % V, WHOLE = N - REST * W }};
  for (int n = 0; n < WHOLE; n += V * W) panel<V>(add, C + n, cm, A, am, ak, B + n, bk, M, K);
  if constexpr (REST) panel<REST>(add, C + WHOLE, cm, A, am, ak, B + WHOLE, bk, M, K);
}}
static inline void multiply_columns(
    int N, bool add, num* C, i64 cm, const num* A, i64 am, i64 ak, const num* B, i64 bk, int M, int K) {{
  int n = 0;
  for (; n + {wide} * W <= N; n += {wide} * W) panel<{wide}>(add, C + n, cm, A, am, ak, B + n, bk, M, K);
  for (; n < N; n += W) panel<1>(add, C + n, cm, A, am, ak, B + n, bk, M, K);
}}
"""
