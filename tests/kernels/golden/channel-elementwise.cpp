// channel schedule: 4 lanes of float64, 0 tables
//   path 0: 16x1o x 16x1o -> 16x1e (uuu); x1[16], x2[16], out[16]; 6 non-zeros
// opens x1
// prelude de754c8b6d65
static void tabulate(int n, num* T) {
}
static void row(const real* x2, const real* w, const real* out, real* d_x1) {
  // path 0: 16x1o x 16x1o -> 16x1e (uuu)
  for (int v = 0; v < 1; ++v) {
    for (int c = 0; c < 16; c += W) {
      vec y[3]; Tile<3>::fetch_items(x2 + 0 + c * 3, y);
      vec g[3]; Tile<3>::fetch_items(out + 0 + c * 3, g);
      const vec v1 = g[2] * y[1];
      vec sum_x1_0 = 0.7071067811865475 * v1;
      const vec v2 = g[2] * y[0];
      vec sum_x1_1 = -0.7071067811865475 * v2;
      const vec v3 = g[1] * y[2];
      sum_x1_0 += -0.7071067811865475 * v3;
      const vec v4 = g[1] * y[0];
      vec sum_x1_2 = 0.7071067811865475 * v4;
      const vec v5 = g[0] * y[2];
      sum_x1_1 += 0.7071067811865475 * v5;
      const vec v6 = g[0] * y[1];
      sum_x1_2 += -0.7071067811865475 * v6;
      const vec o_x1[3] = {sum_x1_0, sum_x1_1, sum_x1_2};
      Tile<3>::put_items(d_x1 + 0 + c * 3, o_x1);
    }
  }
}
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* const* given, real* const* opened, const void*, i64 rows, i64 channels) {
  const real* const x2 = given[1];
  const real* const w = given[2];
  const real* const out = given[3];
  real* const d_x1 = opened[0];
  int fault = 0;
  expect_writes(d_x1, rows * 48 * (i64)sizeof(real));
  const i64 span = 112;
  const i64 blocks = rows ? (rows + span - 1) / span : 0;
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(blocks, rows * 144, 65536, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(1); num* const scratch = scratch_room.at;
    for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < blocks;) {
      if (!scratch) { *failed = 1; continue; }
      const i64 end = least(rows, (b + 1) * span);
      for (i64 q = b * span; q < end; q += W) {
        const int n = least(W, end - q);
        for (int r = 0; r < n; ++r) {
          const i64 e = q + r;
          row(x2 + e * 48, w, out + e * 48, d_x1 + e * 48);
        }
      }
    }
  });
  return fault;
}
