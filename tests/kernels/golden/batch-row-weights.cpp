// batch schedule: tiles of 16 rows, 16 lanes of float32
//   path 0: 2x1o x 1x1o -> 3x0e (uvw); matrix products, 3 non-zeros
// opens w
// prelude 5494c81c7a37
// path 0: 2x1o x 1x1o -> 3x0e (uvw)
static void path_0(int n, num* s_x1, num* s_x2, num* s_out, num* P, num* a_w, real* const* q_w) {
  for (int u0 = 0; u0 < 2; u0 += 2) {
    const int u1 = least(2, u0 + 2);
    for (int u = u0; u < u1; ++u) for (int v = 0; v < 1; ++v) for (int r = 0; r < R; r += W) {
      vec x[3]; x[0] = load(s_x1 + (0 + u * 3) * (i64)R + 0 * R + r); x[1] = load(s_x1 + (0 + u * 3) * (i64)R + 1 * R + r); x[2] = load(s_x1 + (0 + u * 3) * (i64)R + 2 * R + r);
      vec y[3]; y[0] = load(s_x2 + (0 + v * 3) * (i64)R + 0 * R + r); y[1] = load(s_x2 + (0 + v * 3) * (i64)R + 1 * R + r); y[2] = load(s_x2 + (0 + v * 3) * (i64)R + 2 * R + r);
      const vec v1 = x[0] * y[0];
      vec sum_P_0 = 0.4082483f * v1;
      const vec v2 = x[1] * y[1];
      sum_P_0 += 0.4082483f * v2;
      const vec v3 = x[2] * y[2];
      sum_P_0 += 0.4082483f * v3;
      store(P + ((u - u0) * 1 + v) * 1 * R + 0 * R + r, sum_P_0);
    }
    for (int u2 = u0; u2 < u1; u2 += 2) {
      const int u3 = least(u1, u2 + 2);
      for (int u = u2; u < u3; ++u) {
        for (int m = 0; m < 1; ++m) for (int r = 0; r < R; r += W) {
          vec c[1]; c[0] = load(P + (((u - u0) * 1 + m) * 1) * R + 0 * R + r);
          for (int w = 0; w < 3; ++w) {
            vec g[1]; g[0] = load(s_out + (0 + w * 1) * (i64)R + 0 * R + r);
            store(a_w + (((u - u2) * 1 + m) * 3 + w) * R + r, c[0] * g[0]);
          }
        }
      }
      unstage_rows(a_w, q_w, R, n, 0 + u2 * 3, (u3 - u2) * 3, 1);
    }
  }
}
static void tile(int n, const real* const* p_x1, const real* const* p_x2, const real* const* p_out, num* s_x1, num* s_x2, num* s_out, num* P, num* a_w, real* const* q_w) {
  stage_rows(p_x1, R, n, 0, 2, s_x1 + 0 * R, 3);
  stage_rows(p_x1, R, n, 2, 2, s_x1 + 1 * R, 3);
  stage_rows(p_x1, R, n, 4, 2, s_x1 + 2 * R, 3);
  stage_rows(p_x2, R, n, 0, 1, s_x2 + 0 * R, 3);
  stage_rows(p_x2, R, n, 1, 1, s_x2 + 1 * R, 3);
  stage_rows(p_x2, R, n, 2, 1, s_x2 + 2 * R, 3);
  stage_rows(p_out, R, n, 0, 3, s_out + 0 * R, 1);
  path_0(n, s_x1, s_x2, s_out, P, a_w, q_w);
}
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* const* given, real* const* opened, const void*, i64 rows, i64 channels) {
  const real* const x1 = given[0];
  const real* const x2 = given[1];
  const real* const out = given[3];
  real* const d_w = opened[0];
  int fault = 0;
  expect_writes(d_w, rows * 6 * (i64)sizeof(real));
  const i64 span = 896;
  const i64 blocks = rows ? (rows + span - 1) / span : 0;
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(blocks, rows * 18, 65536, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(320); num* const scratch = scratch_room.at;
    num* const s_x1 = scratch + 0;
    num* const s_x2 = scratch + 96;
    num* const s_out = scratch + 144;
    num* const P = scratch + 192;
    num* const a_w = scratch + 224;
    for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < blocks;) {
      if (!scratch) { *failed = 1; continue; }
      const i64 begin = b * span, end = least(rows, begin + span);
      for (i64 q = begin; q < end; q += R) {
        const int n = least(R, end - q);
        const real* p_x1[R];
        const real* p_x2[R];
        const real* p_out[R];
        real* q_w[R];
        for (int r = 0; r < n; ++r) {
          const i64 e = q + r;
          p_x1[r] = x1 + e * 6;
          p_x2[r] = x2 + e * 3;
          p_out[r] = out + e * 3;
          q_w[r] = d_w + e * 6;
        }
        tile(n, p_x1, p_x2, p_out, s_x1, s_x2, s_out, P, a_w, q_w);
      }
    }
  });
  return fault;
}
