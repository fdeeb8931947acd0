// channel schedule: 4 lanes of float64, 0 tables
//   path 0: 16x1o x 16x1o -> 16x0e (uuu); x1[16] staged, x2[16] staged, out[16]; 3 non-zeros
//   path 1: 16x1o x 16x1o -> 16x1e (uuu); x1[16] staged, x2[16] staged, out[16]; 6 non-zeros
//   path 2: 16x1o x 16x1o -> 16x2e (uuu); x1[16] staged, x2[16] staged, out[16]; 11 non-zeros
// opens x1, out
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
template <> struct Tile<5> {
  static inline __attribute__((always_inline)) void fetch_items(const real* p, vec* v) {
    vec m[5];
    m[0] = fetch(p + 0 * W); m[1] = fetch(p + 1 * W); m[2] = fetch(p + 2 * W); m[3] = fetch(p + 3 * W); m[4] = fetch(p + 4 * W);
    v[0] = __builtin_shufflevector(m[0], m[1], 0, 5, -1, -1);
    v[0] = __builtin_shufflevector(v[0], m[2], 0, 1, 6, -1);
    v[0] = __builtin_shufflevector(v[0], m[3], 0, 1, 2, 7);
    v[1] = __builtin_shufflevector(m[0], m[1], 1, 6, -1, -1);
    v[1] = __builtin_shufflevector(v[1], m[2], 0, 1, 7, -1);
    v[1] = __builtin_shufflevector(v[1], m[4], 0, 1, 2, 4);
    v[2] = __builtin_shufflevector(m[0], m[1], 2, 7, -1, -1);
    v[2] = __builtin_shufflevector(v[2], m[3], 0, 1, 4, -1);
    v[2] = __builtin_shufflevector(v[2], m[4], 0, 1, 2, 5);
    v[3] = __builtin_shufflevector(m[0], m[2], 3, 4, -1, -1);
    v[3] = __builtin_shufflevector(v[3], m[3], 0, 1, 5, -1);
    v[3] = __builtin_shufflevector(v[3], m[4], 0, 1, 2, 6);
    v[4] = __builtin_shufflevector(m[1], m[2], 0, 5, -1, -1);
    v[4] = __builtin_shufflevector(v[4], m[3], 0, 1, 6, -1);
    v[4] = __builtin_shufflevector(v[4], m[4], 0, 1, 2, 7);
  }
  static inline __attribute__((always_inline)) void put_items(real* p, const vec* v) {
    vec m[5];
    m[0] = __builtin_shufflevector(v[0], v[1], 0, 4, -1, -1);
    m[0] = __builtin_shufflevector(m[0], v[2], 0, 1, 4, -1);
    m[0] = __builtin_shufflevector(m[0], v[3], 0, 1, 2, 4);
    m[1] = __builtin_shufflevector(v[4], v[0], 0, 5, -1, -1);
    m[1] = __builtin_shufflevector(m[1], v[1], 0, 1, 5, -1);
    m[1] = __builtin_shufflevector(m[1], v[2], 0, 1, 2, 5);
    m[2] = __builtin_shufflevector(v[3], v[4], 1, 5, -1, -1);
    m[2] = __builtin_shufflevector(m[2], v[0], 0, 1, 6, -1);
    m[2] = __builtin_shufflevector(m[2], v[1], 0, 1, 2, 6);
    m[3] = __builtin_shufflevector(v[2], v[3], 2, 6, -1, -1);
    m[3] = __builtin_shufflevector(m[3], v[4], 0, 1, 6, -1);
    m[3] = __builtin_shufflevector(m[3], v[0], 0, 1, 2, 7);
    m[4] = __builtin_shufflevector(v[1], v[2], 3, 7, -1, -1);
    m[4] = __builtin_shufflevector(m[4], v[3], 0, 1, 7, -1);
    m[4] = __builtin_shufflevector(m[4], v[4], 0, 1, 2, 7);
    put(p + 0 * W, m[0]); put(p + 1 * W, m[1]); put(p + 2 * W, m[2]); put(p + 3 * W, m[3]); put(p + 4 * W, m[4]);
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
static void tabulate(int n, num* T) {
}
static void row(const real* x1, const real* x2, const real* w, const real* out, real* d_x1, real* d_out, num* s_x1, num* a_x1, num* s_x2) {
  stage<1, 16, 3>(x1 + 0, s_x1 + 0);
  stage<1, 16, 3>(x2 + 0, s_x2 + 0);
  // path 0: 16x1o x 16x1o -> 16x0e (uuu)
  for (int v = 0; v < 1; ++v) {
    for (int c = 0; c < 16; c += W) {
      vec x[3]; x[0] = load(s_x1 + 0 + c); x[1] = load(s_x1 + 16 + c); x[2] = load(s_x1 + 32 + c);
      vec y[3]; y[0] = load(s_x2 + 0 + c); y[1] = load(s_x2 + 16 + c); y[2] = load(s_x2 + 32 + c);
      vec g[1]; g[0] = fetch(out + 0 + c);
      const vec v1 = x[0] * y[0];
      const vec v2 = 0.5773502691896257 * g[0];
      vec sum_out_0 = 0.5773502691896257 * v1;
      vec sum_x1_0 = y[0] * v2;
      const vec v3 = x[1] * y[1];
      const vec v4 = 0.5773502691896258 * g[0];
      sum_out_0 += 0.5773502691896258 * v3;
      vec sum_x1_1 = y[1] * v4;
      const vec v5 = x[2] * y[2];
      sum_out_0 += 0.5773502691896257 * v5;
      vec sum_x1_2 = y[2] * v2;
      store(a_x1 + 0 + c, sum_x1_0);
      store(a_x1 + 16 + c, sum_x1_1);
      store(a_x1 + 32 + c, sum_x1_2);
      put(d_out + 0 + c, sum_out_0);
    }
  }
  // path 1: 16x1o x 16x1o -> 16x1e (uuu)
  for (int v = 0; v < 1; ++v) {
    for (int c = 0; c < 16; c += W) {
      vec x[3]; x[0] = load(s_x1 + 0 + c); x[1] = load(s_x1 + 16 + c); x[2] = load(s_x1 + 32 + c);
      vec y[3]; y[0] = load(s_x2 + 0 + c); y[1] = load(s_x2 + 16 + c); y[2] = load(s_x2 + 32 + c);
      vec g[3]; Tile<3>::fetch_items(out + 16 + c * 3, g);
      const vec v1 = x[0] * y[1];
      const vec v2 = 0.7071067811865475 * g[2];
      vec sum_out_2 = 0.7071067811865475 * v1;
      const vec v3 = y[1] * v2;
      const vec v4 = x[0] * y[2];
      const vec v5 = -0.7071067811865475 * g[1];
      vec sum_out_1 = -0.7071067811865475 * v4;
      vec sum_x1_0 = v3 + y[2] * v5;
      const vec v6 = x[1] * y[0];
      const vec v7 = -0.7071067811865475 * g[2];
      sum_out_2 += -0.7071067811865475 * v6;
      const vec v8 = y[0] * v7;
      const vec v9 = x[1] * y[2];
      const vec v10 = 0.7071067811865475 * g[0];
      vec sum_out_0 = 0.7071067811865475 * v9;
      vec sum_x1_1 = v8 + y[2] * v10;
      const vec v11 = x[2] * y[0];
      const vec v12 = 0.7071067811865475 * g[1];
      sum_out_1 += 0.7071067811865475 * v11;
      const vec v13 = y[0] * v12;
      const vec v14 = x[2] * y[1];
      const vec v15 = -0.7071067811865475 * g[0];
      sum_out_0 += -0.7071067811865475 * v14;
      vec sum_x1_2 = v13 + y[1] * v15;
      add(a_x1 + 0 + c, sum_x1_0);
      add(a_x1 + 16 + c, sum_x1_1);
      add(a_x1 + 32 + c, sum_x1_2);
      const vec o_out[3] = {sum_out_0, sum_out_1, sum_out_2};
      Tile<3>::put_items(d_out + 16 + c * 3, o_out);
    }
  }
  // path 2: 16x1o x 16x1o -> 16x2e (uuu)
  for (int v = 0; v < 1; ++v) {
    for (int c = 0; c < 16; c += W) {
      vec x[3]; x[0] = load(s_x1 + 0 + c); x[1] = load(s_x1 + 16 + c); x[2] = load(s_x1 + 32 + c);
      vec y[3]; y[0] = load(s_x2 + 0 + c); y[1] = load(s_x2 + 16 + c); y[2] = load(s_x2 + 32 + c);
      vec g[5]; Tile<5>::fetch_items(out + 64 + c * 5, g);
      const vec v1 = x[0] * y[0];
      const vec v2 = -0.4082482904638631 * g[2];
      vec sum_out_2 = -0.4082482904638631 * v1;
      const vec v3 = v2 - 0.7071067811865475 * g[4];
      vec sum_out_4 = -0.7071067811865475 * v1;
      const vec v4 = y[0] * v3;
      const vec v5 = x[0] * y[1];
      const vec v6 = 0.7071067811865476 * g[1];
      vec sum_out_1 = 0.7071067811865476 * v5;
      const vec v7 = v4 + y[1] * v6;
      const vec v8 = x[0] * y[2];
      const vec v9 = 0.7071067811865475 * g[0];
      vec sum_out_0 = 0.7071067811865475 * v8;
      vec sum_x1_0 = v7 + y[2] * v9;
      const vec v10 = x[1] * y[0];
      sum_out_1 += 0.7071067811865476 * v10;
      const vec v11 = y[0] * v6;
      const vec v12 = x[1] * y[1];
      const vec v13 = 0.8164965809277261 * g[2];
      sum_out_2 += 0.8164965809277261 * v12;
      const vec v14 = v11 + y[1] * v13;
      const vec v15 = x[1] * y[2];
      const vec v16 = 0.7071067811865476 * g[3];
      vec sum_out_3 = 0.7071067811865476 * v15;
      vec sum_x1_1 = v14 + y[2] * v16;
      const vec v17 = x[2] * y[0];
      sum_out_0 += 0.7071067811865475 * v17;
      const vec v18 = y[0] * v9;
      const vec v19 = x[2] * y[1];
      sum_out_3 += 0.7071067811865476 * v19;
      const vec v20 = v18 + y[1] * v16;
      const vec v21 = x[2] * y[2];
      sum_out_2 += -0.4082482904638631 * v21;
      const vec v22 = v2 + 0.7071067811865475 * g[4];
      sum_out_4 += 0.7071067811865475 * v21;
      vec sum_x1_2 = v20 + y[2] * v22;
      add(a_x1 + 0 + c, sum_x1_0);
      add(a_x1 + 16 + c, sum_x1_1);
      add(a_x1 + 32 + c, sum_x1_2);
      const vec o_out[5] = {sum_out_0, sum_out_1, sum_out_2, sum_out_3, sum_out_4};
      Tile<5>::put_items(d_out + 64 + c * 5, o_out);
    }
  }
  unstage<1, 16, 3>(a_x1 + 0, d_x1 + 0);
}
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* x1, const real* x2, const real* w, const real* out, real* d_x1, real* d_x2, real* d_w, real* d_out, i64 rows) {
  int fault = 0;
  expect_writes(d_x1, rows * 48 * (i64)sizeof(real));
  expect_writes(d_out, rows * 144 * (i64)sizeof(real));
  const i64 span = 68;
  const i64 blocks = rows ? (rows + span - 1) / span : 0;
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(rows * 240 > 65536, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(144); num* const scratch = scratch_room.at;
    num* const s_x1 = scratch + 0;
    num* const a_x1 = scratch + 48;
    num* const s_x2 = scratch + 96;
    for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < blocks;) {
      if (!scratch) { *failed = 1; continue; }
      const i64 end = least(rows, (b + 1) * span);
      for (i64 q = b * span; q < end; q += W) {
        const int n = least(W, end - q);
        for (int r = 0; r < n; ++r) {
          const i64 e = q + r;
          row(x1 + e * 48, x2 + e * 48, w, out + e * 144, d_x1 + e * 48, d_out + e * 144, s_x1, a_x1, s_x2);
        }
      }
    }
  });
  return fault;
}
