// Matrix products that sum over lanes, and the transpose that saves them.  Needs: transpose, load, lane_sum.

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
