// matrix schedule: tiles of 96 rows of one element, 16 lanes of float32
//   path 0: 16x0e -> 32x0e; a matrix product
//   path 1: 6x1o -> 4x1o; a matrix product
// opens out with w @ element
// prelude 0fc9a0f4ea6b
// matrices.h
static void tile(int n, const i64* at, const real* p_x1, real* q_out, num* s_x1, num* a_out, num* weights) {
  for (i64 r = 0; r < n; ++r) stage<1, 16, 1>(p_x1 + at[r] * 34 + 0, s_x1 + 0 * (i64)R + r * 16);
  for (i64 r = 0; r < n; ++r) stage<1, 6, 3>(p_x1 + at[r] * 34 + 16, s_x1 + 16 * (i64)R + r * 48);
  // path 0: 16x0e -> 32x0e
  multiply<32>(false, a_out + 0 * (i64)R, 32, s_x1 + 0 * (i64)R, 16, 1, weights + 0, 32, n * 1, 16);
  // path 1: 6x1o -> 4x1o
  multiply<16>(false, a_out + 32 * (i64)R, 16, s_x1 + 16 * (i64)R, 16, 1, weights + 512, 16, n * 3, 6);
  for (i64 r = 0; r < n; ++r) unstage<1, 32, 1>(a_out + 0 * (i64)R + r * 32, q_out + at[r] * 45 + 0);
  for (i64 r = 0; r < n; ++r) unstage<1, 4, 3>(a_out + 32 * (i64)R + r * 48, q_out + at[r] * 45 + 32);
  for (int r = 0; r < n; ++r) zero(q_out + at[r] * 45 + 44, 1);
}
// indices.h
// order.h
// tasks.h
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* const* given, real* const* opened, const RowIndex* indices, i64 rows, i64 channels) {
  const real* const x1 = given[0];
  const real* const x2 = given[1];
  const real* const w = given[2];
  real* const d_out = opened[0];
  int fault = 0;
  const RowIndex element = indices[0];
  expect_writes(d_out, rows * 45 * (i64)sizeof(real));
  if (element.at && !inside(element, rows, element.size)) return 2;
  const i64 elements = element.size;
  const i64 span = 96;
  const Room<i64> tasks_room(tasks_size(rows, elements, span)); i64* const tasks = tasks_room.at; if (!tasks) return 1;
  const Tasks t = make_tasks(tasks, (const i64*)element.at, rows, elements, span);
  const i64 blocks = t.count;
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(blocks, rows * 615, 65536, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(14432); num* const scratch = scratch_room.at;
    num* const s_x1 = scratch + 0;
    num* const a_out = scratch + 6144;
    num* const weights = scratch + 13824;
    i64 held = -1;  // the element whose weights stand there
    for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < blocks;) {
      if (!scratch) { *failed = 1; continue; }
      const i64 e = t.element[b], begin = t.begin[b], end = least(t.first[e + 1], begin + span);
      if (held != e) {
        held = e;
        keep<16, 32>(w + e * 536 + 0, 0.25f, weights + 0);
        keep<6, 4>(w + e * 536 + 512, 0.4082483f, weights + 512);
      }
      for (i64 q = begin; q < end; q += R) {
        tile(least(R, end - q), t.order + q, x1, d_out, s_x1, a_out, weights);
      }
    }
  });
  return fault;
}
