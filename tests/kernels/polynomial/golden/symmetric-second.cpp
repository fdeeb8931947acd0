// x: 1x0e+1x1o (row, channel)
// w0_2: 2x0e (weights, ir_mul)
// w0_1: 1x0e (weights, ir_mul)
// w1_2: 2x0e (weights, ir_mul)
// w1_1: 1x0e (weights, ir_mul)
// out: 1x0e+1x1o (row, mul_ir)
// x x x x w0_2 -> out[0] 1x0e | 2 paths, 4 entries, chained couplings
// x x w0_1 -> out[0] 1x0e | 1 paths, 1 entries, chained couplings
// x x x x w1_2 -> out[1] 1x1o | 2 paths, 6 entries, chained couplings
// x x w1_1 -> out[1] 1x1o | 1 paths, 3 entries, chained couplings
// x w0_2 w0_1 w1_2 w1_1 out.1 x.2 w0_2.2 w0_1.2 w1_2.2 w1_1.2 -> x w0_2 w0_1 w1_2 w1_1 out.1
typedef float real;  // as the tensors hold it
typedef float num;   // as it is computed with
typedef long long i64;
enum { W = 16 };  // lanes
typedef num vec __attribute__((vector_size(64), may_alias));
typedef num loose __attribute__((vector_size(64), aligned(4), may_alias));
typedef unsigned int bits __attribute__((vector_size(64), may_alias));
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
  v += __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15);
  v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  v += __builtin_shufflevector(v, v, 2, 3, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  v += __builtin_shufflevector(v, v, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
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
    v[0] = __builtin_shufflevector(m[0], m[1], 0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, -1, -1, -1, -1, -1);
    v[0] = __builtin_shufflevector(v[0], m[2], 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 17, 20, 23, 26, 29);
    v[1] = __builtin_shufflevector(m[0], m[1], 1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, -1, -1, -1, -1, -1);
    v[1] = __builtin_shufflevector(v[1], m[2], 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 18, 21, 24, 27, 30);
    v[2] = __builtin_shufflevector(m[0], m[1], 2, 5, 8, 11, 14, 17, 20, 23, 26, 29, -1, -1, -1, -1, -1, -1);
    v[2] = __builtin_shufflevector(v[2], m[2], 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 19, 22, 25, 28, 31);
  }
  static inline __attribute__((always_inline)) void put_items(real* p, const vec* v) {
    vec m[3];
    m[0] = __builtin_shufflevector(v[0], v[1], 0, 16, -1, 1, 17, -1, 2, 18, -1, 3, 19, -1, 4, 20, -1, 5);
    m[0] = __builtin_shufflevector(m[0], v[2], 0, 1, 16, 3, 4, 17, 6, 7, 18, 9, 10, 19, 12, 13, 20, 15);
    m[1] = __builtin_shufflevector(v[1], v[2], 5, 21, -1, 6, 22, -1, 7, 23, -1, 8, 24, -1, 9, 25, -1, 10);
    m[1] = __builtin_shufflevector(m[1], v[0], 0, 1, 22, 3, 4, 23, 6, 7, 24, 9, 10, 25, 12, 13, 26, 15);
    m[2] = __builtin_shufflevector(v[2], v[0], 10, 27, -1, 11, 28, -1, 12, 29, -1, 13, 30, -1, 14, 31, -1, 15);
    m[2] = __builtin_shufflevector(m[2], v[1], 0, 1, 27, 3, 4, 28, 6, 7, 29, 9, 10, 30, 12, 13, 31, 15);
    put(p + 0 * W, m[0]); put(p + 1 * W, m[1]); put(p + 2 * W, m[2]);
  }
};
template <> struct Tile<4> {
  static inline __attribute__((always_inline)) void fetch_items(const real* p, vec* v) {
    vec m[4];
    m[0] = fetch(p + 0 * W); m[1] = fetch(p + 1 * W); m[2] = fetch(p + 2 * W); m[3] = fetch(p + 3 * W);
    v[0] = __builtin_shufflevector(m[0], m[1], 0, 4, 8, 12, 16, 20, 24, 28, -1, -1, -1, -1, -1, -1, -1, -1);
    v[0] = __builtin_shufflevector(v[0], m[2], 0, 1, 2, 3, 4, 5, 6, 7, 16, 20, 24, 28, -1, -1, -1, -1);
    v[0] = __builtin_shufflevector(v[0], m[3], 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 16, 20, 24, 28);
    v[1] = __builtin_shufflevector(m[0], m[1], 1, 5, 9, 13, 17, 21, 25, 29, -1, -1, -1, -1, -1, -1, -1, -1);
    v[1] = __builtin_shufflevector(v[1], m[2], 0, 1, 2, 3, 4, 5, 6, 7, 17, 21, 25, 29, -1, -1, -1, -1);
    v[1] = __builtin_shufflevector(v[1], m[3], 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 17, 21, 25, 29);
    v[2] = __builtin_shufflevector(m[0], m[1], 2, 6, 10, 14, 18, 22, 26, 30, -1, -1, -1, -1, -1, -1, -1, -1);
    v[2] = __builtin_shufflevector(v[2], m[2], 0, 1, 2, 3, 4, 5, 6, 7, 18, 22, 26, 30, -1, -1, -1, -1);
    v[2] = __builtin_shufflevector(v[2], m[3], 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 18, 22, 26, 30);
    v[3] = __builtin_shufflevector(m[0], m[1], 3, 7, 11, 15, 19, 23, 27, 31, -1, -1, -1, -1, -1, -1, -1, -1);
    v[3] = __builtin_shufflevector(v[3], m[2], 0, 1, 2, 3, 4, 5, 6, 7, 19, 23, 27, 31, -1, -1, -1, -1);
    v[3] = __builtin_shufflevector(v[3], m[3], 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 19, 23, 27, 31);
  }
  static inline __attribute__((always_inline)) void put_items(real* p, const vec* v) {
    vec m[4];
    m[0] = __builtin_shufflevector(v[0], v[1], 0, 16, -1, -1, 1, 17, -1, -1, 2, 18, -1, -1, 3, 19, -1, -1);
    m[0] = __builtin_shufflevector(m[0], v[2], 0, 1, 16, -1, 4, 5, 17, -1, 8, 9, 18, -1, 12, 13, 19, -1);
    m[0] = __builtin_shufflevector(m[0], v[3], 0, 1, 2, 16, 4, 5, 6, 17, 8, 9, 10, 18, 12, 13, 14, 19);
    m[1] = __builtin_shufflevector(v[0], v[1], 4, 20, -1, -1, 5, 21, -1, -1, 6, 22, -1, -1, 7, 23, -1, -1);
    m[1] = __builtin_shufflevector(m[1], v[2], 0, 1, 20, -1, 4, 5, 21, -1, 8, 9, 22, -1, 12, 13, 23, -1);
    m[1] = __builtin_shufflevector(m[1], v[3], 0, 1, 2, 20, 4, 5, 6, 21, 8, 9, 10, 22, 12, 13, 14, 23);
    m[2] = __builtin_shufflevector(v[0], v[1], 8, 24, -1, -1, 9, 25, -1, -1, 10, 26, -1, -1, 11, 27, -1, -1);
    m[2] = __builtin_shufflevector(m[2], v[2], 0, 1, 24, -1, 4, 5, 25, -1, 8, 9, 26, -1, 12, 13, 27, -1);
    m[2] = __builtin_shufflevector(m[2], v[3], 0, 1, 2, 24, 4, 5, 6, 25, 8, 9, 10, 26, 12, 13, 14, 27);
    m[3] = __builtin_shufflevector(v[0], v[1], 12, 28, -1, -1, 13, 29, -1, -1, 14, 30, -1, -1, 15, 31, -1, -1);
    m[3] = __builtin_shufflevector(m[3], v[2], 0, 1, 28, -1, 4, 5, 29, -1, 8, 9, 30, -1, 12, 13, 31, -1);
    m[3] = __builtin_shufflevector(m[3], v[3], 0, 1, 2, 28, 4, 5, 6, 29, 8, 9, 10, 30, 12, 13, 14, 31);
    put(p + 0 * W, m[0]); put(p + 1 * W, m[1]); put(p + 2 * W, m[2]); put(p + 3 * W, m[3]);
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
enum { R = 16 };  // rows in a tile
static inline void transpose(vec* v) {
  vec a, b;
  a = v[0]; b = v[1];
  v[0] = __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
  v[1] = __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
  a = v[2]; b = v[3];
  v[2] = __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
  v[3] = __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
  a = v[4]; b = v[5];
  v[4] = __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
  v[5] = __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
  a = v[6]; b = v[7];
  v[6] = __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
  v[7] = __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
  a = v[8]; b = v[9];
  v[8] = __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
  v[9] = __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
  a = v[10]; b = v[11];
  v[10] = __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
  v[11] = __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
  a = v[12]; b = v[13];
  v[12] = __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
  v[13] = __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
  a = v[14]; b = v[15];
  v[14] = __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
  v[15] = __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
  a = v[0]; b = v[2];
  v[0] = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
  v[2] = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  a = v[1]; b = v[3];
  v[1] = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
  v[3] = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  a = v[4]; b = v[6];
  v[4] = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
  v[6] = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  a = v[5]; b = v[7];
  v[5] = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
  v[7] = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  a = v[8]; b = v[10];
  v[8] = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
  v[10] = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  a = v[9]; b = v[11];
  v[9] = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
  v[11] = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  a = v[12]; b = v[14];
  v[12] = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
  v[14] = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  a = v[13]; b = v[15];
  v[13] = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
  v[15] = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  a = v[0]; b = v[4];
  v[0] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
  v[4] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  a = v[1]; b = v[5];
  v[1] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
  v[5] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  a = v[2]; b = v[6];
  v[2] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
  v[6] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  a = v[3]; b = v[7];
  v[3] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
  v[7] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  a = v[8]; b = v[12];
  v[8] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
  v[12] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  a = v[9]; b = v[13];
  v[9] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
  v[13] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  a = v[10]; b = v[14];
  v[10] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
  v[14] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  a = v[11]; b = v[15];
  v[11] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
  v[15] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  a = v[0]; b = v[8];
  v[0] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
  v[8] = __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  a = v[1]; b = v[9];
  v[1] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
  v[9] = __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  a = v[2]; b = v[10];
  v[2] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
  v[10] = __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  a = v[3]; b = v[11];
  v[3] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
  v[11] = __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  a = v[4]; b = v[12];
  v[4] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
  v[12] = __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  a = v[5]; b = v[13];
  v[5] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
  v[13] = __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  a = v[6]; b = v[14];
  v[6] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
  v[14] = __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  a = v[7]; b = v[15];
  v[7] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
  v[15] = __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
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
  for (; m + 6 <= M; m += 6) patch<6, V>(C + (i64)m * N, A + m * am, am, ak, B, K, N);
  for (; m + 5 <= M; m += 5) patch<5, V>(C + (i64)m * N, A + m * am, am, ak, B, K, N);
  for (; m + 4 <= M; m += 4) patch<4, V>(C + (i64)m * N, A + m * am, am, ak, B, K, N);
  for (; m + 3 <= M; m += 3) patch<3, V>(C + (i64)m * N, A + m * am, am, ak, B, K, N);
  for (; m + 2 <= M; m += 2) patch<2, V>(C + (i64)m * N, A + m * am, am, ak, B, K, N);
  for (; m + 1 <= M; m += 1) patch<1, V>(C + (i64)m * N, A + m * am, am, ak, B, K, N);
}
static void multiply(num* C, const num* A, i64 am, i64 ak, const num* B, int M, int K, int N) {
  int n = 0;
  for (; n + 4 * W <= N; n += 4 * W) panel<4>(C + n, A, am, ak, B + n, M, K, N);
  for (; n + 3 * W <= N; n += 3 * W) panel<3>(C + n, A, am, ak, B + n, M, K, N);
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
static void prologue(const num* x_w0_2, const num* x_w0_1, const num* x_w1_2, const num* x_w1_1, const num* x_w0_2_2, const num* x_w0_1_2, const num* x_w1_2_2, const num* x_w1_1_2, num* a, num* a_2) {
  store(a + 0 * W, load(x_w0_2 + 0 * W));
  store(a_2 + 0 * W, load(x_w0_2_2 + 0 * W));
  store(a + 1 * W, load(x_w0_1 + 0 * W));
  store(a_2 + 1 * W, load(x_w0_1_2 + 0 * W));
  store(a + 2 * W, 1.0f * load(x_w1_2 + 0 * W) + 1.0f * load(x_w1_2 + 1 * W));
  store(a_2 + 2 * W, 1.0f * load(x_w1_2_2 + 0 * W) + 1.0f * load(x_w1_2_2 + 1 * W));
  store(a + 3 * W, 0.57735026f * load(x_w0_2 + 1 * W));
  store(a_2 + 3 * W, 0.57735026f * load(x_w0_2_2 + 1 * W));
  store(a + 4 * W, load(x_w1_1 + 0 * W));
  store(a_2 + 4 * W, load(x_w1_1_2 + 0 * W));
}
static void row(const real* p_x_x, const real* p_x_out_1, const real* p_x_x_2, real* o_x_x, real* o_x_out_1, const num* a, const num* a_2, num* da_12, i64 C, i64 c, int n) {
  vec t_x_x[4];
  Items<4>::get(p_x_x + 0 * C + c * 4, n, t_x_x + 0);
  vec t_x_out_1[4];
  t_x_out_1[0] = get_some(p_x_out_1 + 0 * C + c, n);
  Items<3>::get(p_x_out_1 + 1 * C + c * 3, n, t_x_out_1 + 1);
  vec t_x_x_2[4];
  Items<4>::get(p_x_x_2 + 0 * C + c * 4, n, t_x_x_2 + 0);
  vec d_x_x[4] = {};
  vec d_x_out_1[4] = {};
  const vec v1 = t_x_x[0] * t_x_x[0];
  const vec v2 = t_x_x[0] * t_x_x_2[0] + t_x_x_2[0] * t_x_x[0];
  add(da_12 + 0 * W, v2 * t_x_out_1[0]);
  const vec v3 = t_x_out_1[0] * load(a + 0 * W);
  const vec v4 = t_x_out_1[0] * load(a_2 + 0 * W);
  d_x_out_1[0] += v1 * load(a_2 + 0 * W) + v2 * load(a + 0 * W);
  const vec v6 = t_x_x[0] * v4 + t_x_x_2[0] * v3;
  d_x_x[0] += t_x_x[0] * v4 + t_x_x_2[0] * v3;
  add(da_12 + 1 * W, t_x_x_2[0] * t_x_out_1[0]);
  const vec v8 = v6 + t_x_out_1[0] * load(a_2 + 1 * W);
  d_x_out_1[0] += t_x_x[0] * load(a_2 + 1 * W) + t_x_x_2[0] * load(a + 1 * W);
  const vec v9 = t_x_x[0] * t_x_x[1];
  const vec v10 = t_x_x[0] * t_x_x_2[1] + t_x_x_2[0] * t_x_x[1];
  add(da_12 + 2 * W, v10 * t_x_out_1[1]);
  const vec v11 = t_x_out_1[1] * load(a + 2 * W);
  const vec v12 = t_x_out_1[1] * load(a_2 + 2 * W);
  d_x_out_1[1] += v9 * load(a_2 + 2 * W) + v10 * load(a + 2 * W);
  const vec v14 = v8 + t_x_x[1] * v12 + t_x_x_2[1] * v11;
  d_x_x[1] += t_x_x[0] * v12 + t_x_x_2[0] * v11;
  const vec v15 = t_x_x[0] * t_x_x[2];
  const vec v16 = t_x_x[0] * t_x_x_2[2] + t_x_x_2[0] * t_x_x[2];
  add(da_12 + 2 * W, v16 * t_x_out_1[2]);
  const vec v17 = t_x_out_1[2] * load(a + 2 * W);
  const vec v18 = t_x_out_1[2] * load(a_2 + 2 * W);
  d_x_out_1[2] += v15 * load(a_2 + 2 * W) + v16 * load(a + 2 * W);
  const vec v20 = v14 + t_x_x[2] * v18 + t_x_x_2[2] * v17;
  d_x_x[2] += t_x_x[0] * v18 + t_x_x_2[0] * v17;
  const vec v21 = t_x_x[0] * t_x_x[3];
  const vec v22 = t_x_x[0] * t_x_x_2[3] + t_x_x_2[0] * t_x_x[3];
  add(da_12 + 2 * W, v22 * t_x_out_1[3]);
  const vec v23 = t_x_out_1[3] * load(a + 2 * W);
  const vec v24 = t_x_out_1[3] * load(a_2 + 2 * W);
  d_x_out_1[3] += v21 * load(a_2 + 2 * W) + v22 * load(a + 2 * W);
  const vec v26 = v20 + t_x_x[3] * v24 + t_x_x_2[3] * v23;
  d_x_x[3] += t_x_x[0] * v24 + t_x_x_2[0] * v23;
  d_x_x[0] += v26;
  const vec v29 = t_x_x[1] * t_x_x[1];
  const vec v30 = t_x_x[1] * t_x_x_2[1] + t_x_x_2[1] * t_x_x[1];
  add(da_12 + 3 * W, v30 * t_x_out_1[0]);
  const vec v31 = t_x_out_1[0] * load(a + 3 * W);
  const vec v32 = t_x_out_1[0] * load(a_2 + 3 * W);
  d_x_out_1[0] += v29 * load(a_2 + 3 * W) + v30 * load(a + 3 * W);
  const vec v34 = t_x_x[1] * v32 + t_x_x_2[1] * v31;
  d_x_x[1] += t_x_x[1] * v32 + t_x_x_2[1] * v31;
  add(da_12 + 4 * W, t_x_x_2[1] * t_x_out_1[1]);
  const vec v36 = v34 + t_x_out_1[1] * load(a_2 + 4 * W);
  d_x_out_1[1] += t_x_x[1] * load(a_2 + 4 * W) + t_x_x_2[1] * load(a + 4 * W);
  d_x_x[1] += v36;
  const vec v39 = t_x_x[2] * t_x_x[2];
  const vec v40 = t_x_x[2] * t_x_x_2[2] + t_x_x_2[2] * t_x_x[2];
  add(da_12 + 3 * W, v40 * t_x_out_1[0]);
  d_x_out_1[0] += v39 * load(a_2 + 3 * W) + v40 * load(a + 3 * W);
  const vec v42 = t_x_x[2] * v32 + t_x_x_2[2] * v31;
  d_x_x[2] += t_x_x[2] * v32 + t_x_x_2[2] * v31;
  add(da_12 + 4 * W, t_x_x_2[2] * t_x_out_1[2]);
  const vec v44 = v42 + t_x_out_1[2] * load(a_2 + 4 * W);
  d_x_out_1[2] += t_x_x[2] * load(a_2 + 4 * W) + t_x_x_2[2] * load(a + 4 * W);
  d_x_x[2] += v44;
  const vec v47 = t_x_x[3] * t_x_x[3];
  const vec v48 = t_x_x[3] * t_x_x_2[3] + t_x_x_2[3] * t_x_x[3];
  add(da_12 + 3 * W, v48 * t_x_out_1[0]);
  d_x_out_1[0] += v47 * load(a_2 + 3 * W) + v48 * load(a + 3 * W);
  const vec v50 = t_x_x[3] * v32 + t_x_x_2[3] * v31;
  d_x_x[3] += t_x_x[3] * v32 + t_x_x_2[3] * v31;
  add(da_12 + 4 * W, t_x_x_2[3] * t_x_out_1[3]);
  const vec v52 = v50 + t_x_out_1[3] * load(a_2 + 4 * W);
  d_x_out_1[3] += t_x_x[3] * load(a_2 + 4 * W) + t_x_x_2[3] * load(a + 4 * W);
  d_x_x[3] += v52;
  Items<4>::set(o_x_x + 0 * C + c * 4, n, d_x_x + 0);
  set_some(o_x_out_1 + 0 * C + c, n, d_x_out_1[0]);
  Items<3>::set(o_x_out_1 + 1 * C + c * 3, n, d_x_out_1 + 1);
}
static void epilogue(const num* x_w0_2, const num* x_w0_1, const num* x_w1_2, const num* x_w1_1, const num* x_w0_2_2, const num* x_w0_1_2, const num* x_w1_2_2, const num* x_w1_1_2, const num* da_12, real* o_x_w0_2, real* o_x_w0_1, real* o_x_w1_2, real* o_x_w1_1, i64 C, int n) {
  set_some(o_x_w0_2 + 0 * C, n, load(da_12 + 0 * W));
  set_some(o_x_w0_2 + 1 * C, n, 0.57735026f * load(da_12 + 3 * W));
  set_some(o_x_w0_1 + 0 * C, n, load(da_12 + 1 * W));
  set_some(o_x_w1_2 + 0 * C, n, 1.0f * load(da_12 + 2 * W));
  set_some(o_x_w1_2 + 1 * C, n, 1.0f * load(da_12 + 2 * W));
  set_some(o_x_w1_1 + 0 * C, n, load(da_12 + 4 * W));
}
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* const* given, real* const* opened, const i64* index, const i64* sizes, const void*, const void*, const void*, const void*, i64 rows) {
  const i64 elements = sizes[0], C = sizes[1], vectors = (C + W - 1) / W;
  if (index && !inside(index, rows, elements)) return 2;
  Tasks t;
  if (make_tasks(&t, index, rows, elements, 0)) return 1;
  int fault = 0;
  if (!fault) {
    i64 next = 0; i64* const taken = &next; int* const failed = &fault;
    on_threads(rows * vectors * 203 > 131072, [=]() __attribute__((always_inline)) {
      num* scratch = 0; if (posix_memalign((void**)&scratch, 64, 27 * W * sizeof(num))) scratch = 0;
      num* const x_w0_2 = scratch + 0 * W;
      num* const x_w0_1 = scratch + 2 * W;
      num* const x_w1_2 = scratch + 3 * W;
      num* const x_w1_1 = scratch + 5 * W;
      num* const x_w0_2_2 = scratch + 6 * W;
      num* const x_w0_1_2 = scratch + 8 * W;
      num* const x_w1_2_2 = scratch + 9 * W;
      num* const x_w1_1_2 = scratch + 11 * W;
      num* const a = scratch + 12 * W;
      num* const a_2 = scratch + 17 * W;
      num* const da_12 = scratch + 22 * W;
      const real* const p_x_x = given[0];
      const real* const p_x_w0_2 = given[1];
      const real* const p_x_w0_1 = given[2];
      const real* const p_x_w1_2 = given[3];
      const real* const p_x_w1_1 = given[4];
      const real* const p_x_out_1 = given[5];
      const real* const p_x_x_2 = given[6];
      const real* const p_x_w0_2_2 = given[7];
      const real* const p_x_w0_1_2 = given[8];
      const real* const p_x_w1_2_2 = given[9];
      const real* const p_x_w1_1_2 = given[10];
      real* const o_x_x = opened[0];
      real* const o_x_w0_2 = opened[1];
      real* const o_x_w0_1 = opened[2];
      real* const o_x_w1_2 = opened[3];
      real* const o_x_w1_1 = opened[4];
      real* const o_x_out_1 = opened[5];
      for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < t.count * vectors;) {
        if (!scratch) { *failed = 1; continue; }
        const i64 e = t.element[b / vectors], from = t.begin[b / vectors];
        const i64 to = t.first[e + 1];
        const i64 v = b % vectors;
        const i64 c = v * W; const int n = least(W, C - c);
        if (from == to) {
          for (int i = 0; i < 2; ++i) set_some(o_x_w0_2 + (e * 2 + i) * C + c, n, vec{});
          for (int i = 0; i < 1; ++i) set_some(o_x_w0_1 + (e * 1 + i) * C + c, n, vec{});
          for (int i = 0; i < 2; ++i) set_some(o_x_w1_2 + (e * 2 + i) * C + c, n, vec{});
          for (int i = 0; i < 1; ++i) set_some(o_x_w1_1 + (e * 1 + i) * C + c, n, vec{});
          continue;
        }
        for (int i = 0; i < 2; ++i) store(x_w0_2 + i * W, get_some(p_x_w0_2 + (e * 2 + i) * C + c, n));
        for (int i = 0; i < 1; ++i) store(x_w0_1 + i * W, get_some(p_x_w0_1 + (e * 1 + i) * C + c, n));
        for (int i = 0; i < 2; ++i) store(x_w1_2 + i * W, get_some(p_x_w1_2 + (e * 2 + i) * C + c, n));
        for (int i = 0; i < 1; ++i) store(x_w1_1 + i * W, get_some(p_x_w1_1 + (e * 1 + i) * C + c, n));
        for (int i = 0; i < 2; ++i) store(x_w0_2_2 + i * W, get_some(p_x_w0_2_2 + (e * 2 + i) * C + c, n));
        for (int i = 0; i < 1; ++i) store(x_w0_1_2 + i * W, get_some(p_x_w0_1_2 + (e * 1 + i) * C + c, n));
        for (int i = 0; i < 2; ++i) store(x_w1_2_2 + i * W, get_some(p_x_w1_2_2 + (e * 2 + i) * C + c, n));
        for (int i = 0; i < 1; ++i) store(x_w1_1_2 + i * W, get_some(p_x_w1_1_2 + (e * 1 + i) * C + c, n));
        prologue(x_w0_2, x_w0_1, x_w1_2, x_w1_1, x_w0_2_2, x_w0_1_2, x_w1_2_2, x_w1_1_2, a, a_2);
        clear(da_12, 5 * W);
        for (i64 q = from; q < to; ++q) {
          const i64 r = t.order[q];
          row(p_x_x + r * 4 * C, p_x_out_1 + r * 4 * C, p_x_x_2 + r * 4 * C, o_x_x + r * 4 * C, o_x_out_1 + r * 4 * C, a, a_2, da_12, C, c, n);
        }
        epilogue(x_w0_2, x_w0_1, x_w1_2, x_w1_1, x_w0_2_2, x_w0_1_2, x_w1_2_2, x_w1_1_2, da_12, o_x_w0_2 + e * 2 * C + c, o_x_w0_1 + e * 1 * C + c, o_x_w1_2 + e * 2 * C + c, o_x_w1_1 + e * 1 * C + c, C, n);
      }
      free(scratch);
    });
  }
  free(t.first);
  return fault;
}
