// A patch of a matrix product in registers.  Needs: num, vec, load, store, W.

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
