// x: 1x1o (row, channel)
// w0_2: 1x0e (weights, ir_mul)
// w1_1: 1x0e (weights, ir_mul)
// out: 1x0e+1x1o (row, mul_ir)
// x x x x w0_2 -> out[0] 1x0e | 1 paths, 3 entries, chained couplings
// x x w1_1 -> out[1] 1x1o | 1 paths, 3 entries, chained couplings
// x w0_2 w1_1 out.1 x.2 w0_2.2 w1_1.2 -> x w0_2 w1_1 out.1
// prelude 9b559c3c178a
// indices.h
// order.h
// tasks.h
// channels.h
static void prologue(const num* x_w0_2, const num* x_w1_1, const num* x2_w0_2, const num* x2_w1_1, num* a, num* a2) {
  store(a + 0 * W, 0.57735026f * load(x_w0_2 + 0 * W));
  store(a2 + 0 * W, 0.57735026f * load(x2_w0_2 + 0 * W));
  store(a + 1 * W, load(x_w1_1 + 0 * W));
  store(a2 + 1 * W, load(x2_w1_1 + 0 * W));
}
static void row(const real* p_x_x, const real* p_x1_out, const real* p_x2_x, real* o_x_x, real* o_x1_out, const num* a, const num* a2, num* da12, i64 C, i64 c, int n) {
  vec t_x_x[3];
  Items<3>::get(p_x_x + 0 * C + c * 3, n, t_x_x + 0);
  vec t_x1_out[4];
  Items<1>::get(p_x1_out + 0 * C + c * 1, n, t_x1_out + 0);
  Items<3>::get(p_x1_out + 1 * C + c * 3, n, t_x1_out + 1);
  vec t_x2_x[3];
  Items<3>::get(p_x2_x + 0 * C + c * 3, n, t_x2_x + 0);
  vec d_x_x[3] = {};
  vec d_x1_out[4] = {};
  const vec v1 = t_x_x[0] * t_x_x[0];
  const vec v2 = t_x_x[0] * t_x2_x[0] + t_x2_x[0] * t_x_x[0];
  add(da12 + 0 * W, v2 * t_x1_out[0]);
  const vec v3 = t_x1_out[0] * load(a + 0 * W);
  const vec v4 = t_x1_out[0] * load(a2 + 0 * W);
  d_x1_out[0] += v1 * load(a2 + 0 * W) + v2 * load(a + 0 * W);
  const vec v6 = t_x_x[0] * v4 + t_x2_x[0] * v3;
  d_x_x[0] += t_x_x[0] * v4 + t_x2_x[0] * v3;
  add(da12 + 1 * W, t_x2_x[0] * t_x1_out[1]);
  const vec v8 = v6 + t_x1_out[1] * load(a2 + 1 * W);
  d_x1_out[1] += t_x_x[0] * load(a2 + 1 * W) + t_x2_x[0] * load(a + 1 * W);
  d_x_x[0] += v8;
  const vec v9 = t_x_x[1] * t_x_x[1];
  const vec v10 = t_x_x[1] * t_x2_x[1] + t_x2_x[1] * t_x_x[1];
  add(da12 + 0 * W, v10 * t_x1_out[0]);
  d_x1_out[0] += v9 * load(a2 + 0 * W) + v10 * load(a + 0 * W);
  const vec v12 = t_x_x[1] * v4 + t_x2_x[1] * v3;
  d_x_x[1] += t_x_x[1] * v4 + t_x2_x[1] * v3;
  add(da12 + 1 * W, t_x2_x[1] * t_x1_out[2]);
  const vec v14 = v12 + t_x1_out[2] * load(a2 + 1 * W);
  d_x1_out[2] += t_x_x[1] * load(a2 + 1 * W) + t_x2_x[1] * load(a + 1 * W);
  d_x_x[1] += v14;
  const vec v15 = t_x_x[2] * t_x_x[2];
  const vec v16 = t_x_x[2] * t_x2_x[2] + t_x2_x[2] * t_x_x[2];
  add(da12 + 0 * W, v16 * t_x1_out[0]);
  d_x1_out[0] += v15 * load(a2 + 0 * W) + v16 * load(a + 0 * W);
  const vec v18 = t_x_x[2] * v4 + t_x2_x[2] * v3;
  d_x_x[2] += t_x_x[2] * v4 + t_x2_x[2] * v3;
  add(da12 + 1 * W, t_x2_x[2] * t_x1_out[3]);
  const vec v20 = v18 + t_x1_out[3] * load(a2 + 1 * W);
  d_x1_out[3] += t_x_x[2] * load(a2 + 1 * W) + t_x2_x[2] * load(a + 1 * W);
  d_x_x[2] += v20;
  Items<3>::set(o_x_x + 0 * C + c * 3, n, d_x_x + 0);
  Items<1>::set(o_x1_out + 0 * C + c * 1, n, d_x1_out + 0);
  Items<3>::set(o_x1_out + 1 * C + c * 3, n, d_x1_out + 1);
}
static void epilogue(const num* x_w0_2, const num* x_w1_1, const num* x2_w0_2, const num* x2_w1_1, const num* da12, real* o_x_w0_2, real* o_x_w1_1, i64 C, int n) {
  set_some(o_x_w0_2 + 0 * C, n, 0.57735026f * load(da12 + 0 * W));
  set_some(o_x_w1_1 + 0 * C, n, load(da12 + 1 * W));
}
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* const* given, real* const* opened, const RowIndex* indices, i64 rows, i64 channels) {
  const i64 elements = indices[0].size, C = channels, vectors = (C + W - 1) / W;
  const i64* const index = (const i64*)indices[0].at;
  if (index && !inside(index, rows, elements)) return 2;
  const Room<i64> tasks_room(tasks_size(rows, elements, 0)); i64* const tasks = tasks_room.at; if (!tasks) return 1;
  const Tasks t = make_tasks(tasks, index, rows, elements, 0);
  int fault = 0;
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(t.count * vectors, rows * vectors * 278, 131072, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(10 * W); num* const scratch = scratch_room.at;
    num* const x_w0_2 = scratch + 0 * W;
    num* const x_w1_1 = scratch + 1 * W;
    num* const x2_w0_2 = scratch + 2 * W;
    num* const x2_w1_1 = scratch + 3 * W;
    num* const a = scratch + 4 * W;
    num* const a2 = scratch + 6 * W;
    num* const da12 = scratch + 8 * W;
    const real* const p_x_x = given[0];
    const real* const p_x_w0_2 = given[1];
    const real* const p_x_w1_1 = given[2];
    const real* const p_x1_out = given[3];
    const real* const p_x2_x = given[4];
    const real* const p_x2_w0_2 = given[5];
    const real* const p_x2_w1_1 = given[6];
    real* const o_x_x = opened[0];
    real* const o_x_w0_2 = opened[1];
    real* const o_x_w1_1 = opened[2];
    real* const o_x1_out = opened[3];
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
      for (int i = 0; i < 1; ++i) store(x2_w0_2 + i * W, get_some(p_x2_w0_2 + (e * 1 + i) * C + c, n));
      for (int i = 0; i < 1; ++i) store(x2_w1_1 + i * W, get_some(p_x2_w1_1 + (e * 1 + i) * C + c, n));
      prologue(x_w0_2, x_w1_1, x2_w0_2, x2_w1_1, a, a2);
      clear(da12, 2 * W);
      for (i64 q = from; q < to; ++q) {
        const i64 r = t.order[q];
        row(p_x_x + r * 3 * C, p_x1_out + r * 4 * C, p_x2_x + r * 3 * C, o_x_x + r * 3 * C, o_x1_out + r * 4 * C, a, a2, da12, C, c, n);
      }
      epilogue(x_w0_2, x_w1_1, x2_w0_2, x2_w1_1, da12, o_x_w0_2 + e * 1 * C + c, o_x_w1_1 + e * 1 * C + c, C, n);
    }
  });
  return fault;
}
