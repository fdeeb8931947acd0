// Segments of one row in scratch, for vectors over channels.  Needs: Tile<D>, fetch, put, load, store.

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
