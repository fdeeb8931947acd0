// matrix schedule: tiles of 96 rows, 8 lanes of bfloat16
//   path 0: 16x0e -> 32x0e; a matrix product
//   path 1: 6x1o -> 4x1o; a matrix product
// opens x1, w, out
// prelude c186879c4775
// matrices.h
static void tile(int n, const real* p_x1, const real* p_out, real* q_x1, real* q_out, const real* p_w, real* q_w, num* s_x1, num* s_out, num* a_x1, num* a_out, num* s_w) {
  for (i64 r = 0; r < n; ++r) stage<1, 16, 1>(p_x1 + r * 34 + 0, s_x1 + 0 * (i64)R + r * 16);
  for (i64 r = 0; r < n; ++r) stage<1, 6, 3>(p_x1 + r * 34 + 16, s_x1 + 16 * (i64)R + r * 24);
  for (i64 r = 0; r < n; ++r) stage<1, 32, 1>(p_out + r * 45 + 0, s_out + 0 * (i64)R + r * 32);
  for (i64 r = 0; r < n; ++r) stage<1, 4, 3>(p_out + r * 45 + 32, s_out + 32 * (i64)R + r * 24);
  // path 0: 16x0e -> 32x0e
  for (i64 r = 0; r < n; ++r) {
    keep<16, 32>(p_w + r * 536 + 0, 0.25f, s_w);
    multiply<32>(false, a_out + 0 * (i64)R + r * 32, 32, s_x1 + 0 * (i64)R + r * 16, 16, 1, s_w, 32, 1, 16);
    keep_flipped<16, 32>(p_w + r * 536 + 0, 0.25f, s_w);
    multiply<16>(false, a_x1 + 0 * (i64)R + r * 16, 16, s_out + 0 * (i64)R + r * 32, 32, 1, s_w, 16, 1, 32);
    clear(s_w, 512);
    multiply<32>(true, s_w, 32, s_x1 + 0 * (i64)R + r * 16, 1, 16, s_out + 0 * (i64)R + r * 32, 32, 16, 1);
    give<16, 32>(q_w + r * 536 + 0, 0.25f, s_w);
  }
  // path 1: 6x1o -> 4x1o
  for (i64 r = 0; r < n; ++r) {
    keep<6, 4>(p_w + r * 536 + 512, 0.4082483f, s_w);
    multiply<8>(false, a_out + 32 * (i64)R + r * 24, 8, s_x1 + 16 * (i64)R + r * 24, 8, 1, s_w, 8, 3, 6);
    keep_flipped<6, 4>(p_w + r * 536 + 512, 0.4082483f, s_w);
    multiply<8>(false, a_x1 + 16 * (i64)R + r * 24, 8, s_out + 32 * (i64)R + r * 24, 8, 1, s_w, 8, 3, 4);
    clear(s_w, 48);
    multiply<8>(true, s_w, 8, s_x1 + 16 * (i64)R + r * 24, 1, 8, s_out + 32 * (i64)R + r * 24, 8, 6, 3);
    give<6, 4>(q_w + r * 536 + 512, 0.4082483f, s_w);
  }
  for (i64 r = 0; r < n; ++r) unstage<1, 16, 1>(a_x1 + 0 * (i64)R + r * 16, q_x1 + r * 34 + 0);
  for (i64 r = 0; r < n; ++r) unstage<1, 6, 3>(a_x1 + 16 * (i64)R + r * 24, q_x1 + r * 34 + 16);
  for (i64 r = 0; r < n; ++r) unstage<1, 32, 1>(a_out + 0 * (i64)R + r * 32, q_out + r * 45 + 0);
  for (i64 r = 0; r < n; ++r) unstage<1, 4, 3>(a_out + 32 * (i64)R + r * 24, q_out + r * 45 + 32);
  for (int r = 0; r < n; ++r) zero(q_out + r * 45 + 44, 1);
}
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* const* given, real* const* opened, const void*, i64 rows, i64 channels) {
  const real* const x1 = given[0];
  const real* const x2 = given[1];
  const real* const w = given[2];
  const real* const out = given[3];
  real* const d_x1 = opened[0];
  real* const d_w = opened[1];
  real* const d_out = opened[2];
  int fault = 0;
  expect_writes(d_x1, rows * 34 * (i64)sizeof(real));
  expect_writes(d_w, rows * 536 * (i64)sizeof(real));
  expect_writes(d_out, rows * 45 * (i64)sizeof(real));
  const i64 span = 96;
  const i64 blocks = rows ? (rows + span - 1) / span : 0;
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(blocks, rows * 615, 65536, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(18944); num* const scratch = scratch_room.at;
    num* const s_x1 = scratch + 0;
    num* const s_out = scratch + 3840;
    num* const a_x1 = scratch + 9216;
    num* const a_out = scratch + 13056;
    num* const s_w = scratch + 18432;
    for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < blocks;) {
      if (!scratch) { *failed = 1; continue; }
      const i64 begin = b * span, end = least(rows, begin + span);
      for (i64 q = begin; q < end; q += R) {
        tile(least(R, end - q), x1 + q * 34, out + q * 45, d_x1 + q * 34, d_out + q * 45, w + q * 536, d_w + q * 536, s_x1, s_out, a_x1, a_out, s_w);
      }
    }
  });
  return fault;
}
