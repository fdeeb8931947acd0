// Weights as matrices, each [K][N] in memory.  Needs: R tiles with transpose(vec*), stage, fetch, store, widen.

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
  if (c != 1)
    for (i64 m = 0; m < (i64)K * P; m += W) store(s + m, c * load(s + m));
  unstage<K, N, 1>(s, w);
}
