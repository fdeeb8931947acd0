// batch schedule: tiles of 16 rows, 16 lanes of float32
//   path 0: 16x1o x 16x1o -> 256x0e (uvuv); 3 non-zeros
//   path 1: 16x1o x 16x1o -> 16x1e (uvv); 6 non-zeros
//   path 2: 16x1o x 16x1o -> 16x1e (uvu); 6 non-zeros
// opens out
// prelude 5494c81c7a37
// path 0: 16x1o x 16x1o -> 256x0e (uvuv)
static void path_0(int n, num* s_x1, num* s_x2, num* a_out, const num* weights) {
  for (int u = 0; u < 16; ++u) {
    for (int v = 0; v < 16; ++v) for (int r = 0; r < R; r += W) {
      vec x[3]; x[0] = load(s_x1 + (0 + u * 3) * (i64)R + 0 * R + r); x[1] = load(s_x1 + (0 + u * 3) * (i64)R + 1 * R + r); x[2] = load(s_x1 + (0 + u * 3) * (i64)R + 2 * R + r);
      vec y[3]; y[0] = load(s_x2 + (0 + v * 3) * (i64)R + 0 * R + r); y[1] = load(s_x2 + (0 + v * 3) * (i64)R + 1 * R + r); y[2] = load(s_x2 + (0 + v * 3) * (i64)R + 2 * R + r);
      const vec v1 = x[0] * y[0];
      vec sum_out_0 = 0.57735026f * v1;
      const vec v2 = x[1] * y[1];
      sum_out_0 += 0.57735026f * v2;
      const vec v3 = x[2] * y[2];
      sum_out_0 += 0.57735026f * v3;
      add(a_out + (0 + (u * 16 + v) * 1) * (i64)R + 0 * R + r, sum_out_0);
    }
  }
}
// path 1: 16x1o x 16x1o -> 16x1e (uvv)
static void path_1(int n, num* s_x1, num* s_x2, num* a_out, const num* weights) {
  for (int u = 0; u < 16; ++u) {
    for (int v = 0; v < 16; ++v) for (int r = 0; r < R; r += W) {
      vec x[3]; x[0] = load(s_x1 + (0 + u * 3) * (i64)R + 0 * R + r); x[1] = load(s_x1 + (0 + u * 3) * (i64)R + 1 * R + r); x[2] = load(s_x1 + (0 + u * 3) * (i64)R + 2 * R + r);
      vec y[3]; y[0] = load(s_x2 + (0 + v * 3) * (i64)R + 0 * R + r); y[1] = load(s_x2 + (0 + v * 3) * (i64)R + 1 * R + r); y[2] = load(s_x2 + (0 + v * 3) * (i64)R + 2 * R + r);
      const vec weight[1] = {vec{} + weights[0 + (u * 16 + v)]};
      const vec v1 = weight[0] * x[0];
      const vec v2 = v1 * y[1];
      vec sum_out_2 = 0.125f * v2;
      const vec v3 = v1 * y[2];
      vec sum_out_1 = -0.125f * v3;
      const vec v4 = weight[0] * x[1];
      const vec v5 = v4 * y[0];
      sum_out_2 += -0.125f * v5;
      const vec v6 = v4 * y[2];
      vec sum_out_0 = 0.125f * v6;
      const vec v7 = weight[0] * x[2];
      const vec v8 = v7 * y[0];
      sum_out_1 += 0.125f * v8;
      const vec v9 = v7 * y[1];
      sum_out_0 += -0.125f * v9;
      add(a_out + (256 + v * 3) * (i64)R + 2 * R + r, sum_out_2);
      add(a_out + (256 + v * 3) * (i64)R + 1 * R + r, sum_out_1);
      add(a_out + (256 + v * 3) * (i64)R + 0 * R + r, sum_out_0);
    }
  }
}
// path 2: 16x1o x 16x1o -> 16x1e (uvu)
static void path_2(int n, num* s_x1, num* s_x2, num* a_out, const num* weights) {
  for (int u = 0; u < 16; ++u) {
    for (int v = 0; v < 16; ++v) for (int r = 0; r < R; r += W) {
      vec x[3]; x[0] = load(s_x1 + (0 + u * 3) * (i64)R + 0 * R + r); x[1] = load(s_x1 + (0 + u * 3) * (i64)R + 1 * R + r); x[2] = load(s_x1 + (0 + u * 3) * (i64)R + 2 * R + r);
      vec y[3]; y[0] = load(s_x2 + (0 + v * 3) * (i64)R + 0 * R + r); y[1] = load(s_x2 + (0 + v * 3) * (i64)R + 1 * R + r); y[2] = load(s_x2 + (0 + v * 3) * (i64)R + 2 * R + r);
      const vec weight[1] = {vec{} + weights[256 + (u * 16 + v)]};
      const vec v1 = weight[0] * x[0];
      const vec v2 = v1 * y[1];
      vec sum_out_2 = 0.125f * v2;
      const vec v3 = v1 * y[2];
      vec sum_out_1 = -0.125f * v3;
      const vec v4 = weight[0] * x[1];
      const vec v5 = v4 * y[0];
      sum_out_2 += -0.125f * v5;
      const vec v6 = v4 * y[2];
      vec sum_out_0 = 0.125f * v6;
      const vec v7 = weight[0] * x[2];
      const vec v8 = v7 * y[0];
      sum_out_1 += 0.125f * v8;
      const vec v9 = v7 * y[1];
      sum_out_0 += -0.125f * v9;
      add(a_out + (256 + u * 3) * (i64)R + 2 * R + r, sum_out_2);
      add(a_out + (256 + u * 3) * (i64)R + 1 * R + r, sum_out_1);
      add(a_out + (256 + u * 3) * (i64)R + 0 * R + r, sum_out_0);
    }
  }
}
static void tile(int n, const real* const* p_x1, const real* const* p_x2, real* const* q_out, num* s_x1, num* s_x2, num* a_out, const num* weights) {
  stage_rows(p_x1, R, n, 0, 48, s_x1 + 0 * R, 1);
  stage_rows(p_x2, R, n, 0, 48, s_x2 + 0 * R, 1);
  clear(a_out, 304 * R);
  path_0(n, s_x1, s_x2, a_out, weights);
  path_1(n, s_x1, s_x2, a_out, weights);
  path_2(n, s_x1, s_x2, a_out, weights);
  unstage_rows(a_out + 0 * R, q_out, R, n, 0, 256, 1);
  unstage_rows(a_out + 256 * R, q_out, R, n, 256, 48, 1);
}
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* const* given, real* const* opened, const void*, i64 rows, i64 channels) {
  const real* const x1 = given[0];
  const real* const x2 = given[1];
  const real* const w = given[2];
  real* const d_out = opened[0];
  int fault = 0;
  expect_writes(d_out, rows * 304 * (i64)sizeof(real));
  const i64 span = 16;
  const i64 blocks = rows ? (rows + span - 1) / span : 0;
  const Room<num> weights_room(512); num* const weights = weights_room.at; if (!weights) return 1;
  for (i64 m = 0; m < 512; ++m) weights[m] = widen(w[m]);
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(blocks, rows * 912, 65536, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(6400); num* const scratch = scratch_room.at;
    num* const s_x1 = scratch + 0;
    num* const s_x2 = scratch + 768;
    num* const a_out = scratch + 1536;
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
          p_x1[r] = x1 + e * 48;
          p_x2[r] = x2 + e * 48;
          q_out[r] = d_out + e * 304;
        }
        tile(n, p_x1, p_x2, q_out, s_x1, s_x2, a_out, weights);
      }
    }
  });
  return fault;
}
