// Segments of many rows in scratch, for vectors over rows.  Needs: transpose, fetch, put.

// numbers from..from+count of n rows <-> scratch [number * stride][R], R whole vectors; rows past n read as zero
static inline void stage_rows(const real* const* p, int R, int n, i64 from, int count, num* s, int stride) {
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
static inline void unstage_rows(const num* s, real* const* p, int R, int n, i64 from, int count, int stride) {
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
static inline void add_rows(const num* s, real* const* p, int R, int n, i64 from, int count, int stride) {
  for (int l = 0; l < n; ++l)
    for (int e = 0; e < count; ++e) p[l][from + e] = narrow(widen(p[l][from + e]) + s[(i64)e * stride * R + l]);
}
