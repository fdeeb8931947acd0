// matrix schedule: tiles of 96 rows of one element, 4 lanes of float64
//   path 0: 16x0e -> 32x0e; a matrix product
//   path 1: 6x1o -> 4x1o; a matrix product
// opens x1, w with w @ element
// prelude 54f388e70730
// matrices.h
static void tile(int n, const i64* at, const real* p_x1, const real* p_out, real* q_x1, num* a_w, bool fresh, num* s_x1, num* s_out, num* a_x1, num* weights) {
  for (i64 r = 0; r < n; ++r) stage<1, 16, 1>(p_x1 + at[r] * 34 + 0, s_x1 + 0 * (i64)R + r * 16);
  for (i64 r = 0; r < n; ++r) stage<1, 6, 3>(p_x1 + at[r] * 34 + 16, s_x1 + 16 * (i64)R + r * 24);
  for (i64 r = 0; r < n; ++r) stage<1, 32, 1>(p_out + at[r] * 45 + 0, s_out + 0 * (i64)R + r * 32);
  for (i64 r = 0; r < n; ++r) stage<1, 4, 3>(p_out + at[r] * 45 + 32, s_out + 32 * (i64)R + r * 12);
  // path 0: 16x0e -> 32x0e
  multiply<16>(false, a_x1 + 0 * (i64)R, 16, s_out + 0 * (i64)R, 32, 1, weights + 0, 16, n * 1, 32);
  multiply<32>(!fresh, a_w + 0, 32, s_x1 + 0 * (i64)R, 1, 16, s_out + 0 * (i64)R, 32, 16, n * 1);
  // path 1: 6x1o -> 4x1o
  multiply<8>(false, a_x1 + 16 * (i64)R, 8, s_out + 32 * (i64)R, 4, 1, weights + 512, 8, n * 3, 4);
  multiply<4>(!fresh, a_w + 512, 4, s_x1 + 16 * (i64)R, 1, 8, s_out + 32 * (i64)R, 4, 6, n * 3);
  for (i64 r = 0; r < n; ++r) unstage<1, 16, 1>(a_x1 + 0 * (i64)R + r * 16, q_x1 + at[r] * 34 + 0);
  for (i64 r = 0; r < n; ++r) unstage<1, 6, 3>(a_x1 + 16 * (i64)R + r * 24, q_x1 + at[r] * 34 + 16);
}
// indices.h
// order.h
// tasks.h
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* const* given, real* const* opened, const RowIndex* indices, i64 rows, i64 channels) {
  const real* const x1 = given[0];
  const real* const x2 = given[1];
  const real* const w = given[2];
  const real* const out = given[3];
  real* const d_x1 = opened[0];
  real* const d_w = opened[1];
  int fault = 0;
  const RowIndex element = indices[0];
  expect_writes(d_x1, rows * 34 * (i64)sizeof(real));
  if (element.at && !inside(element, rows, element.size)) return 2;
  const i64 elements = element.size;
  const i64 room = 31300;  // blocks that fit into 64 MB of sums
  const i64 most = room < 32 ? room : 32;
  const i64 span = ((rows + most - 1) / most + 96) / 96 * 96;
  const Room<i64> tasks_room(tasks_size(rows, elements, span)); i64* const tasks = tasks_room.at; if (!tasks) return 1;
  const Tasks t = make_tasks(tasks, (const i64*)element.at, rows, elements, span);
  const i64 blocks = t.count;
  const Room<num> sums_room((blocks + 1) * 536); num* const sums = sums_room.at; if (!sums) return 1;
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(blocks, rows * 615, 65536, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(12984); num* const scratch = scratch_room.at;
    num* const s_x1 = scratch + 0;
    num* const s_out = scratch + 3840;
    num* const a_x1 = scratch + 8064;
    num* const weights = scratch + 11904;
    num* const own_w = scratch + 12448;
    i64 held = -1;  // the element whose weights stand there
    for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < blocks;) {
      if (!scratch) { *failed = 1; continue; }
      const i64 e = t.element[b], begin = t.begin[b], end = least(t.first[e + 1], begin + span);
      const bool whole = t.is_whole(b, span);
      num* const a_w = whole ? own_w : sums + b * 536;
      if (held != e) {
        held = e;
        keep_flipped<16, 32>(w + e * 536 + 0, 0.25, weights + 0);
        keep_flipped<6, 4>(w + e * 536 + 512, 0.408248290463863, weights + 512);
      }
      for (i64 q = begin; q < end; q += R) {
        tile(least(R, end - q), t.order + q, x1, out, d_x1, a_w, q == begin, s_x1, s_out, a_x1, weights);
      }
      if (whole) {
        give<16, 32>(d_w + e * 536 + 0, 0.25, a_w + 0);
        give<6, 4>(d_w + e * 536 + 512, 0.408248290463863, a_w + 512);
      }
    }
  });
  for (i64 e = 0, b = 0; e < elements; ++e) {
    real* const to = d_w + e * 536; num* const all = sums + b * 536;
    if (b == blocks || t.element[b] != e) { zero(to, 536); continue; }
    if (t.is_whole(b, span)) { ++b; continue; }  // a thread has given it
    for (++b; b < blocks && t.element[b] == e; ++b) {
      for (i64 m = 0; m < 536; m += W) add(all + m, load(sums + b * 536 + m));
    }
    give<16, 32>(to + 0, 0.25, all + 0);
    give<6, 4>(to + 512, 0.408248290463863, all + 512);
  }
  return fault;
}
