// channel schedule: 16 lanes of float32, 2 tables
//   path 0: 16x1o x 1x1o -> 16x0e (uvu); x1[16] staged, w[16], out[16]; 3 non-zeros
//   path 1: 16x1o x 1x0e -> 16x1o (uvu); x1[16] staged, w[16], out[16]; 3 non-zeros
// opens out
// prelude c5f32ff1a758
static void tabulate(int n, num* T, const real* const* p_x2, num* t_x2) {
  for (int r = 0; r < W; ++r) {
    for (int e = 0; e < 1; ++e) t_x2[e * W + r] = r < n ? widen(p_x2[r][e]) : 0;
    for (int e = 1; e < 4; ++e) t_x2[e * W + r] = r < n ? widen(p_x2[r][e]) : 0;
  }
  // T[i, k] of path 0
  for (int v = 0; v < 1; ++v) {
    const num* x = t_x2 + (1 + v * 3) * W;
    num* t = T + (0 + v * 3) * W;
    const vec x0 = load(x + 0 * W);
    const vec x1 = load(x + 1 * W);
    const vec x2 = load(x + 2 * W);
    store(t + 0 * W, 0.57735026f * x0);
    store(t + 1 * W, 0.57735026f * x1);
    store(t + 2 * W, 0.57735026f * x2);
  }
  // T[i, k] of path 1
  for (int v = 0; v < 1; ++v) {
    const num* x = t_x2 + (0 + v * 1) * W;
    num* t = T + (3 + v * 3) * W;
    const vec x0 = load(x + 0 * W);
    store(t + 0 * W, 1.0f * x0);
    store(t + 1 * W, x0);
    store(t + 2 * W, 1.0f * x0);
  }
}
static void row(const real* x1, const real* x2, const real* w, real* d_out, num* s_x1, num* t_x2, const num* T) {
  stage<1, 16, 3>(x1 + 0, s_x1 + 0);
  // path 0: 16x1o x 1x1o -> 16x0e (uvu)
  for (int v = 0; v < 1; ++v) {
    const num* t = T + (0 + v * 3) * W;
    for (int c = 0; c < 16; c += W) {
      vec x[3]; x[0] = load(s_x1 + 0 + c); x[1] = load(s_x1 + 16 + c); x[2] = load(s_x1 + 32 + c);
      vec u[1]; u[0] = fetch(w + 0 + c);
      const vec v1 = t[0 * W] * x[0] + t[1 * W] * x[1] + t[2 * W] * x[2];
      vec sum_out_0 = u[0] * v1;
      put(d_out + 0 + c, sum_out_0);
    }
  }
  // path 1: 16x1o x 1x0e -> 16x1o (uvu)
  for (int v = 0; v < 1; ++v) {
    const num* t = T + (3 + v * 3) * W;
    for (int c = 0; c < 16; c += W) {
      vec x[3]; x[0] = load(s_x1 + 0 + c); x[1] = load(s_x1 + 16 + c); x[2] = load(s_x1 + 32 + c);
      vec u[1]; u[0] = fetch(w + 16 + c);
      const vec v1 = t[0 * W] * x[0];
      vec sum_out_0 = u[0] * v1;
      const vec v2 = t[1 * W] * x[1];
      vec sum_out_1 = u[0] * v2;
      const vec v3 = t[2 * W] * x[2];
      vec sum_out_2 = u[0] * v3;
      const vec o_out[3] = {sum_out_0, sum_out_1, sum_out_2};
      Tile<3>::put_items(d_out + 16 + c * 3, o_out);
    }
  }
}
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* const* given, real* const* opened, const void*, i64 rows, i64 channels) {
  const real* const x1 = given[0];
  const real* const x2 = given[1];
  const real* const w = given[2];
  real* const d_out = opened[0];
  int fault = 0;
  expect_writes(d_out, rows * 64 * (i64)sizeof(real));
  const i64 span = 96;
  const i64 blocks = rows ? (rows + span - 1) / span : 0;
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(blocks, rows * 148, 65536, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(208); num* const scratch = scratch_room.at;
    num* const s_x1 = scratch + 0;
    num* const t_x2 = scratch + 48;
    num* const T = scratch + 112;
    for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < blocks;) {
      if (!scratch) { *failed = 1; continue; }
      const i64 end = least(rows, (b + 1) * span);
      for (i64 q = b * span; q < end; q += W) {
        const int n = least(W, end - q);
        const real* p_x2[W] = {};
        for (int r = 0; r < n; ++r) { const i64 e = q + r; p_x2[r] = x2 + e * 4; }
        tabulate(n, T, p_x2, t_x2);
        for (int r = 0; r < n; ++r) {
          const i64 e = q + r;
          row(x1 + e * 48, x2 + e * 4, w + e * 32, d_out + e * 64, s_x1, t_x2, T + r);
        }
      }
    }
  });
  return fault;
}
