// A patch of a matrix product in registers.  Needs: num, vec, loose, W.

static inline vec row_of(const num* p) { return *(const loose*)p; }  // rows of memory stand anywhere
// C(m, n) = sum_k A(m, k) B(k, n), or adds it: A is strided numbers, n runs over whole vectors
template <int H, int V>
static inline void patch(bool add, num* C, i64 cm, const num* A, i64 am, i64 ak, const num* B, i64 bk, int K) {
  vec c[H][V] = {};
  if (add) UNROLL for (int h = 0; h < H; ++h) UNROLL for (int v = 0; v < V; ++v) c[h][v] = row_of(C + h * cm + v * W);
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
