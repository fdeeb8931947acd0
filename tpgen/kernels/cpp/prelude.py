"""The fixed part of a generated source: vectors, threads, loads, stores, transposes, sums over lanes, matrix products.

Everything goes through the vector extensions that g++ (12 and later) and clang share, so nothing here names a
processor. Two kinds of memory are kept apart: *storage* (``real``: the tensors, unaligned, maybe bfloat16) and
*scratch* (``num``: what is computed with, aligned).  No sum is reordered by the compiler: what is written is what is
added, in that order.
"""

from __future__ import annotations

from tpgen.kernels.schedule.values import Target

# storage type, compute type, integer type of the same width as the compute type
_TYPES = {
    "float32": ("float", "float", "unsigned int"),
    "float64": ("double", "double", "unsigned long long"),
    "bfloat16": ("unsigned short", "float", "unsigned int"),
}


# The closure is copied to each thread's stack, where its members become locals: through the shared one every store of
# a kernel would make the compiler read them again.
THREADS = """
// On the threads of the OpenMP runtime in the process, by the entry that all of them have: a pragma would tie the
// compiler to its own runtime.
#ifdef TPGEN_THREADS
extern "C" void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
template <class F> static void run_here(void* f) { F mine = *(F*)f; mine(); }
template <class F> static void on_threads(bool worth, F f) {
  if (worth) GOMP_parallel(run_here<F>, &f, 0, 0); else run_here<F>(&f);
}
#else
template <class F> static void on_threads(bool, F f) { f(); }
#endif
"""


def prelude(target: Target, tiles: set[int], rows: int) -> str:
    """The text before the generated functions: the tile widths in use, products where there are tiles of ``rows``."""
    parts = [
        _types(target),
        THREADS,
        _STORAGE["bfloat16" if target.dtype == "bfloat16" else "plain"],
        _LANES,
        _lane_sum(target.lanes),
    ]
    parts += ["template <int D> struct Tile;  // W items of D numbers each <-> D vectors of W items"]
    parts += [_tile(target.lanes, d) for d in sorted(tiles | {1})]
    parts += [_STAGING]
    if rows:
        parts += [
            f"enum {{ R = {rows} }};  // rows in a tile",
            _transpose(target.lanes),
            _ROW_STAGING,
            _matrices(target),
            _CORRELATION,
        ]
    return "\n".join(part.strip("\n") for part in parts)


def _types(target: Target) -> str:
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
// loops over the parts of an array in registers: unrolled, or the array would live in memory
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 64")
#endif
extern "C" int posix_memalign(void**, unsigned long, unsigned long);
extern "C" void free(void*);
#ifdef __linux__
extern "C" int madvise(void*, unsigned long, int);
#endif
// Fresh pages are zeroed by the system one fault at a time; large ones cost 500 times fewer faults.
static void expect_writes(const void* p, i64 bytes) {{
#ifdef __linux__
  unsigned long long page = 1ull << 21, at = (unsigned long long)p;
  unsigned long long from = (at + page - 1) / page * page, to = (at + bytes) / page * page;
  if (bytes >= 4 * (i64)page && to > from) madvise((void*)from, to - from, 14);
#endif
}}
static inline i64 least(i64 a, i64 b) {{ return a < b ? a : b; }}
"""


_STORAGE = {
    "plain": """
static inline num widen(real x) { return x; }
static inline real narrow(num x) { return x; }
static inline vec fetch(const real* p) { return *(const loose*)p; }
static inline void put(real* p, vec v) { *(loose*)p = v; }
""",
    # bfloat16 is the upper half of a float; rounding is to nearest, ties to even, and NaN stays NaN
    "bfloat16": """
typedef real halves __attribute__((vector_size(2 * W), aligned(2), may_alias));
static inline num widen(real x) { union { unsigned int u; num f; } b = {(unsigned int)x << 16}; return b.f; }
static inline real narrow(num x) {
  union { num f; unsigned int u; } b = {x};
  return x != x ? (b.u >> 16) | 64 : (b.u + 0x7fff + ((b.u >> 16) & 1)) >> 16;
}
static inline vec fetch(const real* p) { return (vec)(__builtin_convertvector(*(const halves*)p, bits) << 16); }
static inline void put(real* p, vec v) {
  bits u = (bits)v, nan = (bits)(v != v);
  u = (nan & ((u >> 16) | 64)) | (~nan & ((u + 0x7fff + ((u >> 16) & 1)) >> 16));
  *(halves*)p = __builtin_convertvector(u, halves);
}
""",
}

_LANES = """
static inline vec load(const num* p) { return *(const vec*)p; }
static inline void store(num* p, vec v) { *(vec*)p = v; }
static inline void add(num* p, vec v) { *(vec*)p += v; }
static inline void clear(num* p, i64 n) { for (i64 m = 0; m < n; m += W) store(p + m, vec{}); }
static inline void zero(real* p, i64 n) { for (i64 m = 0; m < n; ++m) p[m] = 0; }
"""


def _lane_sum(lanes: int) -> str:
    """Halve, add, repeat: the order of the sum is fixed."""
    lines, half = [], lanes // 2
    while half:
        order = ", ".join(str(n + half if n < half else n) for n in range(lanes))
        lines.append(f"  v += __builtin_shufflevector(v, v, {order});")
        half //= 2
    return "static inline num lane_sum(vec v) {\n" + "\n".join(lines) + "\n  return v[0];\n}"


def _shuffle_chain(wanted: list[tuple[int, int]], source: str, target: str) -> list[str]:
    """Statements that fill ``target`` with lanes (vector, lane) of ``source`` by two-input shuffles."""
    lanes = len(wanted)
    vectors = list(dict.fromkeys(v for v, _ in wanted))
    if len(vectors) == 1 and all(lane == n for n, (_, lane) in enumerate(wanted)):
        return [f"{target} = {source}[{vectors[0]}];"]
    first, second = vectors[0], vectors[min(1, len(vectors) - 1)]
    order = [lane + lanes * (v == second and second != first) if v in (first, second) else -1 for v, lane in wanted]
    statements = [f"{target} = __builtin_shufflevector({source}[{first}], {source}[{second}], {_order(order)});"]
    done = {first, second}
    for vector in vectors[2:]:
        order = [n if v in done else lanes + lane if v == vector else -1 for n, (v, lane) in enumerate(wanted)]
        done.add(vector)
        statements.append(f"{target} = __builtin_shufflevector({target}, {source}[{vector}], {_order(order)});")
    return statements


def _order(lanes: list[int]) -> str:
    return ", ".join(map(str, lanes))


def _tile(lanes: int, width: int) -> str:
    """Register transposes between ``W`` items of ``width`` numbers and ``width`` vectors."""
    split, join = [], []
    for d in range(width):
        split += _shuffle_chain([divmod(n * width + d, lanes) for n in range(lanes)], "m", f"v[{d}]")
    for m in range(width):
        places = [divmod(m * lanes + e, width) for e in range(lanes)]  # item, place in the item
        join += _shuffle_chain([(d, item) for item, d in places], "v", f"m[{m}]")
    fetches = " ".join(f"m[{d}] = fetch(p + {d} * W);" for d in range(width))
    puts = " ".join(f"put(p + {d} * W, m[{d}]);" for d in range(width))
    body = "\n    ".join
    return f"""
template <> struct Tile<{width}> {{
  static inline __attribute__((always_inline)) void fetch_items(const real* p, vec* v) {{
    vec m[{width}];
    {fetches}
    {body(split)}
  }}
  static inline __attribute__((always_inline)) void put_items(real* p, const vec* v) {{
    vec m[{width}];
    {body(join)}
    {puts}
  }}
}};"""


_STAGING = """
// memory [O][M][D] <-> scratch [O][D][M padded with zeros to whole vectors]
template <int O, int M, int D> static inline void stage(const real* p, num* s) {
  enum { P = (M + W - 1) / W * W };
  for (int o = 0; o < O; ++o, p += M * D, s += D * P) {
    for (int c = 0; c + W <= M; c += W) {
      vec v[D];
      Tile<D>::fetch_items(p + c * D, v);
      UNROLL for (int d = 0; d < D; ++d) store(s + d * P + c, v[d]);
    }
    if (M % W)
      for (int d = 0; d < D; ++d) {
        vec rest = {};
        for (int c = M / W * W; c < M; ++c) rest[c % W] = widen(p[c * D + d]);
        store(s + d * P + M / W * W, rest);
      }
  }
}
template <int O, int M, int D> static inline void unstage(const num* s, real* p) {
  enum { P = (M + W - 1) / W * W };
  for (int o = 0; o < O; ++o, p += M * D, s += D * P) {
    for (int c = 0; c + W <= M; c += W) {
      vec v[D];
      UNROLL for (int d = 0; d < D; ++d) v[d] = load(s + d * P + c);
      Tile<D>::put_items(p + c * D, v);
    }
    for (int c = M / W * W; c < M; ++c)
      for (int d = 0; d < D; ++d) p[c * D + d] = narrow(s[d * P + c]);
  }
}
"""


def _transpose(lanes: int) -> str:
    """Square transpose in log2(W) rounds of two-input shuffles."""
    statements, step = [], 1
    while step < lanes:
        for n in range(lanes):
            if not n & step:
                low = _order([lane if not lane & step else lanes + lane - step for lane in range(lanes)])
                high = _order([lane + step if not lane & step else lanes + lane for lane in range(lanes)])
                statements.append(f"a = v[{n}]; b = v[{n + step}];")
                statements.append(f"v[{n}] = __builtin_shufflevector(a, b, {low});")
                statements.append(f"v[{n + step}] = __builtin_shufflevector(a, b, {high});")
        step *= 2
    return "static inline void transpose(vec* v) {\n  vec a, b;\n  " + "\n  ".join(statements) + "\n}"


_ROW_STAGING = """
// numbers from..from+count of n rows <-> scratch [number * stride][R]; rows past n read as zero
static inline void stage_rows(const real* const* p, int n, i64 from, int count, num* s, int stride) {
  for (int r = 0; r < R; r += W)
    if (n - r >= W && count >= W)
      for (int e = 0; e < count; e += W) {
        if (e + W > count) e = count - W;
        vec v[W];
        UNROLL for (int l = 0; l < W; ++l) v[l] = fetch(p[r + l] + from + e);
        transpose(v);
        UNROLL for (int l = 0; l < W; ++l) store(s + (i64)(e + l) * stride * R + r, v[l]);
      }
    else
      for (int e = 0; e < count; ++e)
        for (int l = r; l < r + W; ++l) s[(i64)e * stride * R + l] = l < n ? widen(p[l][from + e]) : 0;
}
static inline void unstage_rows(const num* s, real* const* p, int n, i64 from, int count, int stride) {
  for (int r = 0; r < R; r += W)
    if (n - r >= W && count >= W)
      for (int e = 0; e < count; e += W) {
        if (e + W > count) e = count - W;
        vec v[W];
        UNROLL for (int l = 0; l < W; ++l) v[l] = load(s + (i64)(e + l) * stride * R + r);
        transpose(v);
        UNROLL for (int l = 0; l < W; ++l) put(p[r + l] + from + e, v[l]);
      }
    else
      for (int e = 0; e < count; ++e)
        for (int l = r; l < r + W && l < n; ++l) p[l][from + e] = narrow(s[(i64)e * stride * R + l]);
}
static inline void add_rows(const num* s, real* const* p, int n, i64 from, int count, int stride) {
  for (int l = 0; l < n; ++l)
    for (int e = 0; e < count; ++e) p[l][from + e] = narrow(widen(p[l][from + e]) + s[(i64)e * stride * R + l]);
}
"""


_CORRELATION = """
// C[m * cm + n] += sum over k and lanes of A[m][k] B[n][k]: rows of vectors against rows of vectors
template <int H, int V> static inline void dots(num* C, i64 cm, const num* A, const num* B, int K) {
  vec c[H][V] = {};
  for (int k = 0; k < K; k += W)
    UNROLL for (int h = 0; h < H; ++h) {
      const vec a = load(A + (i64)h * K + k);
      UNROLL for (int v = 0; v < V; ++v) c[h][v] += a * load(B + (i64)v * K + k);
    }
  UNROLL for (int h = 0; h < H; ++h) UNROLL for (int v = 0; v < V; ++v) C[h * cm + v] += lane_sum(c[h][v]);
}
static void correlate(num* C, i64 cm, const num* A, const num* B, int M, int N, int K) {
  int m = 0;
  for (; m + 4 <= M; m += 4) {
    int n = 0;
    for (; n + 4 <= N; n += 4) dots<4, 4>(C + m * cm + n, cm, A + (i64)m * K, B + (i64)n * K, K);
    for (; n < N; ++n) dots<4, 1>(C + m * cm + n, cm, A + (i64)m * K, B + (i64)n * K, K);
  }
  for (; m < M; ++m)
    for (int n = 0; n < N; ++n) dots<1, 1>(C + m * cm + n, cm, A + (i64)m * K, B + (i64)n * K, K);
}
"""


def _matrices(target: Target) -> str:
    """Matrix products on whole tiles, blocked in registers: rows of scalars against columns of vectors."""
    tall, wide = (6, 4) if target.registers >= 32 else (4, 2)
    cases = "\n".join(
        f"  for (; m + {h} <= M; m += {h}) patch<{h}, V>(C + (i64)m * N, A + m * am, am, ak, B, K, N);"
        for h in range(tall, 0, -1)
    )
    columns = "\n".join(
        f"  for (; n + {w} * W <= N; n += {w} * W) panel<{w}>(C + n, A, am, ak, B + n, M, K, N);"
        for w in range(wide, 0, -1)
    )
    return f"""
// C[m][n] += sum_k A(m, k) B[k][n]: A is strided numbers, n runs over whole vectors
template <int H, int V> static inline void patch(num* C, const num* A, i64 am, i64 ak, const num* B, int K, int N) {{
  vec c[H][V];
  UNROLL for (int h = 0; h < H; ++h) UNROLL for (int v = 0; v < V; ++v) c[h][v] = load(C + (i64)h * N + v * W);
  for (int k = 0; k < K; ++k) {{
    vec b[V];
    UNROLL for (int v = 0; v < V; ++v) b[v] = load(B + (i64)k * N + v * W);
    UNROLL for (int h = 0; h < H; ++h) {{
      const num a = A[h * am + k * ak];
      UNROLL for (int v = 0; v < V; ++v) c[h][v] += a * b[v];
    }}
  }}
  UNROLL for (int h = 0; h < H; ++h) UNROLL for (int v = 0; v < V; ++v) store(C + (i64)h * N + v * W, c[h][v]);
}}
// a panel of B stays in the nearest cache while all rows of A pass
template <int V> static inline void panel(num* C, const num* A, i64 am, i64 ak, const num* B, int M, int K, int N) {{
  int m = 0;
{cases}
}}
static void multiply(num* C, const num* A, i64 am, i64 ak, const num* B, int M, int K, int N) {{
  int n = 0;
{columns}
}}
// T[k][n] = B[n][k], in whole vectors both ways
static void flip(const num* B, num* T, int N, int K) {{
  for (int n = 0; n < N; n += W)
    for (int k = 0; k < K; k += W) {{
      vec v[W];
      UNROLL for (int l = 0; l < W; ++l) v[l] = load(B + (i64)(n + l) * K + k);
      transpose(v);
      UNROLL for (int l = 0; l < W; ++l) store(T + (i64)(k + l) * N + n, v[l]);
    }}
}}
"""
