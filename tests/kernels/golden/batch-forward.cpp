// batch schedule: tiles of 16 rows, 16 lanes of float32
//   path 0: 1x0e x 2x1o -> 2x1o (uvw); matrix products, 3 non-zeros
//   path 1: 2x1o x 2x1o -> 3x0e (uvw); matrix products, 3 non-zeros
// opens out
// prelude 5494c81c7a37
// path 0: 1x0e x 2x1o -> 2x1o (uvw)
static void path_0(int n, num* s_x1, num* s_x2, num* a_out, num* P, const num* weights) {
  for (int u0 = 0; u0 < 1; u0 += 1) {
    const int u1 = least(1, u0 + 1);
    for (int u = u0; u < u1; ++u) for (int v = 0; v < 2; ++v) for (int r = 0; r < R; r += W) {
      vec x[1]; x[0] = load(s_x1 + (0 + u * 1) * (i64)R + 0 * R + r);
      vec y[3]; y[0] = load(s_x2 + (0 + v * 3) * (i64)R + 0 * R + r); y[1] = load(s_x2 + (0 + v * 3) * (i64)R + 1 * R + r); y[2] = load(s_x2 + (0 + v * 3) * (i64)R + 2 * R + r);
      const vec v1 = x[0] * y[0];
      vec sum_P_0 = 0.70710677f * v1;
      const vec v2 = x[0] * y[1];
      vec sum_P_1 = 0.70710677f * v2;
      const vec v3 = x[0] * y[2];
      vec sum_P_2 = 0.70710677f * v3;
      store(P + ((u - u0) * 2 + v) * 3 * R + 0 * R + r, sum_P_0);
      store(P + ((u - u0) * 2 + v) * 3 * R + 1 * R + r, sum_P_1);
      store(P + ((u - u0) * 2 + v) * 3 * R + 2 * R + r, sum_P_2);
    }
    const int count = (u1 - u0) * 2;
    multiply<3 * R>(true, a_out + 3 * (i64)R, 3 * R, weights + 0 + u0 * 4, 1, 2, P, 3 * R, 2, count);
  }
}
// path 1: 2x1o x 2x1o -> 3x0e (uvw)
static void path_1(int n, num* s_x1, num* s_x2, num* a_out, num* P, const num* weights) {
  for (int u0 = 0; u0 < 2; u0 += 2) {
    const int u1 = least(2, u0 + 2);
    for (int u = u0; u < u1; ++u) for (int v = 0; v < 2; ++v) for (int r = 0; r < R; r += W) {
      vec x[3]; x[0] = load(s_x1 + (1 + u * 3) * (i64)R + 0 * R + r); x[1] = load(s_x1 + (1 + u * 3) * (i64)R + 1 * R + r); x[2] = load(s_x1 + (1 + u * 3) * (i64)R + 2 * R + r);
      vec y[3]; y[0] = load(s_x2 + (0 + v * 3) * (i64)R + 0 * R + r); y[1] = load(s_x2 + (0 + v * 3) * (i64)R + 1 * R + r); y[2] = load(s_x2 + (0 + v * 3) * (i64)R + 2 * R + r);
      const vec v1 = x[0] * y[0];
      vec sum_P_0 = 0.28867513f * v1;
      const vec v2 = x[1] * y[1];
      sum_P_0 += 0.28867513f * v2;
      const vec v3 = x[2] * y[2];
      sum_P_0 += 0.28867513f * v3;
      store(P + ((u - u0) * 2 + v) * 1 * R + 0 * R + r, sum_P_0);
    }
    const int count = (u1 - u0) * 2;
    multiply<1 * R>(true, a_out + 0 * (i64)R, 1 * R, weights + 4 + u0 * 6, 1, 3, P, 1 * R, 3, count);
  }
}
static void tile(int n, const real* const* p_x1, const real* const* p_x2, real* const* q_out, num* s_x1, num* s_x2, num* a_out, num* P, const num* weights) {
  stage_rows(p_x1, R, n, 0, 1, s_x1 + 0 * R, 1);
  stage_rows(p_x1, R, n, 1, 6, s_x1 + 1 * R, 1);
  stage_rows(p_x2, R, n, 0, 6, s_x2 + 0 * R, 1);
  clear(a_out, 9 * R);
  path_0(n, s_x1, s_x2, a_out, P, weights);
  path_1(n, s_x1, s_x2, a_out, P, weights);
  unstage_rows(a_out + 0 * R, q_out, R, n, 0, 3, 1);
  unstage_rows(a_out + 3 * R, q_out, R, n, 3, 6, 1);
}
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* const* given, real* const* opened, const void*, i64 rows, i64 channels) {
  const real* const x1 = given[0];
  const real* const x2 = given[1];
  const real* const w = given[2];
  real* const d_out = opened[0];
  int fault = 0;
  expect_writes(d_out, rows * 9 * (i64)sizeof(real));
  const i64 span = 416;
  const i64 blocks = rows ? (rows + span - 1) / span : 0;
  const Room<num> weights_room(16); num* const weights = weights_room.at; if (!weights) return 1;
  for (i64 m = 0; m < 16; ++m) weights[m] = widen(w[m]);
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(blocks, rows * 38, 65536, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(448); num* const scratch = scratch_room.at;
    num* const s_x1 = scratch + 0;
    num* const s_x2 = scratch + 112;
    num* const a_out = scratch + 208;
    num* const P = scratch + 352;
    for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < blocks;) {
      if (!scratch) { *failed = 1; continue; }
      const i64 begin = b * span, end = least(rows, begin + span);
      for (i64 q = begin; q < end; q += R) {
        const int n = least(R, end - q);
        const real* p_x1[R];
        const real* p_x2[R];
        real* q_out[R];
        for (int r = 0; r < n; ++r) {
          const i64 e = q + r;
          p_x1[r] = x1 + e * 7;
          p_x2[r] = x2 + e * 6;
          q_out[r] = d_out + e * 9;
        }
        tile(n, p_x1, p_x2, q_out, s_x1, s_x2, a_out, P, weights);
      }
    }
  });
  return fault;
}
