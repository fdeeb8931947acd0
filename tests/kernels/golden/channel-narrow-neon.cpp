// channel schedule: 4 lanes of float32, 4 tables
//   path 0: 20x0e x 1x0e -> 20x0e (uvu); x1[20] staged, w[20], out[20]; 1 non-zeros
//   path 1: 6x1o x 1x1o -> 6x0e (uvu); x1[6] staged, w[6] staged, out[6] staged; 3 non-zeros
//   path 2: 20x0e x 1x1o -> 20x1o (uvu); x1[20] staged, w[20], out[20]; 3 non-zeros
//   path 3: 6x1o x 1x0e -> 6x1o (uvu); x1[6] staged, w[6] staged, out[6] staged; 3 non-zeros
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
template <> struct Tail<1, 2> {
  static inline __attribute__((always_inline)) void fetch_items(const real* p, vec* v) {
    vec m[1];
    m[0] = fetch_2(p + 0 * W);
    v[0] = __builtin_shufflevector(m[0], m[0], 0, 1, 3, 3);
  }
  static inline __attribute__((always_inline)) void put_items(real* p, const vec* v) {
    vec m[1];
    m[0] = v[0];
    put_2(p + 0 * W, m[0]);
  }
};
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
static void tabulate(int n, num* T, const real* const* p_x2, num* t_x2) {
  for (int r = 0; r < W; ++r) {
    for (int e = 0; e < 1; ++e) t_x2[e * W + r] = r < n ? widen(p_x2[r][e]) : 0;
    for (int e = 1; e < 4; ++e) t_x2[e * W + r] = r < n ? widen(p_x2[r][e]) : 0;
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
    store(t + 0 * W, 0.57735026f * x0);
    store(t + 1 * W, 0.57735026f * x1);
    store(t + 2 * W, 0.57735026f * x2);
  }
  // T[i, k] of path 2
  for (int v = 0; v < 1; ++v) {
    const num* x = t_x2 + (1 + v * 3) * W;
    num* t = T + (4 + v * 3) * W;
    const vec x0 = load(x + 0 * W);
    const vec x1 = load(x + 1 * W);
    const vec x2 = load(x + 2 * W);
    store(t + 0 * W, 1.0f * x0);
    store(t + 1 * W, x1);
    store(t + 2 * W, 1.0f * x2);
  }
  // T[i, k] of path 3
  for (int v = 0; v < 1; ++v) {
    const num* x = t_x2 + (0 + v * 1) * W;
    num* t = T + (7 + v * 3) * W;
    const vec x0 = load(x + 0 * W);
    store(t + 0 * W, 1.0f * x0);
    store(t + 1 * W, x0);
    store(t + 2 * W, 1.0f * x0);
  }
}
static void row(const real* x1, const real* x2, const real* w, real* d_out, num* s_x1, num* s_w, num* a_out, num* t_x2, const num* T) {
  stage<1, 20, 1>(x1 + 0, s_x1 + 0);
  stage<1, 6, 3>(x1 + 20, s_x1 + 20);
  stage<1, 6, 1>(w + 20, s_w + 20);
  stage<1, 6, 1>(w + 46, s_w + 48);
  // path 0: 20x0e x 1x0e -> 20x0e (uvu)
  for (int v = 0; v < 1; ++v) {
    const num* t = T + (0 + v * 1) * W;
    for (int c = 0; c < 20; c += W) {
      vec x[1]; x[0] = load(s_x1 + 0 + c);
      vec u[1]; u[0] = fetch(w + 0 + c);
      const vec v1 = t[0 * W] * x[0];
      vec sum_out_0 = u[0] * v1;
      put(d_out + 0 + c, sum_out_0);
    }
  }
  // path 1: 6x1o x 1x1o -> 6x0e (uvu)
  for (int v = 0; v < 1; ++v) {
    const num* t = T + (1 + v * 3) * W;
    for (int c = 0; c < 8; c += W) {
      vec x[3]; x[0] = load(s_x1 + 20 + c); x[1] = load(s_x1 + 28 + c); x[2] = load(s_x1 + 36 + c);
      vec u[1]; u[0] = load(s_w + 20 + v * 8 + c);
      const vec v1 = t[0 * W] * x[0] + t[1 * W] * x[1] + t[2 * W] * x[2];
      vec sum_out_0 = u[0] * v1;
      store(a_out + 20 + c, sum_out_0);
    }
  }
  // path 2: 20x0e x 1x1o -> 20x1o (uvu)
  for (int v = 0; v < 1; ++v) {
    const num* t = T + (4 + v * 3) * W;
    for (int c = 0; c < 20; c += W) {
      vec x[1]; x[0] = load(s_x1 + 0 + c);
      vec u[1]; u[0] = fetch(w + 26 + c);
      const vec v1 = u[0] * x[0];
      vec sum_out_0 = v1 * t[0 * W];
      vec sum_out_1 = v1 * t[1 * W];
      vec sum_out_2 = v1 * t[2 * W];
      const vec o_out[3] = {sum_out_0, sum_out_1, sum_out_2};
      Tile<3>::put_items(d_out + 26 + c * 3, o_out);
    }
  }
  // path 3: 6x1o x 1x0e -> 6x1o (uvu)
  for (int v = 0; v < 1; ++v) {
    const num* t = T + (7 + v * 3) * W;
    for (int c = 0; c < 8; c += W) {
      vec x[3]; x[0] = load(s_x1 + 20 + c); x[1] = load(s_x1 + 28 + c); x[2] = load(s_x1 + 36 + c);
      vec u[1]; u[0] = load(s_w + 48 + v * 8 + c);
      const vec v1 = t[0 * W] * x[0];
      vec sum_out_0 = u[0] * v1;
      const vec v2 = t[1 * W] * x[1];
      vec sum_out_1 = u[0] * v2;
      const vec v3 = t[2 * W] * x[2];
      vec sum_out_2 = u[0] * v3;
      store(a_out + 88 + c, sum_out_0);
      store(a_out + 96 + c, sum_out_1);
      store(a_out + 104 + c, sum_out_2);
    }
  }
  unstage<1, 6, 1>(a_out + 20, d_out + 20);
  unstage<1, 6, 3>(a_out + 88, d_out + 86);
}
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* x1, const real* x2, const real* w, const real* out, real* d_x1, real* d_x2, real* d_w, real* d_out, i64 rows) {
  int fault = 0;
  expect_writes(d_out, rows * 104 * (i64)sizeof(real));
  const i64 span = 80;
  const i64 blocks = rows ? (rows + span - 1) / span : 0;
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(rows * 198 > 65536, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(268); num* const scratch = scratch_room.at;
    num* const s_x1 = scratch + 0;
    num* const s_w = scratch + 44;
    num* const a_out = scratch + 100;
    num* const t_x2 = scratch + 212;
    num* const T = scratch + 228;
    for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < blocks;) {
      if (!scratch) { *failed = 1; continue; }
      const i64 end = least(rows, (b + 1) * span);
      for (i64 q = b * span; q < end; q += W) {
        const int n = least(W, end - q);
        const real* p_x2[W] = {};
        for (int r = 0; r < n; ++r) { const i64 e = q + r; p_x2[r] = x2 + e * 4; }
        tabulate(n, T, p_x2, t_x2);
        for (int r = 0; r < n; ++r) {
          const i64 e = q + r;
          row(x1 + e * 38, x2 + e * 4, w + e * 52, d_out + e * 104, s_x1, s_w, a_out, t_x2, T + r);
        }
      }
    }
  });
  return fault;
}
