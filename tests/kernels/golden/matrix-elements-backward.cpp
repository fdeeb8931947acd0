// matrix schedule: tiles of 96 rows of one element, 4 lanes of float64
//   path 0: 16x0e -> 32x0e; a matrix product
//   path 1: 6x1o -> 4x1o; a matrix product
// opens x1, w
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
static void tile(int n, const i64* at, const real* p_x1, const real* p_out, real* q_x1, num* a_w, num* s_x1, num* s_out, num* a_x1, num* weights) {
  for (i64 r = 0; r < n; ++r) stage<1, 16, 1>(p_x1 + at[r] * 34 + 0, s_x1 + 0 * (i64)R + r * 16);
  for (i64 r = 0; r < n; ++r) stage<1, 6, 3>(p_x1 + at[r] * 34 + 16, s_x1 + 16 * (i64)R + r * 24);
  for (i64 r = 0; r < n; ++r) stage<1, 32, 1>(p_out + at[r] * 45 + 0, s_out + 0 * (i64)R + r * 32);
  for (i64 r = 0; r < n; ++r) stage<1, 4, 3>(p_out + at[r] * 45 + 32, s_out + 32 * (i64)R + r * 12);
  // path 0: 16x0e -> 32x0e
  multiply<false>(a_x1 + 0 * (i64)R, 16, s_out + 0 * (i64)R, 32, 1, weights + 0, 16, n * 1, 32, 16);
  multiply<true>(a_w + 0, 32, s_x1 + 0 * (i64)R, 1, 16, s_out + 0 * (i64)R, 32, 16, n * 1, 32);
  // path 1: 6x1o -> 4x1o
  multiply<false>(a_x1 + 16 * (i64)R, 8, s_out + 32 * (i64)R, 4, 1, weights + 512, 8, n * 3, 4, 8);
  multiply<true>(a_w + 512, 4, s_x1 + 16 * (i64)R, 1, 8, s_out + 32 * (i64)R, 4, 6, n * 3, 4);
  for (i64 r = 0; r < n; ++r) unstage<1, 16, 1>(a_x1 + 0 * (i64)R + r * 16, q_x1 + at[r] * 34 + 0);
  for (i64 r = 0; r < n; ++r) unstage<1, 6, 3>(a_x1 + 16 * (i64)R + r * 24, q_x1 + at[r] * 34 + 16);
}
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
struct Tasks {
  i64 count;
  i64 *first, *order;     // rows by element; first[e] is where element e begins
  i64 *element, *begin;   // of every task: its element, and where in the order it begins
};
static inline i64 most_tasks(i64 rows, i64 elements, i64 span) { return elements + (span ? rows / span : 0) + 1; }
static inline i64 tasks_size(i64 rows, i64 elements, i64 span) {
  return elements + 1 + rows + 2 * most_tasks(rows, elements, span);
}
// Tasks of ``span`` rows at most; with span 0 one for each element, with or without rows.  Without an index all rows are
// of one element, or each of its own.  ``room`` has as many numbers as they take.
static Tasks make_tasks(i64* room, const i64* index, i64 rows, i64 elements, i64 span) {
  i64 *const first = room, *const order = first + elements + 1, *const element = order + rows;
  Tasks t = {0, first, order, element, element + most_tasks(rows, elements, span)};
  if (index) sort_rows(index, rows, elements, first, order);
  else {
    for (i64 m = 0; m < rows; ++m) order[m] = m;
    for (i64 e = 0; e <= elements; ++e) first[e] = e * rows / (elements ? elements : 1);
  }
  for (i64 e = 0; e < elements; ++e)
    for (i64 q = first[e]; !span || q < first[e + 1]; q += span) {
      element[t.count] = e;
      t.begin[t.count++] = q;
      if (!span) break;
    }
  return t;
}
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* const* given, real* const* opened, const i64* index, const i64* sizes, void*, void*, void*, void*, i64 rows) {
  const real* const x1 = given[0];
  const real* const x2 = given[1];
  const real* const w = given[2];
  const real* const out = given[3];
  real* const d_x1 = opened[0];
  real* const d_w = opened[1];
  int fault = 0;
  expect_writes(d_x1, rows * 34 * (i64)sizeof(real));
  const i64 elements = sizes[0];
  if (index && !inside(index, rows, elements)) return 2;
  const i64 room = 31300;  // blocks that fit into 64 MB of sums
  const i64 most = room < 32 ? room : 32;
  const i64 span = ((rows + most - 1) / most + 96) / 96 * 96;
  const Room<i64> tasks_room(tasks_size(rows, elements, span)); i64* const tasks = tasks_room.at; if (!tasks) return 1;
  const Tasks t = make_tasks(tasks, index, rows, elements, span);
  const i64 blocks = t.count;
  const Room<num> sums_room((blocks + 1) * 536); num* const sums = sums_room.at; if (!sums) return 1;
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(rows * 615 > 65536, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(12448); num* const scratch = scratch_room.at;
    num* const s_x1 = scratch + 0;
    num* const s_out = scratch + 3840;
    num* const a_x1 = scratch + 8064;
    num* const weights = scratch + 11904;
    i64 held = -1;  // the element whose weights stand there
    for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < blocks;) {
      if (!scratch) { *failed = 1; continue; }
      num* const a_w = sums + b * 536; clear(a_w, 536);
      const i64 e = t.element[b], begin = t.begin[b], end = least(t.first[e + 1], begin + span);
      if (held != e) {
        held = e;
        keep_flipped<16, 32>(w + e * 536 + 0, 0.25, weights + 0);
        keep_flipped<6, 4>(w + e * 536 + 512, 0.408248290463863, weights + 512);
      }
      for (i64 q = begin; q < end; q += R) {
        tile(least(R, end - q), t.order + q, x1, out, d_x1, a_w, s_x1, s_out, a_x1, weights);
      }
    }
  });
  for (i64 e = 0, b = 0; e < elements; ++e) {
    real* const to = d_w + e * 536; num* const all = sums + b * 536;
    if (b == blocks || t.element[b] != e) { zero(to, 536); continue; }
    for (++b; b < blocks && t.element[b] == e; ++b) {
      for (i64 m = 0; m < 536; m += W) add(all + m, load(sums + b * 536 + m));
    }
    give<16, 32>(to + 0, 0.25, all + 0);
    give<6, 4>(to + 512, 0.408248290463863, all + 512);
  }
  return fault;
}
