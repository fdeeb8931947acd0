// a: 1x0e+1x1o (row, mul_ir)
// b: 1x1o (row, mul_ir)
// y: 1x0e+1x1o+1x2e (row, one copy for all channels, mul_ir)
// u: 5x0e (weights, ir_mul)
// v: 1x0e (weights, ir_mul)
// out: 1x0e+1x1o (row, mul_ir)
// a x a x y x u -> out[1] 1x1o | 5 paths, 41 entries, independent couplings
// a x b x v -> out[0] 1x0e | 1 paths, 3 entries, independent couplings
// y x y -> out[0] 1x0e | 3 paths, 9 entries, independent couplings
// a b y u v -> out
typedef unsigned short real;  // as the tensors hold it
typedef float num;   // as it is computed with
typedef long long i64;
enum { W = 8 };  // lanes
typedef num vec __attribute__((vector_size(32), may_alias));
typedef num loose __attribute__((vector_size(32), aligned(4), may_alias));
typedef unsigned int bits __attribute__((vector_size(32), may_alias));
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
static void expect_writes(const void* p, i64 bytes) {
#ifdef __linux__
  unsigned long long page = 1ull << 21, at = (unsigned long long)p;
  unsigned long long from = (at + page - 1) / page * page, to = (at + bytes) / page * page;
  if (bytes >= 4 * (i64)page && to > from) madvise((void*)from, to - from, 14);
#endif
}
static inline i64 least(i64 a, i64 b) { return a < b ? a : b; }
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
static inline vec load(const num* p) { return *(const vec*)p; }
static inline void store(num* p, vec v) { *(vec*)p = v; }
static inline void add(num* p, vec v) { *(vec*)p += v; }
static inline void clear(num* p, i64 n) { for (i64 m = 0; m < n; m += W) store(p + m, vec{}); }
static inline void zero(real* p, i64 n) { for (i64 m = 0; m < n; ++m) p[m] = 0; }
static inline num lane_sum(vec v) {
  v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 4, 5, 6, 7);
  v += __builtin_shufflevector(v, v, 2, 3, 2, 3, 4, 5, 6, 7);
  v += __builtin_shufflevector(v, v, 1, 1, 2, 3, 4, 5, 6, 7);
  return v[0];
}
template <int D> struct Tile;  // W items of D numbers each <-> D vectors of W items
template <> struct Tile<1> {
  static inline __attribute__((always_inline)) void fetch_items(const real* p, vec* v) {
    vec m[1];
    m[0] = fetch(p + 0 * W);
    v[0] = m[0];
  }
  static inline __attribute__((always_inline)) void put_items(real* p, const vec* v) {
    vec m[1];
    m[0] = v[0];
    put(p + 0 * W, m[0]);
  }
};
template <> struct Tile<3> {
  static inline __attribute__((always_inline)) void fetch_items(const real* p, vec* v) {
    vec m[3];
    m[0] = fetch(p + 0 * W); m[1] = fetch(p + 1 * W); m[2] = fetch(p + 2 * W);
    v[0] = __builtin_shufflevector(m[0], m[1], 0, 3, 6, 9, 12, 15, -1, -1);
    v[0] = __builtin_shufflevector(v[0], m[2], 0, 1, 2, 3, 4, 5, 10, 13);
    v[1] = __builtin_shufflevector(m[0], m[1], 1, 4, 7, 10, 13, -1, -1, -1);
    v[1] = __builtin_shufflevector(v[1], m[2], 0, 1, 2, 3, 4, 8, 11, 14);
    v[2] = __builtin_shufflevector(m[0], m[1], 2, 5, 8, 11, 14, -1, -1, -1);
    v[2] = __builtin_shufflevector(v[2], m[2], 0, 1, 2, 3, 4, 9, 12, 15);
  }
  static inline __attribute__((always_inline)) void put_items(real* p, const vec* v) {
    vec m[3];
    m[0] = __builtin_shufflevector(v[0], v[1], 0, 8, -1, 1, 9, -1, 2, 10);
    m[0] = __builtin_shufflevector(m[0], v[2], 0, 1, 8, 3, 4, 9, 6, 7);
    m[1] = __builtin_shufflevector(v[2], v[0], 2, 11, -1, 3, 12, -1, 4, 13);
    m[1] = __builtin_shufflevector(m[1], v[1], 0, 1, 11, 3, 4, 12, 6, 7);
    m[2] = __builtin_shufflevector(v[1], v[2], 5, 13, -1, 6, 14, -1, 7, 15);
    m[2] = __builtin_shufflevector(m[2], v[0], 0, 1, 14, 3, 4, 15, 6, 7);
    put(p + 0 * W, m[0]); put(p + 1 * W, m[1]); put(p + 2 * W, m[2]);
  }
};
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
enum { R = 8 };  // rows in a tile
static inline void transpose(vec* v) {
  vec a, b;
  a = v[0]; b = v[1];
  v[0] = __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14);
  v[1] = __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
  a = v[2]; b = v[3];
  v[2] = __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14);
  v[3] = __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
  a = v[4]; b = v[5];
  v[4] = __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14);
  v[5] = __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
  a = v[6]; b = v[7];
  v[6] = __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14);
  v[7] = __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
  a = v[0]; b = v[2];
  v[0] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
  v[2] = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
  a = v[1]; b = v[3];
  v[1] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
  v[3] = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
  a = v[4]; b = v[6];
  v[4] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
  v[6] = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
  a = v[5]; b = v[7];
  v[5] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
  v[7] = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
  a = v[0]; b = v[4];
  v[0] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
  v[4] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
  a = v[1]; b = v[5];
  v[1] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
  v[5] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
  a = v[2]; b = v[6];
  v[2] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
  v[6] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
  a = v[3]; b = v[7];
  v[3] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
  v[7] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
}
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
// C[m][n] += sum_k A(m, k) B[k][n]: A is strided numbers, n runs over whole vectors
template <int H, int V> static inline void patch(num* C, const num* A, i64 am, i64 ak, const num* B, int K, int N) {
  vec c[H][V];
  UNROLL for (int h = 0; h < H; ++h) UNROLL for (int v = 0; v < V; ++v) c[h][v] = load(C + (i64)h * N + v * W);
  for (int k = 0; k < K; ++k) {
    vec b[V];
    UNROLL for (int v = 0; v < V; ++v) b[v] = load(B + (i64)k * N + v * W);
    UNROLL for (int h = 0; h < H; ++h) {
      const num a = A[h * am + k * ak];
      UNROLL for (int v = 0; v < V; ++v) c[h][v] += a * b[v];
    }
  }
  UNROLL for (int h = 0; h < H; ++h) UNROLL for (int v = 0; v < V; ++v) store(C + (i64)h * N + v * W, c[h][v]);
}
// a panel of B stays in the nearest cache while all rows of A pass
template <int V> static inline void panel(num* C, const num* A, i64 am, i64 ak, const num* B, int M, int K, int N) {
  int m = 0;
  for (; m + 4 <= M; m += 4) patch<4, V>(C + (i64)m * N, A + m * am, am, ak, B, K, N);
  for (; m + 3 <= M; m += 3) patch<3, V>(C + (i64)m * N, A + m * am, am, ak, B, K, N);
  for (; m + 2 <= M; m += 2) patch<2, V>(C + (i64)m * N, A + m * am, am, ak, B, K, N);
  for (; m + 1 <= M; m += 1) patch<1, V>(C + (i64)m * N, A + m * am, am, ak, B, K, N);
}
static void multiply(num* C, const num* A, i64 am, i64 ak, const num* B, int M, int K, int N) {
  int n = 0;
  for (; n + 2 * W <= N; n += 2 * W) panel<2>(C + n, A, am, ak, B + n, M, K, N);
  for (; n + 1 * W <= N; n += 1 * W) panel<1>(C + n, A, am, ak, B + n, M, K, N);
}
// T[k][n] = B[n][k], in whole vectors both ways
static void flip(const num* B, num* T, int N, int K) {
  for (int n = 0; n < N; n += W)
    for (int k = 0; k < K; k += W) {
      vec v[W];
      UNROLL for (int l = 0; l < W; ++l) v[l] = load(B + (i64)(n + l) * K + k);
      transpose(v);
      UNROLL for (int l = 0; l < W; ++l) store(T + (i64)(k + l) * N + n, v[l]);
    }
}
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
static int inside(const i64* index, i64 n, i64 size) {
  for (i64 m = 0; m < n; ++m) if (index[m] < 0 || index[m] >= size) return 0;
  return 1;
}
// rows by owner, and within one owner in their order; first[o] is where owner o begins
static void sort_rows(const i64* key, i64 n, i64 owners, i64* first, i64* order) {
  for (i64 o = 0; o <= owners; ++o) first[o] = 0;
  for (i64 m = 0; m < n; ++m) ++first[key[m]];
  for (i64 o = 0, sum = 0; o <= owners; ++o) { sum += first[o]; first[o] = sum; }
  for (i64 m = n - 1; m >= 0; --m) order[--first[key[m]]] = m;
}
// the first owner whose rows begin at or after a place in the order
static i64 owner_at(const i64* first, i64 owners, i64 place) {
  i64 low = 0, high = owners;
  while (low < high) {
    const i64 middle = (low + high) / 2;
    if (first[middle] < place) low = middle + 1; else high = middle;
  }
  return low;
}
struct Tasks {
  i64 count;
  i64 *first, *order;     // rows by element; first[e] is where element e begins
  i64 *element, *begin;   // of every task: its element, and where in the order it begins
};
// Tasks of ``span`` rows at most; with span 0 one for each element, with or without rows.  Without an index all rows are
// of one element, or each of its own.  Memory is one block that starts at ``first``.
static int make_tasks(Tasks* t, const i64* index, i64 rows, i64 elements, i64 span) {
  const i64 most = elements + (span ? rows / span : 0) + 1;
  if (posix_memalign((void**)&t->first, 64, (elements + 1 + rows + 2 * most) * sizeof(i64))) return 1;
  t->order = t->first + elements + 1;
  t->element = t->order + rows;
  t->begin = t->element + most;
  if (index) sort_rows(index, rows, elements, t->first, t->order);
  else {
    for (i64 m = 0; m < rows; ++m) t->order[m] = m;
    for (i64 e = 0; e <= elements; ++e) t->first[e] = e * rows / (elements ? elements : 1);
  }
  t->count = 0;
  for (i64 e = 0; e < elements; ++e)
    for (i64 q = t->first[e]; !span || q < t->first[e + 1]; q += span) {
      t->element[t->count] = e;
      t->begin[t->count++] = q;
      if (!span) break;
    }
  return 0;
}
template <bool> struct Wide {};
// n items of D numbers each <-> D vectors of items; what is past n reads as zero and is not written
template <int D> struct Items {
  static inline void get(const real* p, int n, vec* v) {
    if (n == W) whole(p, v, Wide<(D >= W)>());
    else
      for (int d = 0; d < D; ++d) {
        v[d] = vec{};
        for (int c = 0; c < n; ++c) v[d][c] = widen(p[c * D + d]);
      }
  }
  static inline void set(real* p, int n, const vec* v) {
    if (n == W) fill(p, v, Wide<(D >= W)>());
    else
      for (int d = 0; d < D; ++d)
        for (int c = 0; c < n; ++c) p[c * D + d] = narrow(v[d][c]);
  }
  static inline void whole(const real* p, vec* v, Wide<false>) { Tile<D>::fetch_items(p, v); }
  static inline void fill(real* p, const vec* v, Wide<false>) { Tile<D>::put_items(p, v); }
  // items of a vector or more: square by square, the last one overlapping the one before
  static inline void whole(const real* p, vec* v, Wide<true>) {
    for (int e = 0; e < D; e += W) {
      if (e + W > D) e = D - W;
      vec m[W];
      UNROLL for (int l = 0; l < W; ++l) m[l] = fetch(p + l * D + e);
      transpose(m);
      UNROLL for (int l = 0; l < W; ++l) v[e + l] = m[l];
    }
  }
  static inline void fill(real* p, const vec* v, Wide<true>) {
    for (int e = 0; e < D; e += W) {
      if (e + W > D) e = D - W;
      vec m[W];
      UNROLL for (int l = 0; l < W; ++l) m[l] = v[e + l];
      transpose(m);
      UNROLL for (int l = 0; l < W; ++l) put(p + l * D + e, m[l]);
    }
  }
};
// one component of n channels that stand side by side
static inline vec get_some(const real* p, int n) {
  if (n == W) return fetch(p);
  vec v = {};
  for (int c = 0; c < n; ++c) v[c] = widen(p[c]);
  return v;
}
static inline void set_some(real* p, int n, vec v) {
  if (n == W) put(p, v);
  else
    for (int c = 0; c < n; ++c) p[c] = narrow(v[c]);
}
// the sum over n lanes
static inline num sum_some(vec v, int n) {
  if (n < W)
    for (int c = n; c < W; ++c) v[c] = 0;
  return lane_sum(v);
}
static void prologue(const num* x_u, const num* x_v, num* a) {
  store(a + 0 * W, 1.0f * load(x_u + 0 * W));
  store(a + 1 * W, 1.0f * load(x_u + 2 * W));
  store(a + 2 * W, 0.31622776f * load(x_u + 3 * W));
  store(a + 3 * W, 0.5477226f * load(x_u + 3 * W));
  store(a + 4 * W, 0.6324555f * load(x_u + 3 * W));
  store(a + 5 * W, 0.57735026f * load(x_u + 1 * W) + 0.5163978f * load(x_u + 4 * W));
  store(a + 6 * W, 0.57735026f * load(x_u + 1 * W) - 0.2581989f * load(x_u + 4 * W));
  store(a + 7 * W, 0.7745967f * load(x_u + 4 * W));
  store(a + 8 * W, 0.57735026f * load(x_v + 0 * W));
}
static void row(const real* p_x_a, const real* p_x_b, const real* p_x_y, real* o_x_out, const num* a, i64 C, i64 c, int n) {
  vec t_x_a[4];
  t_x_a[0] = get_some(p_x_a + 0 * C + c, n);
  Items<3>::get(p_x_a + 1 * C + c * 3, n, t_x_a + 1);
  vec t_x_b[3];
  Items<3>::get(p_x_b + 0 * C + c * 3, n, t_x_b + 0);
  vec t_x_y[9];
  t_x_y[0] = vec{} + widen(p_x_y[0]);
  t_x_y[1] = vec{} + widen(p_x_y[1]);
  t_x_y[2] = vec{} + widen(p_x_y[2]);
  t_x_y[3] = vec{} + widen(p_x_y[3]);
  t_x_y[4] = vec{} + widen(p_x_y[4]);
  t_x_y[5] = vec{} + widen(p_x_y[5]);
  t_x_y[6] = vec{} + widen(p_x_y[6]);
  t_x_y[7] = vec{} + widen(p_x_y[7]);
  t_x_y[8] = vec{} + widen(p_x_y[8]);
  vec d_x_out[4] = {};
  const vec v1 = t_x_a[0] * t_x_a[0];
  const vec v2 = v1 * t_x_y[1];
  d_x_out[1] += v2 * load(a + 0 * W);
  const vec v3 = v1 * t_x_y[2];
  d_x_out[2] += v3 * load(a + 0 * W);
  const vec v4 = v1 * t_x_y[3];
  d_x_out[3] += v4 * load(a + 0 * W);
  const vec v5 = t_x_a[0] * t_x_a[1];
  const vec v6 = v5 * t_x_y[0];
  d_x_out[1] += v6 * load(a + 1 * W);
  const vec v7 = v5 * t_x_y[6];
  d_x_out[1] += -v7 * load(a + 2 * W);
  const vec v8 = v5 * t_x_y[8];
  d_x_out[1] += -v8 * load(a + 3 * W);
  const vec v9 = v5 * t_x_y[5];
  d_x_out[2] += v9 * load(a + 3 * W);
  const vec v10 = v5 * t_x_y[4];
  d_x_out[3] += v10 * load(a + 3 * W);
  const vec v11 = t_x_a[0] * t_x_a[2];
  const vec v12 = v11 * t_x_y[0];
  d_x_out[2] += v12 * load(a + 1 * W);
  const vec v13 = v11 * t_x_y[5];
  d_x_out[1] += v13 * load(a + 3 * W);
  const vec v14 = v11 * t_x_y[6];
  d_x_out[2] += v14 * load(a + 4 * W);
  const vec v15 = v11 * t_x_y[7];
  d_x_out[3] += v15 * load(a + 3 * W);
  const vec v16 = t_x_a[0] * t_x_a[3];
  const vec v17 = v16 * t_x_y[0];
  d_x_out[3] += v17 * load(a + 1 * W);
  const vec v18 = v16 * t_x_y[4];
  d_x_out[1] += v18 * load(a + 3 * W);
  const vec v19 = v16 * t_x_y[7];
  d_x_out[2] += v19 * load(a + 3 * W);
  const vec v20 = v16 * t_x_y[6];
  d_x_out[3] += -v20 * load(a + 2 * W);
  const vec v21 = v16 * t_x_y[8];
  d_x_out[3] += v21 * load(a + 3 * W);
  const vec v22 = t_x_a[1] * t_x_a[1];
  const vec v23 = v22 * t_x_y[1];
  d_x_out[1] += v23 * load(a + 5 * W);
  const vec v24 = v22 * t_x_y[2];
  d_x_out[2] += v24 * load(a + 6 * W);
  const vec v25 = v22 * t_x_y[3];
  d_x_out[3] += v25 * load(a + 6 * W);
  const vec v26 = t_x_a[1] * t_x_a[2];
  const vec v27 = v26 * t_x_y[2];
  d_x_out[1] += v27 * load(a + 7 * W);
  const vec v28 = v26 * t_x_y[1];
  d_x_out[2] += v28 * load(a + 7 * W);
  const vec v29 = t_x_a[1] * t_x_a[3];
  const vec v30 = v29 * t_x_y[3];
  d_x_out[1] += v30 * load(a + 7 * W);
  const vec v31 = v29 * t_x_y[1];
  d_x_out[3] += v31 * load(a + 7 * W);
  const vec v32 = t_x_b[0] * load(a + 8 * W);
  d_x_out[0] += t_x_a[1] * v32;
  const vec v33 = t_x_a[2] * t_x_a[2];
  const vec v34 = v33 * t_x_y[1];
  d_x_out[1] += v34 * load(a + 6 * W);
  const vec v35 = v33 * t_x_y[2];
  d_x_out[2] += v35 * load(a + 5 * W);
  const vec v36 = v33 * t_x_y[3];
  d_x_out[3] += v36 * load(a + 6 * W);
  const vec v37 = t_x_a[2] * t_x_a[3];
  const vec v38 = v37 * t_x_y[3];
  d_x_out[2] += v38 * load(a + 7 * W);
  const vec v39 = v37 * t_x_y[2];
  d_x_out[3] += v39 * load(a + 7 * W);
  const vec v40 = t_x_b[1] * load(a + 8 * W);
  d_x_out[0] += t_x_a[2] * v40;
  const vec v41 = t_x_a[3] * t_x_a[3];
  const vec v42 = v41 * t_x_y[1];
  d_x_out[1] += v42 * load(a + 6 * W);
  const vec v43 = v41 * t_x_y[2];
  d_x_out[2] += v43 * load(a + 6 * W);
  const vec v44 = v41 * t_x_y[3];
  d_x_out[3] += v44 * load(a + 5 * W);
  const vec v45 = t_x_b[2] * load(a + 8 * W);
  d_x_out[0] += t_x_a[3] * v45;
  const vec v46 = t_x_y[0] * t_x_y[0];
  d_x_out[0] += v46;
  const vec v47 = t_x_y[1] * t_x_y[1];
  d_x_out[0] += 0.57735026f * v47;
  const vec v48 = t_x_y[2] * t_x_y[2];
  d_x_out[0] += 0.57735026f * v48;
  const vec v49 = t_x_y[3] * t_x_y[3];
  d_x_out[0] += 0.57735026f * v49;
  const vec v50 = t_x_y[4] * t_x_y[4];
  d_x_out[0] += 0.4472136f * v50;
  const vec v51 = t_x_y[5] * t_x_y[5];
  d_x_out[0] += 0.4472136f * v51;
  const vec v52 = t_x_y[6] * t_x_y[6];
  d_x_out[0] += 0.4472136f * v52;
  const vec v53 = t_x_y[7] * t_x_y[7];
  d_x_out[0] += 0.4472136f * v53;
  const vec v54 = t_x_y[8] * t_x_y[8];
  d_x_out[0] += 0.4472136f * v54;
  set_some(o_x_out + 0 * C + c, n, d_x_out[0]);
  Items<3>::set(o_x_out + 1 * C + c * 3, n, d_x_out + 1);
}
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* const* given, real* const* opened, const i64* index, const i64* sizes, const void*, const void*, const void*, const void*, i64 rows) {
  const i64 elements = sizes[0], C = sizes[1], vectors = (C + W - 1) / W;
  if (index && !inside(index, rows, elements)) return 2;
  Tasks t;
  if (make_tasks(&t, index, rows, elements, 64)) return 1;
  int fault = 0;
  if (!fault) {
    i64 next = 0; i64* const taken = &next; int* const failed = &fault;
    on_threads(rows * vectors * 187 > 131072, [=]() __attribute__((always_inline)) {
      num* scratch = 0; if (posix_memalign((void**)&scratch, 64, 15 * W * sizeof(num))) scratch = 0;
      num* const x_u = scratch + 0 * W;
      num* const x_v = scratch + 5 * W;
      num* const a = scratch + 6 * W;
      const real* const p_x_a = given[0];
      const real* const p_x_b = given[1];
      const real* const p_x_y = given[2];
      const real* const p_x_u = given[3];
      const real* const p_x_v = given[4];
      real* const o_x_out = opened[0];
      for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < t.count * vectors;) {
        if (!scratch) { *failed = 1; continue; }
        const i64 e = t.element[b / vectors], from = t.begin[b / vectors];
        const i64 to = least(t.first[e + 1], from + 64);
        const i64 v = b % vectors;
        const i64 c = v * W; const int n = least(W, C - c);
        for (int i = 0; i < 5; ++i) store(x_u + i * W, get_some(p_x_u + (e * 5 + i) * C + c, n));
        for (int i = 0; i < 1; ++i) store(x_v + i * W, get_some(p_x_v + (e * 1 + i) * C + c, n));
        prologue(x_u, x_v, a);
        for (i64 q = from; q < to; ++q) {
          const i64 r = t.order[q];
          row(p_x_a + r * 4 * C, p_x_b + r * 3 * C, p_x_y + r * 9, o_x_out + r * 4 * C, a, C, c, n);
        }
      }
      free(scratch);
    });
  }
  free(t.first);
  return fault;
}
