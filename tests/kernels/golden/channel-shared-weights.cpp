// channel schedule: 4 lanes of float64, 5 tables
//   path 0: 16x0e x 1x0e -> 16x0e (uvu); x1[16] staged, w[16], out[16]; 1 non-zeros
//   path 1: 16x1o x 1x1o -> 16x0e (uvu); x1[16] staged, w[16], out[16]; 3 non-zeros
//   path 2: 16x0e x 1x1o -> 16x1o (uvu); x1[16] staged, w[16], out[16]; 3 non-zeros
//   path 3: 16x1o x 1x0e -> 16x1o (uvu); x1[16] staged, w[16], out[16]; 3 non-zeros
//   path 4: 16x1o x 1x2e -> 16x1o (uvu); x1[16] staged, w[16], out[16]; 11 non-zeros
// opens x2, w
typedef double real;  // as the tensors hold it
typedef double num;   // as it is computed with
typedef long long i64;
enum { W = 4 };  // lanes
typedef num vec __attribute__((vector_size(32), may_alias));
typedef num loose __attribute__((vector_size(32), aligned(8), may_alias));
typedef unsigned long long bits __attribute__((vector_size(32), may_alias));
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
static void tabulate(int n, num* T, const real* const* p_x2, num* t_x2) {
  for (int r = 0; r < W; ++r) {
    for (int e = 0; e < 1; ++e) t_x2[e * W + r] = r < n ? widen(p_x2[r][e]) : 0;
    for (int e = 1; e < 4; ++e) t_x2[e * W + r] = r < n ? widen(p_x2[r][e]) : 0;
    for (int e = 4; e < 9; ++e) t_x2[e * W + r] = r < n ? widen(p_x2[r][e]) : 0;
  }
  // T[i, k] of path 0
  for (int v = 0; v < 1; ++v) {
    const num* x = t_x2 + (0 + v * 1) * W;
    num* t = T + (0 + v * 1) * W;
    const vec x0 = load(x + 0 * W);
    store(t + 0 * W, x0);
  }
  // T[i, k] of path 1
  for (int v = 0; v < 1; ++v) {
    const num* x = t_x2 + (1 + v * 3) * W;
    num* t = T + (1 + v * 3) * W;
    const vec x0 = load(x + 0 * W);
    const vec x1 = load(x + 1 * W);
    const vec x2 = load(x + 2 * W);
    store(t + 0 * W, 0.5773502691896257 * x0);
    store(t + 1 * W, 0.5773502691896258 * x1);
    store(t + 2 * W, 0.5773502691896257 * x2);
  }
  // T[i, k] of path 2
  for (int v = 0; v < 1; ++v) {
    const num* x = t_x2 + (1 + v * 3) * W;
    num* t = T + (4 + v * 3) * W;
    const vec x0 = load(x + 0 * W);
    const vec x1 = load(x + 1 * W);
    const vec x2 = load(x + 2 * W);
    store(t + 0 * W, 0.9999999999999999 * x0);
    store(t + 1 * W, x1);
    store(t + 2 * W, 0.9999999999999999 * x2);
  }
  // T[i, k] of path 3
  for (int v = 0; v < 1; ++v) {
    const num* x = t_x2 + (0 + v * 1) * W;
    num* t = T + (7 + v * 3) * W;
    const vec x0 = load(x + 0 * W);
    store(t + 0 * W, 0.9999999999999999 * x0);
    store(t + 1 * W, x0);
    store(t + 2 * W, 0.9999999999999999 * x0);
  }
  // T[i, k] of path 4
  for (int v = 0; v < 1; ++v) {
    const num* x = t_x2 + (4 + v * 5) * W;
    num* t = T + (10 + v * 9) * W;
    const vec x0 = load(x + 0 * W);
    const vec x1 = load(x + 1 * W);
    const vec x2 = load(x + 2 * W);
    const vec x3 = load(x + 3 * W);
    const vec x4 = load(x + 4 * W);
    store(t + 0 * W, -0.316227766016838 * x2 - 0.547722557505166 * x4);
    store(t + 1 * W, 0.5477225575051661 * x1);
    store(t + 2 * W, 0.547722557505166 * x0);
    store(t + 3 * W, 0.5477225575051661 * x1);
    store(t + 4 * W, 0.6324555320336761 * x2);
    store(t + 5 * W, 0.5477225575051661 * x3);
    store(t + 6 * W, 0.547722557505166 * x0);
    store(t + 7 * W, 0.5477225575051661 * x3);
    store(t + 8 * W, -0.316227766016838 * x2 + 0.547722557505166 * x4);
  }
}
static void row(const real* x1, const real* x2, const real* w, const real* out, real* d_x2, real* d_w, num* s_x1, num* t_x2, num* r_x2, const num* T, const num* s_w, num* a_w) {
  stage<1, 16, 1>(x1 + 0, s_x1 + 0);
  stage<1, 16, 3>(x1 + 16, s_x1 + 16);
  clear(r_x2 + 0 * W, 1 * W);
  clear(r_x2 + 1 * W, 3 * W);
  clear(r_x2 + 4 * W, 5 * W);
  // path 0: 16x0e x 1x0e -> 16x0e (uvu)
  for (int v = 0; v < 1; ++v) {
    const num* t = T + (0 + v * 1) * W;
    vec s[1] = {};
    for (int c = 0; c < 16; c += W) {
      vec x[1]; x[0] = load(s_x1 + 0 + c);
      vec g[1]; g[0] = fetch(out + 0 + c);
      vec u[1]; u[0] = load(s_w + 0 + v * 16 + c);
      const vec v1 = u[0] * x[0];
      const vec v2 = t[0 * W] * g[0];
      s[0] += v1 * g[0];
      vec sum_w_0 = x[0] * v2;
      add(a_w + 0 + v * 16 + c, sum_w_0);
    }
    add(r_x2 + (0 + v * 1 + 0) * W, s[0]);
  }
  // path 1: 16x1o x 1x1o -> 16x0e (uvu)
  for (int v = 0; v < 1; ++v) {
    const num* t = T + (1 + v * 3) * W;
    vec s[3] = {};
    for (int c = 0; c < 16; c += W) {
      vec x[3]; x[0] = load(s_x1 + 16 + c); x[1] = load(s_x1 + 32 + c); x[2] = load(s_x1 + 48 + c);
      vec g[1]; g[0] = fetch(out + 16 + c);
      vec u[1]; u[0] = load(s_w + 16 + v * 16 + c);
      const vec v1 = u[0] * g[0];
      const vec v2 = t[0 * W] * x[0];
      s[0] += v1 * x[0];
      const vec v3 = v2 + t[1 * W] * x[1];
      s[1] += v1 * x[1];
      const vec v4 = v3 + t[2 * W] * x[2];
      s[2] += v1 * x[2];
      vec sum_w_0 = g[0] * v4;
      add(a_w + 16 + v * 16 + c, sum_w_0);
    }
    add(r_x2 + (1 + v * 3 + 0) * W, 0.5773502691896257 * s[0]);
    add(r_x2 + (1 + v * 3 + 1) * W, 0.5773502691896258 * s[1]);
    add(r_x2 + (1 + v * 3 + 2) * W, 0.5773502691896257 * s[2]);
  }
  // path 2: 16x0e x 1x1o -> 16x1o (uvu)
  for (int v = 0; v < 1; ++v) {
    const num* t = T + (4 + v * 3) * W;
    vec s[3] = {};
    for (int c = 0; c < 16; c += W) {
      vec x[1]; x[0] = load(s_x1 + 0 + c);
      vec g[3]; Tile<3>::fetch_items(out + 32 + c * 3, g);
      vec u[1]; u[0] = load(s_w + 32 + v * 16 + c);
      const vec v1 = u[0] * x[0];
      const vec v2 = t[0 * W] * g[0];
      s[0] += v1 * g[0];
      const vec v3 = v2 + t[1 * W] * g[1];
      s[1] += v1 * g[1];
      const vec v4 = v3 + t[2 * W] * g[2];
      s[2] += v1 * g[2];
      vec sum_w_0 = x[0] * v4;
      add(a_w + 32 + v * 16 + c, sum_w_0);
    }
    add(r_x2 + (1 + v * 3 + 0) * W, 0.9999999999999999 * s[0]);
    add(r_x2 + (1 + v * 3 + 1) * W, s[1]);
    add(r_x2 + (1 + v * 3 + 2) * W, 0.9999999999999999 * s[2]);
  }
  // path 3: 16x1o x 1x0e -> 16x1o (uvu)
  for (int v = 0; v < 1; ++v) {
    const num* t = T + (7 + v * 3) * W;
    vec s[3] = {};
    for (int c = 0; c < 16; c += W) {
      vec x[3]; x[0] = load(s_x1 + 16 + c); x[1] = load(s_x1 + 32 + c); x[2] = load(s_x1 + 48 + c);
      vec g[3]; Tile<3>::fetch_items(out + 80 + c * 3, g);
      vec u[1]; u[0] = load(s_w + 48 + v * 16 + c);
      const vec v1 = u[0] * x[0];
      const vec v2 = t[0 * W] * g[0];
      s[0] += v1 * g[0];
      const vec v3 = x[0] * v2;
      const vec v4 = u[0] * x[1];
      const vec v5 = t[1 * W] * g[1];
      s[1] += v4 * g[1];
      const vec v6 = v3 + x[1] * v5;
      const vec v7 = u[0] * x[2];
      const vec v8 = t[2 * W] * g[2];
      s[2] += v7 * g[2];
      vec sum_w_0 = v6 + x[2] * v8;
      add(a_w + 48 + v * 16 + c, sum_w_0);
    }
    add(r_x2 + (0 + v * 1 + 0) * W, 0.9999999999999999 * s[0] + s[1] + 0.9999999999999999 * s[2]);
  }
  // path 4: 16x1o x 1x2e -> 16x1o (uvu)
  for (int v = 0; v < 1; ++v) {
    const num* t = T + (10 + v * 9) * W;
    vec s[9] = {};
    for (int c = 0; c < 16; c += W) {
      vec x[3]; x[0] = load(s_x1 + 16 + c); x[1] = load(s_x1 + 32 + c); x[2] = load(s_x1 + 48 + c);
      vec g[3]; Tile<3>::fetch_items(out + 128 + c * 3, g);
      vec u[1]; u[0] = load(s_w + 64 + v * 16 + c);
      const vec v1 = u[0] * x[0];
      const vec v2 = t[0 * W] * g[0];
      s[0] += v1 * g[0];
      const vec v3 = v2 + t[1 * W] * g[1];
      s[1] += v1 * g[1];
      const vec v4 = v3 + t[2 * W] * g[2];
      s[2] += v1 * g[2];
      const vec v5 = x[0] * v4;
      const vec v6 = u[0] * x[1];
      const vec v7 = t[3 * W] * g[0];
      s[3] += v6 * g[0];
      const vec v8 = v7 + t[4 * W] * g[1];
      s[4] += v6 * g[1];
      const vec v9 = v8 + t[5 * W] * g[2];
      s[5] += v6 * g[2];
      const vec v10 = v5 + x[1] * v9;
      const vec v11 = u[0] * x[2];
      const vec v12 = t[6 * W] * g[0];
      s[6] += v11 * g[0];
      const vec v13 = v12 + t[7 * W] * g[1];
      s[7] += v11 * g[1];
      const vec v14 = v13 + t[8 * W] * g[2];
      s[8] += v11 * g[2];
      vec sum_w_0 = v10 + x[2] * v14;
      add(a_w + 64 + v * 16 + c, sum_w_0);
    }
    add(r_x2 + (4 + v * 5 + 0) * W, 0.547722557505166 * s[2] + 0.547722557505166 * s[6]);
    add(r_x2 + (4 + v * 5 + 1) * W, 0.5477225575051661 * s[1] + 0.5477225575051661 * s[3]);
    add(r_x2 + (4 + v * 5 + 2) * W, -0.316227766016838 * s[0] + 0.6324555320336761 * s[4] - 0.316227766016838 * s[8]);
    add(r_x2 + (4 + v * 5 + 3) * W, 0.5477225575051661 * s[5] + 0.5477225575051661 * s[7]);
    add(r_x2 + (4 + v * 5 + 4) * W, -0.547722557505166 * s[0] + 0.547722557505166 * s[8]);
  }
  for (int e = 0; e < 1; ++e) d_x2[e] = narrow(lane_sum(load(r_x2 + e * W)));
  for (int e = 1; e < 4; ++e) d_x2[e] = narrow(lane_sum(load(r_x2 + e * W)));
  for (int e = 4; e < 9; ++e) d_x2[e] = narrow(lane_sum(load(r_x2 + e * W)));
}
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* x1, const real* x2, const real* w, const real* out, real* d_x1, real* d_x2, real* d_w, real* d_out, i64 rows) {
  int fault = 0;
  expect_writes(d_x2, rows * 9 * (i64)sizeof(real));
  const i64 room = 209715;  // blocks that fit into 64 MB of sums
  const i64 most = room < 32 ? room : 32;
  const i64 span = ((rows + most - 1) / most + 4) / 4 * 4;
  const i64 blocks = rows ? (rows + span - 1) / span : 0;
  const Room<num> weights_room(80); num* const weights = weights_room.at; if (!weights) return 1;
  stage<1, 16, 1>(w + 0, weights + 0);
  stage<1, 16, 1>(w + 16, weights + 16);
  stage<1, 16, 1>(w + 32, weights + 32);
  stage<1, 16, 1>(w + 48, weights + 48);
  stage<1, 16, 1>(w + 64, weights + 64);
  const Room<num> sums_room((blocks + 1) * 80); num* const sums = sums_room.at; if (!sums) return 1;
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(rows * 329 > 65536, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(212); num* const scratch = scratch_room.at;
    num* const s_x1 = scratch + 0;
    num* const t_x2 = scratch + 64;
    num* const r_x2 = scratch + 100;
    num* const T = scratch + 136;
    for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < blocks;) {
      if (!scratch) { *failed = 1; continue; }
      num* const a_w = sums + b * 80; clear(a_w, 80);
      const i64 end = least(rows, (b + 1) * span);
      for (i64 q = b * span; q < end; q += W) {
        const int n = least(W, end - q);
        const real* p_x2[W] = {};
        for (int r = 0; r < n; ++r) { const i64 e = q + r; p_x2[r] = x2 + e * 9; }
        tabulate(n, T, p_x2, t_x2);
        for (int r = 0; r < n; ++r) {
          const i64 e = q + r;
          row(x1 + e * 64, x2 + e * 9, w, out + e * 176, d_x2 + e * 9, d_w, s_x1, t_x2, r_x2, T + r, weights, a_w);
        }
      }
    }
  });
  if (!blocks) clear(sums, 80);
  for (i64 b = 1; b < blocks; ++b) for (i64 m = 0; m < 80; m += W) add(sums + m, load(sums + b * 80 + m));
  unstage<1, 16, 1>(sums + 0, d_w + 0);
  unstage<1, 16, 1>(sums + 16, d_w + 16);
  unstage<1, 16, 1>(sums + 32, d_w + 32);
  unstage<1, 16, 1>(sums + 48, d_w + 48);
  unstage<1, 16, 1>(sums + 64, d_w + 64);
  return fault;
}
