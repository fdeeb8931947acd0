// Vectors of channels from and to memory, any number n of them up to W.  Needs: vec, fetch, put, widen, narrow, Tile, and
// for items of W numbers or more transpose.

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
