// x: 1x1o (row, channel)
// w0_2: 1x0e (weights, ir_mul)
// w1_1: 1x0e (weights, ir_mul)
// out: 1x0e+1x1o (row, mul_ir)
// x x x x w0_2 -> out[0] 1x0e | 1 paths, 3 entries, chained couplings
// x x w1_1 -> out[1] 1x1o | 1 paths, 3 entries, chained couplings
// x w0_2 w1_1 -> out
// prelude 9b559c3c178a
// indices.h
// order.h
// tasks.h
// channels.h
static void prologue(const num* x_w0_2, const num* x_w1_1, num* a) {
  store(a + 0 * W, 0.57735026f * load(x_w0_2 + 0 * W));
  store(a + 1 * W, load(x_w1_1 + 0 * W));
}
static void row(const real* p_x_x, real* o_x_out, const num* a, i64 C, i64 c, int n) {
  vec t_x_x[3];
  Items<3>::get(p_x_x + 0 * C + c * 3, n, t_x_x + 0);
  vec d_x_out[4] = {};
  const vec v1 = t_x_x[0] * t_x_x[0];
  d_x_out[0] += v1 * load(a + 0 * W);
  d_x_out[1] += t_x_x[0] * load(a + 1 * W);
  const vec v2 = t_x_x[1] * t_x_x[1];
  d_x_out[0] += v2 * load(a + 0 * W);
  d_x_out[2] += t_x_x[1] * load(a + 1 * W);
  const vec v3 = t_x_x[2] * t_x_x[2];
  d_x_out[0] += v3 * load(a + 0 * W);
  d_x_out[3] += t_x_x[2] * load(a + 1 * W);
  Items<1>::set(o_x_out + 0 * C + c * 1, n, d_x_out + 0);
  Items<3>::set(o_x_out + 1 * C + c * 3, n, d_x_out + 1);
}
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* const* given, real* const* opened, const RowIndex* indices, i64 rows, i64 channels) {
  const i64 elements = indices[0].size, C = channels, vectors = (C + W - 1) / W;
  const i64* const index = (const i64*)indices[0].at;
  if (index && !inside(index, rows, elements)) return 2;
  const Room<i64> tasks_room(tasks_size(rows, elements, 64)); i64* const tasks = tasks_room.at; if (!tasks) return 1;
  const Tasks t = make_tasks(tasks, index, rows, elements, 64);
  int fault = 0;
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(t.count * vectors, rows * vectors * 90, 131072, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(4 * W); num* const scratch = scratch_room.at;
    num* const x_w0_2 = scratch + 0 * W;
    num* const x_w1_1 = scratch + 1 * W;
    num* const a = scratch + 2 * W;
    const real* const p_x_x = given[0];
    const real* const p_x_w0_2 = given[1];
    const real* const p_x_w1_1 = given[2];
    real* const o_x_out = opened[0];
    for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < t.count * vectors;) {
      if (!scratch) { *failed = 1; continue; }
      const i64 e = t.element[b / vectors], from = t.begin[b / vectors];
      const i64 to = least(t.first[e + 1], from + 64);
      const i64 v = b % vectors;
      const i64 c = v * W; const int n = least(W, C - c);
      for (int i = 0; i < 1; ++i) store(x_w0_2 + i * W, get_some(p_x_w0_2 + (e * 1 + i) * C + c, n));
      for (int i = 0; i < 1; ++i) store(x_w1_1 + i * W, get_some(p_x_w1_1 + (e * 1 + i) * C + c, n));
      prologue(x_w0_2, x_w1_1, a);
      for (i64 q = from; q < to; ++q) {
        const i64 r = t.order[q];
        row(p_x_x + r * 3 * C, o_x_out + r * 4 * C, a, C, c, n);
      }
    }
  });
  return fault;
}
