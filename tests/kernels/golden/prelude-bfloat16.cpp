typedef unsigned short real;  // as the tensors hold it
typedef float num;   // as it is computed with
typedef long long i64;
enum { W = 8 };  // lanes
typedef num vec __attribute__((vector_size(32), may_alias));
typedef num loose __attribute__((vector_size(32), aligned(4), may_alias));
typedef unsigned int bits __attribute__((vector_size(32), may_alias));
// system.h
// threads.h
// bfloat16.h
// lanes.h
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
// staging.h
typedef real piece2 __attribute__((vector_size(2 * sizeof(real)), aligned(sizeof(real)), may_alias));
typedef real piece4 __attribute__((vector_size(4 * sizeof(real)), aligned(sizeof(real)), may_alias));
typedef real piece8 __attribute__((vector_size(8 * sizeof(real)), aligned(sizeof(real)), may_alias));
static inline vec fetch_6(const real* p) {
  const piece8 whole = __builtin_shufflevector(*(const piece4*)(p + 0), __builtin_shufflevector(*(const piece2*)(p + 4), piece2{}, 0, 1, 2, 3), 0, 1, 2, 3, 4, 5, 6, 7);
  return (vec)(__builtin_convertvector(whole, bits) << 16);
}
static inline void put_6(real* p, vec v) {
  piece8 whole; put((real*)&whole, v);
  *(piece4*)(p + 0) = __builtin_shufflevector(whole, whole, 0, 1, 2, 3); *(piece2*)(p + 4) = __builtin_shufflevector(__builtin_shufflevector(whole, whole, 4, 5, 6, 7), __builtin_shufflevector(whole, whole, 4, 5, 6, 7), 0, 1);
}
template <> struct Tail<3, 2> {
  static inline __attribute__((always_inline)) void fetch_items(const real* p, vec* v) {
    vec m[1];
    m[0] = fetch_6(p + 0 * W);
    v[0] = __builtin_shufflevector(m[0], m[0], 0, 3, 7, 7, 7, 7, 7, 7);
    v[1] = __builtin_shufflevector(m[0], m[0], 1, 4, 7, 7, 7, 7, 7, 7);
    v[2] = __builtin_shufflevector(m[0], m[0], 2, 5, 7, 7, 7, 7, 7, 7);
  }
  static inline __attribute__((always_inline)) void put_items(real* p, const vec* v) {
    vec m[1];
    m[0] = __builtin_shufflevector(v[0], v[1], 0, 8, -1, 1, 9, -1, -1, -1);
    m[0] = __builtin_shufflevector(m[0], v[2], 0, 1, 8, 3, 4, 9, -1, -1);
    put_6(p + 0 * W, m[0]);
  }
};
