typedef double real;  // as the tensors hold it
typedef double num;   // as it is computed with
typedef long long i64;
enum { W = 4 };  // lanes
typedef num vec __attribute__((vector_size(32), may_alias));
typedef num loose __attribute__((vector_size(32), aligned(8), may_alias));
typedef unsigned long long bits __attribute__((vector_size(32), may_alias));
// system.h
// threads.h
// plain.h
// lanes.h
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
// staging.h
enum { R = 4 };  // rows in a tile
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
// row_staging.h
// patch.h
// a panel of B stays in the nearest cache while all rows of A pass
template <int V> static __attribute__((noinline))
void panel(bool add, num* C, i64 cm, const num* A, i64 am, i64 ak, const num* B, i64 bk, int M, int K) {
  int m = 0;
  for (; m + 6 <= M; m += 6) patch<6, V>(add, C + m * cm, cm, A + m * am, am, ak, B, bk, K);
  for (; m + 4 <= M; m += 4) patch<4, V>(add, C + m * cm, cm, A + m * am, am, ak, B, bk, K);
  for (; m + 2 <= M; m += 2) patch<2, V>(add, C + m * cm, cm, A + m * am, am, ak, B, bk, K);
  for (; m + 1 <= M; m += 1) patch<1, V>(add, C + m * cm, cm, A + m * am, am, ak, B, bk, K);
}
template <int N> static inline
void multiply(bool add, num* C, i64 cm, const num* A, i64 am, i64 ak, const num* B, i64 bk, int M, int K) {
  enum { V = 2, REST = N / W % V, WHOLE = N - REST * W };
  for (int n = 0; n < WHOLE; n += V * W) panel<V>(add, C + n, cm, A, am, ak, B + n, bk, M, K);
  if constexpr (REST) panel<REST>(add, C + WHOLE, cm, A, am, ak, B + WHOLE, bk, M, K);
}
static inline void multiply_columns(
    int N, bool add, num* C, i64 cm, const num* A, i64 am, i64 ak, const num* B, i64 bk, int M, int K) {
  int n = 0;
  for (; n + 2 * W <= N; n += 2 * W) panel<2>(add, C + n, cm, A, am, ak, B + n, bk, M, K);
  for (; n < N; n += W) panel<1>(add, C + n, cm, A, am, ak, B + n, bk, M, K);
}
// correlation.h
