// matrix schedule: tiles of 96 rows, 4 lanes of float64
//   path 0: 16x0e -> 32x0e; a matrix product
//   path 1: 6x1o -> 4x1o; a matrix product
// opens x1, w
// prelude 241822da826d
// matrices.h
static void tile(int n, const real* p_x1, const real* p_out, real* q_x1, const num* weights, num* a_w, num* s_x1, num* s_out, num* a_x1) {
  for (i64 r = 0; r < n; ++r) stage<3, 6, 1>(p_x1 + r * 34 + 16, s_x1 + 0 * (i64)R + r * 24);
  for (i64 r = 0; r < n; ++r) stage<3, 4, 1>(p_out + r * 45 + 32, s_out + 0 * (i64)R + r * 12);
  // path 0: 16x0e -> 32x0e
  multiply<16>(false, q_x1 + 0, 34, p_out + 0, 45, 1, weights + 0, 16, n * 1, 32);
  multiply<32>(true, a_w + 0, 32, p_x1 + 0, 1, 34, p_out + 0, 45, 16, n * 1);
  // path 1: 6x1o -> 4x1o
  multiply<8>(false, a_x1 + 0 * (i64)R, 8, s_out + 0 * (i64)R, 4, 1, weights + 512, 8, n * 3, 4);
  multiply<4>(true, a_w + 512, 4, s_x1 + 0 * (i64)R, 1, 8, s_out + 0 * (i64)R, 4, 6, n * 3);
  for (i64 r = 0; r < n; ++r) unstage<3, 6, 1>(a_x1 + 0 * (i64)R + r * 24, q_x1 + r * 34 + 16);
}
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* const* given, real* const* opened, const void*, i64 rows, i64 channels) {
  const real* const x1 = given[0];
  const real* const x2 = given[1];
  const real* const w = given[2];
  const real* const out = given[3];
  real* const d_x1 = opened[0];
  real* const d_w = opened[1];
  int fault = 0;
  expect_writes(d_x1, rows * 34 * (i64)sizeof(real));
  const i64 room = 30840;  // blocks that fit into 64 MB of sums
  const i64 most = room < 32 ? room : 32;
  const i64 span = ((rows + most - 1) / most + 96) / 96 * 96;
  const i64 blocks = rows ? (rows + span - 1) / span : 0;
  const Room<num> weights_room(544); num* const weights = weights_room.at; if (!weights) return 1;
  keep_flipped<16, 32>(w + 0, 0.25, weights + 0);
  keep_flipped<6, 4>(w + 512, 0.408248290463863, weights + 512);
  const Room<num> sums_room((blocks + 1) * 544); num* const sums = sums_room.at; if (!sums) return 1;
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(blocks, rows * 615, 65536, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(5760); num* const scratch = scratch_room.at;
    num* const s_x1 = scratch + 0;
    num* const s_out = scratch + 2304;
    num* const a_x1 = scratch + 3456;
    for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < blocks;) {
      if (!scratch) { *failed = 1; continue; }
      num* const a_w = sums + b * 544; clear(a_w, 544);
      const i64 begin = b * span, end = least(rows, begin + span);
      for (i64 q = begin; q < end; q += R) {
        tile(least(R, end - q), x1 + q * 34, out + q * 45, d_x1 + q * 34, weights, a_w, s_x1, s_out, a_x1);
      }
    }
  });
  if (!blocks) clear(sums, 544);
  for (i64 b = 1; b < blocks; ++b) for (i64 m = 0; m < 544; m += W) add(sums + m, load(sums + b * 544 + m));
  give<16, 32>(d_w + 0, 0.25, sums + 0);
  give<6, 4>(d_w + 512, 0.408248290463863, sums + 512);
  return fault;
}
