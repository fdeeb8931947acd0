// batch schedule: tiles of 4 rows, 4 lanes of float64
//   path 0: 2x1o x 1x1o -> 3x0e (uvw); matrix products, 3 non-zeros
// opens x1, x2, w
// prelude 5a490909f003
// path 0: 2x1o x 1x1o -> 3x0e (uvw)
static void path_0(int n, num* s_x1, num* s_x2, num* s_out, num* a_x1, num* a_x2, num* P, num* D, const num* weights, num* a_w) {
  for (int u0 = 0; u0 < 2; u0 += 2) {
    const int u1 = least(2, u0 + 2);
    for (int u = u0; u < u1; ++u) for (int v = 0; v < 1; ++v) for (int r = 0; r < R; r += W) {
      vec x[3]; x[0] = load(s_x1 + (0 + u * 3) * (i64)R + 0 * R + r); x[1] = load(s_x1 + (0 + u * 3) * (i64)R + 1 * R + r); x[2] = load(s_x1 + (0 + u * 3) * (i64)R + 2 * R + r);
      vec y[3]; y[0] = load(s_x2 + (0 + v * 3) * (i64)R + 0 * R + r); y[1] = load(s_x2 + (0 + v * 3) * (i64)R + 1 * R + r); y[2] = load(s_x2 + (0 + v * 3) * (i64)R + 2 * R + r);
      const vec v1 = x[0] * y[0];
      vec sum_P_0 = 0.408248290463863 * v1;
      const vec v2 = x[1] * y[1];
      sum_P_0 += 0.4082482904638631 * v2;
      const vec v3 = x[2] * y[2];
      sum_P_0 += 0.408248290463863 * v3;
      store(P + ((u - u0) * 1 + v) * 1 * R + 0 * R + r, sum_P_0);
    }
    const int count = (u1 - u0) * 1;
    correlate(a_w + 0 + u0 * 3 + 0, 3, P, s_out + 0 * (i64)R, count, 3, 1 * R);
    multiply<1 * R>(false, D, 1 * R, weights + 0 + u0 * 3, 3, 1, s_out + 0 * (i64)R, 1 * R, count, 3);
    for (int u = u0; u < u1; ++u) for (int v = 0; v < 1; ++v) for (int r = 0; r < R; r += W) {
      vec x[3]; x[0] = load(s_x1 + (0 + u * 3) * (i64)R + 0 * R + r); x[1] = load(s_x1 + (0 + u * 3) * (i64)R + 1 * R + r); x[2] = load(s_x1 + (0 + u * 3) * (i64)R + 2 * R + r);
      vec y[3]; y[0] = load(s_x2 + (0 + v * 3) * (i64)R + 0 * R + r); y[1] = load(s_x2 + (0 + v * 3) * (i64)R + 1 * R + r); y[2] = load(s_x2 + (0 + v * 3) * (i64)R + 2 * R + r);
      vec d[1]; d[0] = load(D + ((u - u0) * 1 + v) * 1 * R + 0 * R + r);
      const vec h1 = 0.408248290463863 * d[0];
      const vec h2 = y[0] * h1;
      vec sum_x2_0 = x[0] * h1;
      vec sum_x1_0 = h2;
      const vec h3 = 0.4082482904638631 * d[0];
      const vec h4 = y[1] * h3;
      vec sum_x2_1 = x[1] * h3;
      vec sum_x1_1 = h4;
      const vec h5 = y[2] * h1;
      vec sum_x2_2 = x[2] * h1;
      vec sum_x1_2 = h5;
      add(a_x2 + (0 + v * 3) * (i64)R + 0 * R + r, sum_x2_0);
      add(a_x2 + (0 + v * 3) * (i64)R + 1 * R + r, sum_x2_1);
      add(a_x2 + (0 + v * 3) * (i64)R + 2 * R + r, sum_x2_2);
      add(a_x1 + (0 + u * 3) * (i64)R + 0 * R + r, sum_x1_0);
      add(a_x1 + (0 + u * 3) * (i64)R + 1 * R + r, sum_x1_1);
      add(a_x1 + (0 + u * 3) * (i64)R + 2 * R + r, sum_x1_2);
    }
  }
}
static void tile(int n, const real* const* p_x1, const real* const* p_x2, const real* const* p_out, real* const* q_x1, real* const* q_x2, num* s_x1, num* s_x2, num* s_out, num* a_x1, num* a_x2, num* P, num* D, const num* weights, num* a_w) {
  stage_rows(p_x1, R, n, 0, 6, s_x1 + 0 * R, 1);
  stage_rows(p_x2, R, n, 0, 3, s_x2 + 0 * R, 1);
  stage_rows(p_out, R, n, 0, 3, s_out + 0 * R, 1);
  clear(a_x1, 6 * R);
  clear(a_x2, 3 * R);
  path_0(n, s_x1, s_x2, s_out, a_x1, a_x2, P, D, weights, a_w);
  unstage_rows(a_x1 + 0 * R, q_x1, R, n, 0, 6, 1);
  unstage_rows(a_x2 + 0 * R, q_x2, R, n, 0, 3, 1);
}
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* const* given, real* const* opened, const void*, i64 rows, i64 channels) {
  const real* const x1 = given[0];
  const real* const x2 = given[1];
  const real* const w = given[2];
  const real* const out = given[3];
  real* const d_x1 = opened[0];
  real* const d_x2 = opened[1];
  real* const d_w = opened[2];
  int fault = 0;
  expect_writes(d_x1, rows * 6 * (i64)sizeof(real));
  expect_writes(d_x2, rows * 3 * (i64)sizeof(real));
  const i64 room = 2097152;  // blocks that fit into 64 MB of sums
  const i64 most = room < 32 ? room : 32;
  const i64 span = ((rows + most - 1) / most + 4) / 4 * 4;
  const i64 blocks = rows ? (rows + span - 1) / span : 0;
  const Room<num> weights_room(8); num* const weights = weights_room.at; if (!weights) return 1;
  for (i64 m = 0; m < 6; ++m) weights[m] = widen(w[m]);
  const Room<num> sums_room((blocks + 1) * 8); num* const sums = sums_room.at; if (!sums) return 1;
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(blocks, rows * 18, 65536, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(100); num* const scratch = scratch_room.at;
    num* const s_x1 = scratch + 0;
    num* const s_x2 = scratch + 24;
    num* const s_out = scratch + 36;
    num* const a_x1 = scratch + 48;
    num* const a_x2 = scratch + 72;
    num* const P = scratch + 84;
    num* const D = scratch + 92;
    for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < blocks;) {
      if (!scratch) { *failed = 1; continue; }
      num* const a_w = sums + b * 8; clear(a_w, 8);
      const i64 begin = b * span, end = least(rows, begin + span);
      for (i64 q = begin; q < end; q += R) {
        const int n = least(R, end - q);
        const real* p_x1[R];
        const real* p_x2[R];
        const real* p_out[R];
        real* q_x1[R];
        real* q_x2[R];
        for (int r = 0; r < n; ++r) {
          const i64 e = q + r;
          p_x1[r] = x1 + e * 6;
          p_x2[r] = x2 + e * 3;
          p_out[r] = out + e * 3;
          q_x1[r] = d_x1 + e * 6;
          q_x2[r] = d_x2 + e * 3;
        }
        tile(n, p_x1, p_x2, p_out, q_x1, q_x2, s_x1, s_x2, s_out, a_x1, a_x2, P, D, weights, a_w);
      }
    }
  });
  if (!blocks) clear(sums, 8);
  for (i64 b = 1; b < blocks; ++b) for (i64 m = 0; m < 8; m += W) add(sums + m, load(sums + b * 8 + m));
  for (i64 m = 0; m < 6; ++m) d_w[m] = narrow(sums[m]);
  return fault;
}
