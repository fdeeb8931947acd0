// batch schedule: tiles of 8 rows, 8 lanes of bfloat16
//   path 0: 1x0e x 1x0e -> 3x0e (uvw); matrix products, 1 non-zeros
//   path 1: 1x0e x 2x1o -> 2x1o (uvw); matrix products, 3 non-zeros
//   path 2: 2x1o x 1x0e -> 2x1o (uvw); matrix products, 3 non-zeros
//   path 3: 2x1o x 2x1o -> 3x0e (uvw); matrix products, 3 non-zeros
// opens out of gathered rows
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
  for (; m + 4 <= M; m += 4) patch<ADD, 4, V>(C + m * cm, cm, A + m * am, am, ak, B, bk, K);
  for (; m + 3 <= M; m += 3) patch<ADD, 3, V>(C + m * cm, cm, A + m * am, am, ak, B, bk, K);
  for (; m + 2 <= M; m += 2) patch<ADD, 2, V>(C + m * cm, cm, A + m * am, am, ak, B, bk, K);
  for (; m + 1 <= M; m += 1) patch<ADD, 1, V>(C + m * cm, cm, A + m * am, am, ak, B, bk, K);
}
template <bool ADD>
static void multiply(num* C, i64 cm, const num* A, i64 am, i64 ak, const num* B, i64 bk, int M, int K, int N) {
  int n = 0;
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
// path 0: 1x0e x 1x0e -> 3x0e (uvw)
static void path_0(int n, num* s_x1, num* s_x2, num* a_out, num* P, const num* weights) {
  for (int u0 = 0; u0 < 1; u0 += 1) {
    const int u1 = least(1, u0 + 1);
    for (int u = u0; u < u1; ++u) for (int v = 0; v < 1; ++v) for (int r = 0; r < R; r += W) {
      vec x[1]; x[0] = load(s_x1 + (0 + u * 1) * (i64)R + 0 * R + r);
      vec y[1]; y[0] = load(s_x2 + (0 + v * 1) * (i64)R + 0 * R + r);
      const vec v1 = x[0] * y[0];
      vec sum_P_0 = 0.4472136f * v1;
      store(P + ((u - u0) * 1 + v) * 1 * R + 0 * R + r, sum_P_0);
    }
    const int count = (u1 - u0) * 1;
    multiply<true>(a_out + 0 * (i64)R, 1 * R, weights + 0 + u0 * 3, 1, 3, P, 1 * R, 3, count, 1 * R);
  }
}
// path 1: 1x0e x 2x1o -> 2x1o (uvw)
static void path_1(int n, num* s_x1, num* s_x2, num* a_out, num* P, const num* weights) {
  for (int u0 = 0; u0 < 1; u0 += 1) {
    const int u1 = least(1, u0 + 1);
    for (int u = u0; u < u1; ++u) for (int v = 0; v < 2; ++v) for (int r = 0; r < R; r += W) {
      vec x[1]; x[0] = load(s_x1 + (0 + u * 1) * (i64)R + 0 * R + r);
      vec y[3]; y[0] = load(s_x2 + (1 + v * 3) * (i64)R + 0 * R + r); y[1] = load(s_x2 + (1 + v * 3) * (i64)R + 1 * R + r); y[2] = load(s_x2 + (1 + v * 3) * (i64)R + 2 * R + r);
      const vec v1 = x[0] * y[0];
      vec sum_P_0 = 0.5f * v1;
      const vec v2 = x[0] * y[1];
      vec sum_P_1 = 0.5f * v2;
      const vec v3 = x[0] * y[2];
      vec sum_P_2 = 0.5f * v3;
      store(P + ((u - u0) * 2 + v) * 3 * R + 0 * R + r, sum_P_0);
      store(P + ((u - u0) * 2 + v) * 3 * R + 1 * R + r, sum_P_1);
      store(P + ((u - u0) * 2 + v) * 3 * R + 2 * R + r, sum_P_2);
    }
    const int count = (u1 - u0) * 2;
    multiply<true>(a_out + 3 * (i64)R, 3 * R, weights + 3 + u0 * 4, 1, 2, P, 3 * R, 2, count, 3 * R);
  }
}
// path 2: 2x1o x 1x0e -> 2x1o (uvw)
static void path_2(int n, num* s_x1, num* s_x2, num* a_out, num* P, const num* weights) {
  for (int u0 = 0; u0 < 2; u0 += 2) {
    const int u1 = least(2, u0 + 2);
    for (int u = u0; u < u1; ++u) for (int v = 0; v < 1; ++v) for (int r = 0; r < R; r += W) {
      vec x[3]; x[0] = load(s_x1 + (1 + u * 3) * (i64)R + 0 * R + r); x[1] = load(s_x1 + (1 + u * 3) * (i64)R + 1 * R + r); x[2] = load(s_x1 + (1 + u * 3) * (i64)R + 2 * R + r);
      vec y[1]; y[0] = load(s_x2 + (0 + v * 1) * (i64)R + 0 * R + r);
      const vec v1 = x[0] * y[0];
      vec sum_P_0 = 0.5f * v1;
      const vec v2 = x[1] * y[0];
      vec sum_P_1 = 0.5f * v2;
      const vec v3 = x[2] * y[0];
      vec sum_P_2 = 0.5f * v3;
      store(P + ((u - u0) * 1 + v) * 3 * R + 0 * R + r, sum_P_0);
      store(P + ((u - u0) * 1 + v) * 3 * R + 1 * R + r, sum_P_1);
      store(P + ((u - u0) * 1 + v) * 3 * R + 2 * R + r, sum_P_2);
    }
    const int count = (u1 - u0) * 1;
    multiply<true>(a_out + 3 * (i64)R, 3 * R, weights + 7 + u0 * 2, 1, 2, P, 3 * R, 2, count, 3 * R);
  }
}
// path 3: 2x1o x 2x1o -> 3x0e (uvw)
static void path_3(int n, num* s_x1, num* s_x2, num* a_out, num* P, const num* weights) {
  for (int u0 = 0; u0 < 2; u0 += 2) {
    const int u1 = least(2, u0 + 2);
    for (int u = u0; u < u1; ++u) for (int v = 0; v < 2; ++v) for (int r = 0; r < R; r += W) {
      vec x[3]; x[0] = load(s_x1 + (1 + u * 3) * (i64)R + 0 * R + r); x[1] = load(s_x1 + (1 + u * 3) * (i64)R + 1 * R + r); x[2] = load(s_x1 + (1 + u * 3) * (i64)R + 2 * R + r);
      vec y[3]; y[0] = load(s_x2 + (1 + v * 3) * (i64)R + 0 * R + r); y[1] = load(s_x2 + (1 + v * 3) * (i64)R + 1 * R + r); y[2] = load(s_x2 + (1 + v * 3) * (i64)R + 2 * R + r);
      const vec v1 = x[0] * y[0];
      vec sum_P_0 = 0.2581989f * v1;
      const vec v2 = x[1] * y[1];
      sum_P_0 += 0.2581989f * v2;
      const vec v3 = x[2] * y[2];
      sum_P_0 += 0.2581989f * v3;
      store(P + ((u - u0) * 2 + v) * 1 * R + 0 * R + r, sum_P_0);
    }
    const int count = (u1 - u0) * 2;
    multiply<true>(a_out + 0 * (i64)R, 1 * R, weights + 11 + u0 * 6, 1, 3, P, 1 * R, 3, count, 1 * R);
  }
}
static void tile(int n, const real* const* p_x1, const real* const* p_x2, real* const* q_out, num* s_x1, num* s_x2, num* a_out, num* P, const num* weights) {
  stage_rows(p_x1, n, 0, 1, s_x1 + 0 * R, 1);
  stage_rows(p_x1, n, 1, 6, s_x1 + 1 * R, 1);
  stage_rows(p_x2, n, 0, 1, s_x2 + 0 * R, 1);
  stage_rows(p_x2, n, 1, 6, s_x2 + 1 * R, 1);
  clear(a_out, 9 * R);
  path_0(n, s_x1, s_x2, a_out, P, weights);
  path_1(n, s_x1, s_x2, a_out, P, weights);
  path_2(n, s_x1, s_x2, a_out, P, weights);
  path_3(n, s_x1, s_x2, a_out, P, weights);
  add_rows(a_out + 0 * R, q_out, n, 0, 3, 1);
  add_rows(a_out + 3 * R, q_out, n, 3, 6, 1);
}
struct Ends {
  const void* at;
  bool narrow;  // int32, else int64
  inline i64 operator[](i64 e) const { return narrow ? ((const int*)at)[e] : ((const i64*)at)[e]; }
};
enum { CHECKED = 1, NARROW_SRC = 2, NARROW_DST = 4 };  // of a call
template <class Index> static int inside(const Index index, i64 n, i64 size) {
  for (i64 m = 0; m < n; ++m) if (index[m] < 0 || index[m] >= size) return 0;
  return 1;
}
// rows by owner, and within one owner in their order; first[o] is where owner o begins
template <class Index> static void sort_rows(const Index key, i64 n, i64 owners, i64* first, i64* order) {
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
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* x1, const real* x2, const real* w, const real* out, real* d_x1, real* d_x2, real* d_w, real* d_out, i64 rows, const void* src_at, const void* dst_at, i64 sources, i64 destinations, i64 how) {
  int fault = 0;
  expect_writes(d_out, destinations * 9 * (i64)sizeof(real));
  const Ends src = {src_at, bool(how & NARROW_SRC)}, dst = {dst_at, bool(how & NARROW_DST)};
  if (how & CHECKED && !inside(src, rows, sources)) return 2;
  if (how & CHECKED && !inside(dst, rows, destinations)) return 3;
  const i64 owners = destinations;
  const Room<i64> first_room(owners + 1); i64* const first = first_room.at; if (!first) return 1;
  const Room<i64> order_room(rows + 1); i64* const order = order_room.at; if (!order) return 1;
  sort_rows(dst, rows, owners, first, order);
  const i64 span = 352;
  const i64 blocks = rows / span + 1;
  const Room<num> weights_room(24); num* const weights = weights_room.at; if (!weights) return 1;
  for (i64 m = 0; m < 23; ++m) weights[m] = widen(w[m]);
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(rows * 46 > 65536, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(232); num* const scratch = scratch_room.at;
    num* const s_x1 = scratch + 0;
    num* const s_x2 = scratch + 56;
    num* const a_out = scratch + 112;
    num* const P = scratch + 184;
    for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < blocks;) {
      if (!scratch) { *failed = 1; continue; }
      const i64 from = owner_at(first, owners, b * span), to = owner_at(first, owners, (b + 1) * span);
      const i64 begin = first[from], end = first[to];
      zero(d_out + from * 9, (to - from) * 9);
      for (i64 q = begin; q < end; q += R) {
        const int n = least(R, end - q);
        const real* p_x1[R];
        const real* p_x2[R];
        real* q_out[R];
        for (int r = 0; r < n; ++r) {
          const i64 e = order[q + r];
          p_x1[r] = x1 + src[e] * 7;
          p_x2[r] = x2 + e * 7;
          q_out[r] = d_out + dst[e] * 9;
        }
        tile(n, p_x1, p_x2, q_out, s_x1, s_x2, a_out, P, weights);
      }
    }
  });
  return fault;
}
