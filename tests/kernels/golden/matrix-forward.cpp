// matrix schedule: tiles of 96 rows, 16 lanes of float32
//   path 0: 16x0e -> 32x0e; a matrix product
//   path 1: 6x1o -> 4x1o; a matrix product
// opens out
// prelude 0fc9a0f4ea6b
// matrices.h
static void tile(int n, const real* p_x1, real* q_out, const num* weights, num* s_x1, num* a_out) {
  for (i64 r = 0; r < n; ++r) stage<1, 6, 3>(p_x1 + r * 34 + 16, s_x1 + 0 * (i64)R + r * 48);
  // path 0: 16x0e -> 32x0e
  multiply<32>(false, q_out + 0, 45, p_x1 + 0, 34, 1, weights + 0, 32, n * 1, 16);
  // path 1: 6x1o -> 4x1o
  multiply<16>(false, a_out + 0 * (i64)R, 16, s_x1 + 0 * (i64)R, 16, 1, weights + 512, 16, n * 3, 6);
  for (i64 r = 0; r < n; ++r) unstage<1, 4, 3>(a_out + 0 * (i64)R + r * 48, q_out + r * 45 + 32);
  for (int r = 0; r < n; ++r) zero(q_out + r * 45 + 44, 1);
}
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* const* given, real* const* opened, const void*, i64 rows, i64 channels) {
  const real* const x1 = given[0];
  const real* const x2 = given[1];
  const real* const w = given[2];
  real* const d_out = opened[0];
  int fault = 0;
  expect_writes(d_out, rows * 45 * (i64)sizeof(real));
  const i64 span = 96;
  const i64 blocks = rows ? (rows + span - 1) / span : 0;
  const Room<num> weights_room(608); num* const weights = weights_room.at; if (!weights) return 1;
  keep<16, 32>(w + 0, 0.25f, weights + 0);
  keep<6, 4>(w + 512, 0.4082483f, weights + 512);
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(blocks, rows * 615, 65536, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(9216); num* const scratch = scratch_room.at;
    num* const s_x1 = scratch + 0;
    num* const a_out = scratch + 4608;
    for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < blocks;) {
      if (!scratch) { *failed = 1; continue; }
      const i64 begin = b * span, end = least(rows, begin + span);
      for (i64 q = begin; q < end; q += R) {
        tile(least(R, end - q), x1 + q * 34, d_out + q * 45, weights, s_x1, a_out);
      }
    }
  });
  return fault;
}
