// matrix schedule: tiles of 96 rows, 4 lanes of float32
//   path 0: 16x0e -> 32x0e; a matrix product
//   path 1: 6x1o -> 4x1o; a matrix product
// opens out
typedef float real;  // as the tensors hold it
typedef float num;   // as it is computed with
typedef long long i64;
enum { W = 4 };  // lanes
typedef num vec __attribute__((vector_size(16), may_alias));
typedef num loose __attribute__((vector_size(16), aligned(4), may_alias));
typedef unsigned int bits __attribute__((vector_size(16), may_alias));
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
// memory for as long as a scope lasts; null where there is none
template <class T> struct Room {
  T* at = 0;
  explicit Room(i64 n) { if (posix_memalign((void**)&at, 64, n * sizeof(T))) at = 0; }
  Room(const Room&) = delete;
  ~Room() { free(at); }
};
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
static inline num widen(real x) { return x; }
static inline real narrow(num x) { return x; }
static inline vec fetch(const real* p) { return *(const loose*)p; }
static inline void put(real* p, vec v) { *(loose*)p = v; }
static inline vec load(const num* p) { return *(const vec*)p; }
static inline void store(num* p, vec v) { *(vec*)p = v; }
static inline void add(num* p, vec v) { *(vec*)p += v; }
static inline void clear(num* p, i64 n) { for (i64 m = 0; m < n; m += W) store(p + m, vec{}); }
static inline void zero(real* p, i64 n) { for (i64 m = 0; m < n; ++m) p[m] = 0; }
static inline num lane_sum(vec v) {
  v += __builtin_shufflevector(v, v, 2, 3, 2, 3);
  v += __builtin_shufflevector(v, v, 1, 1, 2, 3);
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
    v[0] = __builtin_shufflevector(m[0], m[1], 0, 3, 6, -1);
    v[0] = __builtin_shufflevector(v[0], m[2], 0, 1, 2, 5);
    v[1] = __builtin_shufflevector(m[0], m[1], 1, 4, 7, -1);
    v[1] = __builtin_shufflevector(v[1], m[2], 0, 1, 2, 6);
    v[2] = __builtin_shufflevector(m[0], m[1], 2, 5, -1, -1);
    v[2] = __builtin_shufflevector(v[2], m[2], 0, 1, 4, 7);
  }
  static inline __attribute__((always_inline)) void put_items(real* p, const vec* v) {
    vec m[3];
    m[0] = __builtin_shufflevector(v[0], v[1], 0, 4, -1, 1);
    m[0] = __builtin_shufflevector(m[0], v[2], 0, 1, 4, 3);
    m[1] = __builtin_shufflevector(v[1], v[2], 1, 5, -1, 2);
    m[1] = __builtin_shufflevector(m[1], v[0], 0, 1, 6, 3);
    m[2] = __builtin_shufflevector(v[2], v[0], 2, 7, -1, 3);
    m[2] = __builtin_shufflevector(m[2], v[1], 0, 1, 7, 3);
    put(p + 0 * W, m[0]); put(p + 1 * W, m[1]); put(p + 2 * W, m[2]);
  }
};
template <int D, int N> struct Tail;  // N < W items of D numbers each <-> D vectors, padded with zeros
// memory [O][M][D] <-> scratch [O][D][M padded with zeros to whole vectors]
template <int O, int M, int D> static inline void stage(const real* p, num* s) {
  enum { P = (M + W - 1) / W * W };
  for (int o = 0; o < O; ++o, p += M * D, s += D * P) {
    for (int c = 0; c + W <= M; c += W) {
      vec v[D];
      Tile<D>::fetch_items(p + c * D, v);
      UNROLL for (int d = 0; d < D; ++d) store(s + d * P + c, v[d]);
    }
    if constexpr (M % W != 0) {
      vec v[D];
      Tail<D, M % W>::fetch_items(p + M / W * W * D, v);
      UNROLL for (int d = 0; d < D; ++d) store(s + d * P + M / W * W, v[d]);
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
    if constexpr (M % W != 0) {
      vec v[D];
      UNROLL for (int d = 0; d < D; ++d) v[d] = load(s + d * P + M / W * W);
      Tail<D, M % W>::put_items(p + M / W * W * D, v);
    }
  }
}
typedef real piece2 __attribute__((vector_size(2 * sizeof(real)), aligned(sizeof(real)), may_alias));
typedef real piece4 __attribute__((vector_size(4 * sizeof(real)), aligned(sizeof(real)), may_alias));
static inline vec fetch_2(const real* p) {
  const piece4 whole = __builtin_shufflevector(*(const piece2*)(p + 0), piece2{}, 0, 1, 2, 3);
  return whole;
}
static inline void put_2(real* p, vec v) {
  piece4 whole; put((real*)&whole, v);
  *(piece2*)(p + 0) = __builtin_shufflevector(whole, whole, 0, 1);
}
template <> struct Tail<3, 2> {
  static inline __attribute__((always_inline)) void fetch_items(const real* p, vec* v) {
    vec m[2];
    m[0] = fetch(p + 0 * W); m[1] = fetch_2(p + 1 * W);
    v[0] = __builtin_shufflevector(m[0], m[1], 0, 3, 7, 7);
    v[1] = __builtin_shufflevector(m[0], m[1], 1, 4, 7, 7);
    v[2] = __builtin_shufflevector(m[0], m[1], 2, 5, 7, 7);
  }
  static inline __attribute__((always_inline)) void put_items(real* p, const vec* v) {
    vec m[2];
    m[0] = __builtin_shufflevector(v[0], v[1], 0, 4, -1, 1);
    m[0] = __builtin_shufflevector(m[0], v[2], 0, 1, 4, 3);
    m[1] = __builtin_shufflevector(v[1], v[2], 1, 5, -1, -1);
    put(p + 0 * W, m[0]); put_2(p + 1 * W, m[1]);
  }
};
enum { R = 96 };  // rows in a tile
static inline void transpose(vec* v) {
  vec a, b;
  a = v[0]; b = v[1];
  v[0] = __builtin_shufflevector(a, b, 0, 4, 2, 6);
  v[1] = __builtin_shufflevector(a, b, 1, 5, 3, 7);
  a = v[2]; b = v[3];
  v[2] = __builtin_shufflevector(a, b, 0, 4, 2, 6);
  v[3] = __builtin_shufflevector(a, b, 1, 5, 3, 7);
  a = v[0]; b = v[2];
  v[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
  v[2] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
  a = v[1]; b = v[3];
  v[1] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
  v[3] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
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
static inline vec row_of(const num* p) { return *(const loose*)p; }  // rows of memory stand anywhere
// C(m, n) = sum_k A(m, k) B(k, n), or adds it: A is strided numbers, n runs over whole vectors
template <bool ADD, int H, int V>
static inline void patch(num* C, i64 cm, const num* A, i64 am, i64 ak, const num* B, i64 bk, int K) {
  vec c[H][V] = {};
  if (ADD) UNROLL for (int h = 0; h < H; ++h) UNROLL for (int v = 0; v < V; ++v) c[h][v] = row_of(C + h * cm + v * W);
  for (int k = 0; k < K; ++k) {
    vec b[V];
    UNROLL for (int v = 0; v < V; ++v) b[v] = row_of(B + k * bk + v * W);
    UNROLL for (int h = 0; h < H; ++h) {
      const num a = A[h * am + k * ak];
      UNROLL for (int v = 0; v < V; ++v) c[h][v] += a * b[v];
    }
  }
  UNROLL for (int h = 0; h < H; ++h) UNROLL for (int v = 0; v < V; ++v) *(loose*)(C + h * cm + v * W) = c[h][v];
}
// a panel of B stays in the nearest cache while all rows of A pass
template <bool ADD, int V>
static inline void panel(num* C, i64 cm, const num* A, i64 am, i64 ak, const num* B, i64 bk, int M, int K) {
  int m = 0;
  for (; m + 6 <= M; m += 6) patch<ADD, 6, V>(C + m * cm, cm, A + m * am, am, ak, B, bk, K);
  for (; m + 5 <= M; m += 5) patch<ADD, 5, V>(C + m * cm, cm, A + m * am, am, ak, B, bk, K);
  for (; m + 4 <= M; m += 4) patch<ADD, 4, V>(C + m * cm, cm, A + m * am, am, ak, B, bk, K);
  for (; m + 3 <= M; m += 3) patch<ADD, 3, V>(C + m * cm, cm, A + m * am, am, ak, B, bk, K);
  for (; m + 2 <= M; m += 2) patch<ADD, 2, V>(C + m * cm, cm, A + m * am, am, ak, B, bk, K);
  for (; m + 1 <= M; m += 1) patch<ADD, 1, V>(C + m * cm, cm, A + m * am, am, ak, B, bk, K);
}
template <bool ADD>
static void multiply(num* C, i64 cm, const num* A, i64 am, i64 ak, const num* B, i64 bk, int M, int K, int N) {
  int n = 0;
  for (; n + 4 * W <= N; n += 4 * W) panel<ADD, 4>(C + n, cm, A, am, ak, B + n, bk, M, K);
  for (; n + 3 * W <= N; n += 3 * W) panel<ADD, 3>(C + n, cm, A, am, ak, B + n, bk, M, K);
  for (; n + 2 * W <= N; n += 2 * W) panel<ADD, 2>(C + n, cm, A, am, ak, B + n, bk, M, K);
  for (; n + 1 * W <= N; n += 1 * W) panel<ADD, 1>(C + n, cm, A, am, ak, B + n, bk, M, K);
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
// [K][N] -> [K][N padded with zeros] times c
template <int K, int N> static inline void keep(const real* w, num c, num* s) {
  enum { P = (N + W - 1) / W * W };
  stage<K, N, 1>(w, s);
  for (i64 m = 0; m < (i64)K * P; m += W) store(s + m, c * load(s + m));
}
// [K][N] -> [N][K padded with zeros] times c
template <int K, int N> static inline void keep_flipped(const real* w, num c, num* s) {
  enum { P = (K + W - 1) / W * W };
  if (P > K) clear(s, (i64)N * P);
  int k = 0;
  for (; k + W <= K; k += W) {
    int n = 0;
    for (; n + W <= N; n += W) {
      vec v[W];
      UNROLL for (int l = 0; l < W; ++l) v[l] = c * fetch(w + (i64)(k + l) * N + n);
      transpose(v);
      UNROLL for (int l = 0; l < W; ++l) store(s + (i64)(n + l) * P + k, v[l]);
    }
    for (; n < N; ++n)
      for (int l = 0; l < W; ++l) s[(i64)n * P + k + l] = c * widen(w[(i64)(k + l) * N + n]);
  }
  for (; k < K; ++k)
    for (int n = 0; n < N; ++n) s[(i64)n * P + k] = c * widen(w[(i64)k * N + n]);
}
// [K][N padded] times c -> [K][N]
template <int K, int N> static inline void give(real* w, num c, num* s) {
  enum { P = (N + W - 1) / W * W };
  for (i64 m = 0; m < (i64)K * P; m += W) store(s + m, c * load(s + m));
  unstage<K, N, 1>(s, w);
}
static void tile(int n, const real* p_x1, real* q_out, const num* weights, num* s_x1, num* a_out) {
  for (i64 r = 0; r < n; ++r) stage<1, 6, 3>(p_x1 + r * 34 + 16, s_x1 + 0 * (i64)R + r * 24);
  // path 0: 16x0e -> 32x0e
  multiply<false>(q_out + 0, 45, p_x1 + 0, 34, 1, weights + 0, 32, n * 1, 16, 32);
  // path 1: 6x1o -> 4x1o
  multiply<false>(a_out + 0 * (i64)R, 4, s_x1 + 0 * (i64)R, 8, 1, weights + 512, 4, n * 3, 6, 4);
  for (i64 r = 0; r < n; ++r) unstage<1, 4, 3>(a_out + 0 * (i64)R + r * 12, q_out + r * 45 + 32);
  for (int r = 0; r < n; ++r) zero(q_out + r * 45 + 44, 1);
}
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* x1, const real* x2, const real* w, const real* out, real* d_x1, real* d_x2, real* d_w, real* d_out, i64 rows) {
  int fault = 0;
  expect_writes(d_out, rows * 45 * (i64)sizeof(real));
  const i64 span = 96;
  const i64 blocks = rows ? (rows + span - 1) / span : 0;
  const Room<num> weights_room(536); num* const weights = weights_room.at; if (!weights) return 1;
  keep<16, 32>(w + 0, 0.25f, weights + 0);
  keep<6, 4>(w + 512, 0.4082483f, weights + 512);
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(rows * 615 > 65536, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(3456); num* const scratch = scratch_room.at;
    num* const s_x1 = scratch + 0;
    num* const a_out = scratch + 2304;
    for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < blocks;) {
      if (!scratch) { *failed = 1; continue; }
      const i64 begin = b * span, end = least(rows, begin + span);
      for (i64 q = begin; q < end; q += R) {
        tile(least(R, end - q), x1 + q * 34, d_out + q * 45, weights, s_x1, a_out);
      }
    }
  });
  return fault;
}
