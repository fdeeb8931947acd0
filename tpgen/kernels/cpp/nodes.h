// Products of scalars h and rows p, summed by node before weights mix the copies u of p:
//   S[k, u, m] = sum_e h[e, k] p[e, u, m]      out[w, m] = sum_ku M[k, u, w] S[k, u, m]
// Vectors run over k.  Needs: K scalars of a row; P and OUT, the lengths of rows of p and out; NODES that share weights
// in the cache, FEW of them in registers, which hold SUMS vectors; EDGES rows of a node; transpose, last_scalars.

enum { LANES = (K + W - 1) / W * W };  // scalars in whole vectors
// nodes, and columns or copies, whose sums of D numbers are in registers together
static constexpr int nodes_together(int D) { return D * FEW <= SUMS ? FEW : D * 2 <= SUMS ? 2 : 1; }
static constexpr int columns_together(int N, int D) { return N * D * 4 <= SUMS ? 4 : N * D * 2 <= SUMS ? 2 : 1; }
// a path's copies before and after the weights; its starts in rows of p and out, in the weights and in these as kept
struct Path { int copies, mixed, p, out; i64 weights, kept; num scale; };
// some copies of a path, of D numbers each
static inline Path copies_of(Path path, int u, int count, int D) {
  path.copies = (int)least(count, path.copies - u);
  path.p += u * D;
  path.kept += (i64)u * path.mixed * W;
  return path;
}
// some rows of each of a few nodes
struct Nodes {
  int count, rows[NODES];
  i64 node[NODES], row[NODES][EDGES];
  const real *p[NODES][EDGES], *g[NODES];  // a path's products in each row, and cotangents of each node
};
static inline i64 row_of_scalars(int n, int e) { return (n * EDGES + e) * (i64)LANES; }
static inline int whole_vectors(int size) { return (size + W - 1) / W * W; }
static void find_products(Nodes& of, const real* p) {
  for (int n = 0; n < of.count; ++n) for (int e = 0; e < of.rows[n]; ++e) of.p[n][e] = p + of.row[n][e] * P;
}
static void find_cotangents(Nodes& of, const real* g) {
  for (int n = 0; n < of.count; ++n) of.g[n] = g + of.node[n] * OUT;
}

// [K][n] times a scale <-> [vector of k][n][W]
static void keep_lanes(const real* w, i64 n, num scale, num* s) {
  for (int k = 0; k < K; k += W, s += n * W) {
    i64 c = 0;
    if (k + W <= K)
      for (; c + W <= n; c += W) {
        vec v[W];
        UNROLL for (int l = 0; l < W; ++l) v[l] = scale * fetch(w + (k + l) * n + c);
        transpose(v);
        UNROLL for (int l = 0; l < W; ++l) store(s + (c + l) * W, v[l]);
      }
    for (; c < n; ++c)
      for (int l = 0; l < W; ++l) s[c * W + l] = k + l < K ? scale * w[(k + l) * n + c] : 0;
  }
}
static void give_lanes(real* w, i64 n, num scale, const num* s) {
  for (int k = 0; k < K; k += W, s += n * W) {
    i64 c = 0;
    if (k + W <= K)
      for (; c + W <= n; c += W) {
        vec v[W];
        UNROLL for (int l = 0; l < W; ++l) v[l] = scale * load(s + (c + l) * W);
        transpose(v);
        UNROLL for (int l = 0; l < W; ++l) put(w + (k + l) * n + c, v[l]);
      }
    for (; c < n; ++c)
      for (int l = 0; l < W && k + l < K; ++l) w[(k + l) * n + c] = scale * s[c * W + l];
  }
}
// h of each row in whole vectors, padded with zeros
static void stage_scalars(const Nodes& of, const real* h, num* s) {
  for (int n = 0; n < of.count; ++n)
    for (int e = 0; e < of.rows[n]; ++e) {
      const real* const from = h + of.row[n][e] * K;
      num* const to = s + row_of_scalars(n, e);
      int k = 0;
      for (; k + W <= K; k += W) store(to + k, fetch(from + k));
      for (; k < LANES; ++k) to[k] = k < K ? from[k] : 0;
    }
}
template <int T> static inline void sum_columns(const num* h, const real* const* p, int rows, int j, num* s) {
  vec v[T] = {};
  for (int e = 0; e < rows; ++e) {
    const vec x = load(h + e * LANES);
    UNROLL for (int t = 0; t < T; ++t) v[t] += x * p[e][j + t];
  }
  UNROLL for (int t = 0; t < T; ++t) store(s + (j + t) * W, v[t]);
}
// lanes behind the last scalar: zero times infinity is no number
static void clear_padding(num* s, i64 vectors) {
  for (i64 v = 0; v < vectors; ++v) store(s + v * W, last_scalars(load(s + v * W)));
}
// S of a vector of scalars, [node][u, m][W]
static void sum_products(const Nodes& of, int size, const num* h, num* s) {
  for (int n = 0; n < of.count; ++n, s += size * W) {
    const num* const x = h + row_of_scalars(n, 0);
    int j = 0;
    for (; j + 12 <= size; j += 12) sum_columns<12>(x, of.p[n], of.rows[n], j, s);
    for (; j + 4 <= size; j += 4) sum_columns<4>(x, of.p[n], of.rows[n], j, s);
    for (; j < size; ++j) sum_columns<1>(x, of.p[n], of.rows[n], j, s);
  }
}
// out[n][w, m] += sum_u M[u, w] S[n][u, m], lane by lane, for N nodes and T of the w
template <int N, int D, int T>
static inline void mix_columns(Path path, const num* m, const num* s, i64 step, num* out) {
  vec v[N][T][D];
  UNROLL for (int n = 0; n < N; ++n) UNROLL for (int t = 0; t < T * D; ++t) v[n][t / D][t % D] = load(out + (n * OUT + t) * W);
  for (int u = 0; u < path.copies; ++u) {
    vec x[T];
    UNROLL for (int t = 0; t < T; ++t) x[t] = load(m + ((i64)u * path.mixed + t) * W);
    UNROLL for (int n = 0; n < N; ++n) UNROLL for (int d = 0; d < D; ++d) {
      const vec y = load(s + n * step + (u * D + d) * W);
      UNROLL for (int t = 0; t < T; ++t) v[n][t][d] += x[t] * y;
    }
  }
  UNROLL for (int n = 0; n < N; ++n) UNROLL for (int t = 0; t < T * D; ++t) store(out + (n * OUT + t) * W, v[n][t / D][t % D]);
}
template <int N, int D> static inline void mix_nodes(Path path, const num* m, const num* s, i64 step, num* out) {
  enum { T = columns_together(N, D) };
  int w = 0;
  for (; w + T <= path.mixed; w += T) mix_columns<N, D, T>(path, m + w * W, s, step, out + w * D * W);
  if constexpr (T > 1)
    for (; w < path.mixed; ++w) mix_columns<N, D, 1>(path, m + w * W, s, step, out + w * D * W);
}
template <int D> static void mix(const Nodes& of, Path path, const num* m, const num* s, num* out) {
  enum { N = nodes_together(D) };
  const i64 step = (i64)path.copies * D * W;
  int n = 0;
  for (; n + N <= of.count; n += N) mix_nodes<N, D>(path, m, s + n * step, step, out + n * OUT * W);
  if constexpr (N > 1)
    for (; n < of.count; ++n) mix_nodes<1, D>(path, m, s + n * step, step, out + n * OUT * W);
}
// G[n][u, m] = sum_w M[u, w] g[n][w, m], lane by lane, for T of the u
template <int N, int D, int T>
static inline void unmix_copies(Path path, const num* m, const real* const* g, num* s, i64 step) {
  vec v[N][T][D] = {};
  for (int w = 0; w < path.mixed; ++w)
    UNROLL for (int t = 0; t < T; ++t) {
      const vec x = load(m + ((i64)t * path.mixed + w) * W);
      UNROLL for (int n = 0; n < N; ++n) UNROLL for (int d = 0; d < D; ++d) v[n][t][d] += x * g[n][w * D + d];
    }
  UNROLL for (int n = 0; n < N; ++n) UNROLL for (int t = 0; t < T * D; ++t) store(s + n * step + t * W, v[n][t / D][t % D]);
}
template <int N, int D> static inline void unmix_nodes(Path path, const num* m, const real* const* g, num* s, i64 step) {
  enum { T = columns_together(N, D) };
  int u = 0;
  for (; u + T <= path.copies; u += T)
    unmix_copies<N, D, T>(path, m + (i64)u * path.mixed * W, g, s + u * D * W, step);
  if constexpr (T > 1)
    for (; u < path.copies; ++u) unmix_copies<N, D, 1>(path, m + (i64)u * path.mixed * W, g, s + u * D * W, step);
}
template <int D> static void unmix(const Nodes& of, Path path, const num* m, num* s) {
  enum { N = nodes_together(D) };
  const i64 step = (i64)path.copies * D * W;
  int n = 0;
  for (; n + N <= of.count; n += N) unmix_nodes<N, D>(path, m, of.g + n, s + n * step, step);
  if constexpr (N > 1)
    for (; n < of.count; ++n) unmix_nodes<1, D>(path, m, of.g + n, s + n * step, step);
}
// the gradient by M: M[u, w] += sum_nm S[n][u, m] g[n][w, m], lane by lane
template <int N, int D>
static inline void add_weights_of_nodes(Path path, const num* s, i64 step, const real* const* g, num* m) {
  for (int u = 0; u < path.copies; ++u) {
    vec x[N][D];
    UNROLL for (int n = 0; n < N; ++n) UNROLL for (int d = 0; d < D; ++d) x[n][d] = load(s + n * step + (u * D + d) * W);
    for (int w = 0; w < path.mixed; ++w, m += W) {
      vec v = load(m);
      UNROLL for (int n = 0; n < N; ++n) UNROLL for (int d = 0; d < D; ++d) v += x[n][d] * g[n][w * D + d];
      store(m, v);
    }
  }
}
template <int D> static void add_weights(const Nodes& of, Path path, const num* s, num* m) {
  const i64 step = (i64)path.copies * D * W;
  int n = 0;
  for (; n + FEW <= of.count; n += FEW) add_weights_of_nodes<FEW, D>(path, s + n * step, step, of.g + n, m);
  for (; n < of.count; ++n) add_weights_of_nodes<1, D>(path, s + n * step, step, of.g + n, m);
}
// the gradient by h: sum_um G[u, m] p[e, u, m] of T rows
template <int T> static inline void add_scalars_of_rows(const num* s, const real* const* p, int size, num* h) {
  vec v[T];
  UNROLL for (int t = 0; t < T; ++t) v[t] = load(h + t * LANES);
  for (int j = 0; j < size; ++j) {
    const vec x = load(s + j * W);
    UNROLL for (int t = 0; t < T; ++t) v[t] += x * p[t][j];
  }
  UNROLL for (int t = 0; t < T; ++t) store(h + t * LANES, v[t]);
}
static void add_scalars(const Nodes& of, int size, const num* s, num* h) {
  for (int n = 0; n < of.count; ++n, s += size * W) {
    num* const x = h + row_of_scalars(n, 0);
    int e = 0;
    for (; e + 8 <= of.rows[n]; e += 8) add_scalars_of_rows<8>(s, of.p[n] + e, size, x + e * LANES);
    for (; e + 4 <= of.rows[n]; e += 4) add_scalars_of_rows<4>(s, of.p[n] + e, size, x + e * LANES);
    for (; e < of.rows[n]; ++e) add_scalars_of_rows<1>(s, of.p[n] + e, size, x + e * LANES);
  }
}
// the gradient by p: sum_k G[k, u, m] h[e, k] of T rows, for W numbers u, m
template <int T> static inline void add_products_of_rows(const vec* of, const num* h, num* p, i64 step) {
  vec v[T];
  UNROLL for (int t = 0; t < T; ++t) v[t] = load(p + t * step);
  UNROLL for (int k = 0; k < W; ++k) UNROLL for (int t = 0; t < T; ++t) v[t] += of[k] * h[t * LANES + k];
  UNROLL for (int t = 0; t < T; ++t) store(p + t * step, v[t]);
}
static void add_products(const Nodes& of, int size, const num* s, const num* h, num* p) {
  const i64 step = whole_vectors(size);
  for (int n = 0; n < of.count; ++n, s += size * W, p += EDGES * step) {
    const num* const x = h + row_of_scalars(n, 0);
    for (int j = 0; j < size; j += W) {
      vec v[W];
      UNROLL for (int l = 0; l < W; ++l) v[l] = j + l < size ? load(s + (j + l) * W) : vec{};
      transpose(v);
      int e = 0;
      for (; e + 4 <= of.rows[n]; e += 4) add_products_of_rows<4>(v, x + e * LANES, p + e * step + j, step);
      for (; e < of.rows[n]; ++e) add_products_of_rows<1>(v, x + e * LANES, p + e * step + j, step);
    }
  }
}
// results move from scratch into memory
static void add_out(const Nodes& of, const num* from, real* out) {
  for (int n = 0; n < of.count; ++n)
    for (int o = 0; o < OUT; ++o, from += W) out[of.node[n] * OUT + o] += lane_sum(load(from));
}
static void give_scalars(const Nodes& of, const num* from, real* h) {
  for (int n = 0; n < of.count; ++n) for (int e = 0; e < of.rows[n]; ++e)
    for (int k = 0; k < K; ++k) h[of.row[n][e] * K + k] = from[row_of_scalars(n, e) + k];
}
static void give_products(const Nodes& of, int size, const num* from, real* p) {
  for (int n = 0; n < of.count; ++n) for (int e = 0; e < of.rows[n]; ++e)
    for (int j = 0; j < size; ++j) p[of.row[n][e] * P + j] = from[(n * EDGES + e) * (i64)whole_vectors(size) + j];
}
static void zero_products(const Nodes& of, int size, real* p) {
  for (int n = 0; n < of.count; ++n) for (int e = 0; e < of.rows[n]; ++e) zero(p + of.row[n][e] * P, size);
}
