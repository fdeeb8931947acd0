// channel schedule: 4 lanes of float64, 1 tables
//   path 0: 16x1o x 1x1o -> 16x0e (uvu); x1[16], w[16], out[16]; 3 non-zeros
// opens x2, w
// prelude de754c8b6d65
static void tabulate(int n, num* T, const real* const* p_x2, num* t_x2) {
  for (int r = 0; r < W; ++r) {
    for (int e = 0; e < 3; ++e) t_x2[e * W + r] = r < n ? widen(p_x2[r][e]) : 0;
  }
  // T[i, k] of path 0
  for (int v = 0; v < 1; ++v) {
    const num* x = t_x2 + (0 + v * 3) * W;
    num* t = T + (0 + v * 3) * W;
    const vec x0 = load(x + 0 * W);
    const vec x1 = load(x + 1 * W);
    const vec x2 = load(x + 2 * W);
    store(t + 0 * W, 0.5773502691896257 * x0);
    store(t + 1 * W, 0.5773502691896258 * x1);
    store(t + 2 * W, 0.5773502691896257 * x2);
  }
}
static void row(const real* x1, const real* x2, const real* w, const real* out, real* d_x2, real* d_w, num* t_x2, num* r_x2, const num* T, const num* s_w, num* a_w) {
  clear(r_x2 + 0 * W, 3 * W);
  // path 0: 16x1o x 1x1o -> 16x0e (uvu)
  for (int v = 0; v < 1; ++v) {
    const num* t = T + (0 + v * 3) * W;
    vec s[3] = {};
    for (int c = 0; c < 16; c += W) {
      vec x[3]; Tile<3>::fetch_items(x1 + 0 + c * 3, x);
      vec g[1]; g[0] = fetch(out + 0 + c);
      vec u[1]; u[0] = load(s_w + 0 + v * 16 + c);
      const vec v1 = u[0] * g[0];
      const vec v2 = t[0 * W] * x[0];
      s[0] += v1 * x[0];
      const vec v3 = v2 + t[1 * W] * x[1];
      s[1] += v1 * x[1];
      const vec v4 = v3 + t[2 * W] * x[2];
      s[2] += v1 * x[2];
      vec sum_w_0 = g[0] * v4;
      add(a_w + 0 + v * 16 + c, sum_w_0);
    }
    add(r_x2 + (0 + v * 3 + 0) * W, 0.5773502691896257 * s[0]);
    add(r_x2 + (0 + v * 3 + 1) * W, 0.5773502691896258 * s[1]);
    add(r_x2 + (0 + v * 3 + 2) * W, 0.5773502691896257 * s[2]);
  }
  for (int e = 0; e < 3; ++e) d_x2[e] = narrow(lane_sum(load(r_x2 + e * W)));
}
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* const* given, real* const* opened, const void*, i64 rows, i64 channels) {
  const real* const x1 = given[0];
  const real* const x2 = given[1];
  const real* const w = given[2];
  const real* const out = given[3];
  real* const d_x2 = opened[0];
  real* const d_w = opened[1];
  int fault = 0;
  expect_writes(d_x2, rows * 3 * (i64)sizeof(real));
  const i64 room = 1048576;  // blocks that fit into 64 MB of sums
  const i64 most = room < 32 ? room : 32;
  const i64 span = ((rows + most - 1) / most + 4) / 4 * 4;
  const i64 blocks = rows ? (rows + span - 1) / span : 0;
  const Room<num> weights_room(16); num* const weights = weights_room.at; if (!weights) return 1;
  stage<1, 16, 1>(w + 0, weights + 0);
  const Room<num> sums_room((blocks + 1) * 16); num* const sums = sums_room.at; if (!sums) return 1;
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(blocks, rows * 83, 65536, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(36); num* const scratch = scratch_room.at;
    num* const t_x2 = scratch + 0;
    num* const r_x2 = scratch + 12;
    num* const T = scratch + 24;
    for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < blocks;) {
      if (!scratch) { *failed = 1; continue; }
      num* const a_w = sums + b * 16; clear(a_w, 16);
      const i64 end = least(rows, (b + 1) * span);
      for (i64 q = b * span; q < end; q += W) {
        const int n = least(W, end - q);
        const real* p_x2[W] = {};
        for (int r = 0; r < n; ++r) { const i64 e = q + r; p_x2[r] = x2 + e * 3; }
        tabulate(n, T, p_x2, t_x2);
        for (int r = 0; r < n; ++r) {
          const i64 e = q + r;
          row(x1 + e * 48, x2 + e * 3, w, out + e * 16, d_x2 + e * 3, d_w, t_x2, r_x2, T + r, weights, a_w);
        }
      }
    }
  });
  if (!blocks) clear(sums, 16);
  for (i64 b = 1; b < blocks; ++b) for (i64 m = 0; m < 16; m += W) add(sums + m, load(sums + b * 16 + m));
  unstage<1, 16, 1>(sums + 0, d_w + 0);
  return fault;
}
