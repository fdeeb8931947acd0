// x: 1x1o (row, channel)
// w0_2: 1x0e (weights, ir_mul)
// w1_1: 1x0e (weights, ir_mul)
// out: 1x0e+1x1o (row, mul_ir)
// x x x x w0_2 -> out[0] 1x0e | 1 paths, 3 entries, chained couplings
// x x w1_1 -> out[1] 1x1o | 1 paths, 3 entries, chained couplings
// x w0_2 w1_1 out.1 -> x w0_2 w1_1
// prelude 72d2aa9edc22
// indices.h
// order.h
// tasks.h
// channels.h
static void prologue(const num* x_w0_2, const num* x_w1_1, num* a) {
  store(a + 0 * W, 0.57735026f * load(x_w0_2 + 0 * W));
  store(a + 1 * W, load(x_w1_1 + 0 * W));
}
static void row(const real* p_x_x, const real* p_x1_out, real* o_x_x, const num* a, num* da1, i64 C, i64 c, int n) {
  vec t_x_x[3];
  Items<3>::get(p_x_x + 0 * C + c * 3, n, t_x_x + 0);
  vec t_x1_out[4];
  Items<1>::get(p_x1_out + 0 * C + c * 1, n, t_x1_out + 0);
  Items<3>::get(p_x1_out + 1 * C + c * 3, n, t_x1_out + 1);
  vec d_x_x[3] = {};
  const vec v1 = t_x1_out[0] * t_x_x[0];
  add(da1 + 0 * W, v1 * t_x_x[0]);
  const vec v2 = t_x_x[0] * load(a + 0 * W);
  d_x_x[0] += v1 * load(a + 0 * W);
  d_x_x[0] += t_x1_out[0] * v2;
  const vec v3 = t_x1_out[0] * t_x_x[1];
  add(da1 + 0 * W, v3 * t_x_x[1]);
  const vec v4 = t_x_x[1] * load(a + 0 * W);
  d_x_x[1] += v3 * load(a + 0 * W);
  d_x_x[1] += t_x1_out[0] * v4;
  const vec v5 = t_x1_out[0] * t_x_x[2];
  add(da1 + 0 * W, v5 * t_x_x[2]);
  const vec v6 = t_x_x[2] * load(a + 0 * W);
  d_x_x[2] += v5 * load(a + 0 * W);
  d_x_x[2] += t_x1_out[0] * v6;
  add(da1 + 1 * W, t_x1_out[1] * t_x_x[0]);
  d_x_x[0] += t_x1_out[1] * load(a + 1 * W);
  add(da1 + 1 * W, t_x1_out[2] * t_x_x[1]);
  d_x_x[1] += t_x1_out[2] * load(a + 1 * W);
  add(da1 + 1 * W, t_x1_out[3] * t_x_x[2]);
  d_x_x[2] += t_x1_out[3] * load(a + 1 * W);
  Items<3>::set(o_x_x + 0 * C + c * 3, n, d_x_x + 0);
}
static void epilogue(const num* x_w0_2, const num* x_w1_1, const num* da1, real* o_x_w0_2, real* o_x_w1_1, i64 C, int n) {
  set_some(o_x_w0_2 + 0 * C, n, 0.57735026f * load(da1 + 0 * W));
  set_some(o_x_w1_1 + 0 * C, n, load(da1 + 1 * W));
}
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* const* given, real* const* opened, const RowIndex* indices, i64 rows, i64 channels) {
  const i64 elements = indices[0].size, C = channels, vectors = (C + W - 1) / W;
  const i64* const index = (const i64*)indices[0].at;
  if (index && !inside(index, rows, elements)) return 2;
  const Room<i64> tasks_room(tasks_size(rows, elements, 0)); i64* const tasks = tasks_room.at; if (!tasks) return 1;
  const Tasks t = make_tasks(tasks, index, rows, elements, 0);
  int fault = 0;
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(rows * vectors * 154 > 131072, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(6 * W); num* const scratch = scratch_room.at;
    num* const x_w0_2 = scratch + 0 * W;
    num* const x_w1_1 = scratch + 1 * W;
    num* const a = scratch + 2 * W;
    num* const da1 = scratch + 4 * W;
    const real* const p_x_x = given[0];
    const real* const p_x_w0_2 = given[1];
    const real* const p_x_w1_1 = given[2];
    const real* const p_x1_out = given[3];
    real* const o_x_x = opened[0];
    real* const o_x_w0_2 = opened[1];
    real* const o_x_w1_1 = opened[2];
    for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < t.count * vectors;) {
      if (!scratch) { *failed = 1; continue; }
      const i64 e = t.element[b / vectors], from = t.begin[b / vectors];
      const i64 to = t.first[e + 1];
      const i64 v = b % vectors;
      const i64 c = v * W; const int n = least(W, C - c);
      if (from == to) {
        for (int i = 0; i < 1; ++i) set_some(o_x_w0_2 + (e * 1 + i) * C + c, n, vec{});
        for (int i = 0; i < 1; ++i) set_some(o_x_w1_1 + (e * 1 + i) * C + c, n, vec{});
        continue;
      }
      for (int i = 0; i < 1; ++i) store(x_w0_2 + i * W, get_some(p_x_w0_2 + (e * 1 + i) * C + c, n));
      for (int i = 0; i < 1; ++i) store(x_w1_1 + i * W, get_some(p_x_w1_1 + (e * 1 + i) * C + c, n));
      prologue(x_w0_2, x_w1_1, a);
      clear(da1, 2 * W);
      for (i64 q = from; q < to; ++q) {
        const i64 r = t.order[q];
        row(p_x_x + r * 3 * C, p_x1_out + r * 4 * C, o_x_x + r * 3 * C, a, da1, C, c, n);
      }
      epilogue(x_w0_2, x_w1_1, da1, o_x_w0_2 + e * 1 * C + c, o_x_w1_1 + e * 1 * C + c, C, n);
    }
  });
  return fault;
}
