// a: 1x1o (row, mul_ir)
// b: 1x1o (row, mul_ir)
// y: 1x1o (row, one copy for all channels, mul_ir)
// u: 2x0e (weights, ir_mul)
// v: 1x0e (weights, ir_mul)
// out: 1x0e+1x1o (row, mul_ir)
// a x a x y x u -> out[1] 1x1o | 2 paths, 24 entries, independent couplings
// a x b x v -> out[0] 1x0e | 1 paths, 3 entries, independent couplings
// y x y -> out[0] 1x0e | 1 paths, 3 entries, independent couplings
// a b y u v -> out
// prelude 170ae0ff3397
// indices.h
// order.h
// tasks.h
// channels.h
static void prologue(const num* x_u, const num* x_v, num* a) {
  store(a + 0 * W, 0.57735026f * load(x_u + 0 * W) + 0.5163978f * load(x_u + 1 * W));
  store(a + 1 * W, 0.57735026f * load(x_u + 0 * W) - 0.2581989f * load(x_u + 1 * W));
  store(a + 2 * W, 0.7745967f * load(x_u + 1 * W));
  store(a + 3 * W, 0.57735026f * load(x_v + 0 * W));
}
static void row(const real* p_x_a, const real* p_x_b, const real* p_x_y, real* o_x_out, const num* a, i64 C, i64 c, int n) {
  vec t_x_a[3];
  Items<3>::get(p_x_a + 0 * C + c * 3, n, t_x_a + 0);
  vec t_x_b[3];
  Items<3>::get(p_x_b + 0 * C + c * 3, n, t_x_b + 0);
  vec t_x_y[3];
  t_x_y[0] = vec{} + widen(p_x_y[0]);
  t_x_y[1] = vec{} + widen(p_x_y[1]);
  t_x_y[2] = vec{} + widen(p_x_y[2]);
  vec d_x_out[4] = {};
  const vec v1 = t_x_a[0] * t_x_a[0];
  const vec v2 = v1 * t_x_y[0];
  d_x_out[1] += v2 * load(a + 0 * W);
  const vec v3 = v1 * t_x_y[1];
  d_x_out[2] += v3 * load(a + 1 * W);
  const vec v4 = v1 * t_x_y[2];
  d_x_out[3] += v4 * load(a + 1 * W);
  const vec v5 = t_x_a[0] * t_x_a[1];
  const vec v6 = v5 * t_x_y[1];
  d_x_out[1] += v6 * load(a + 2 * W);
  const vec v7 = v5 * t_x_y[0];
  d_x_out[2] += v7 * load(a + 2 * W);
  const vec v8 = t_x_a[0] * t_x_a[2];
  const vec v9 = v8 * t_x_y[2];
  d_x_out[1] += v9 * load(a + 2 * W);
  const vec v10 = v8 * t_x_y[0];
  d_x_out[3] += v10 * load(a + 2 * W);
  const vec v11 = t_x_b[0] * load(a + 3 * W);
  d_x_out[0] += t_x_a[0] * v11;
  const vec v12 = t_x_a[1] * t_x_a[1];
  const vec v13 = v12 * t_x_y[0];
  d_x_out[1] += v13 * load(a + 1 * W);
  const vec v14 = v12 * t_x_y[1];
  d_x_out[2] += v14 * load(a + 0 * W);
  const vec v15 = v12 * t_x_y[2];
  d_x_out[3] += v15 * load(a + 1 * W);
  const vec v16 = t_x_a[1] * t_x_a[2];
  const vec v17 = v16 * t_x_y[2];
  d_x_out[2] += v17 * load(a + 2 * W);
  const vec v18 = v16 * t_x_y[1];
  d_x_out[3] += v18 * load(a + 2 * W);
  const vec v19 = t_x_b[1] * load(a + 3 * W);
  d_x_out[0] += t_x_a[1] * v19;
  const vec v20 = t_x_a[2] * t_x_a[2];
  const vec v21 = v20 * t_x_y[0];
  d_x_out[1] += v21 * load(a + 1 * W);
  const vec v22 = v20 * t_x_y[1];
  d_x_out[2] += v22 * load(a + 1 * W);
  const vec v23 = v20 * t_x_y[2];
  d_x_out[3] += v23 * load(a + 0 * W);
  const vec v24 = t_x_b[2] * load(a + 3 * W);
  d_x_out[0] += t_x_a[2] * v24;
  const vec v25 = t_x_y[0] * t_x_y[0];
  d_x_out[0] += 0.57735026f * v25;
  const vec v26 = t_x_y[1] * t_x_y[1];
  d_x_out[0] += 0.57735026f * v26;
  const vec v27 = t_x_y[2] * t_x_y[2];
  d_x_out[0] += 0.57735026f * v27;
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
  on_threads(t.count * vectors, rows * vectors * 221, 131072, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(7 * W); num* const scratch = scratch_room.at;
    num* const x_u = scratch + 0 * W;
    num* const x_v = scratch + 2 * W;
    num* const a = scratch + 3 * W;
    const real* const p_x_a = given[0];
    const real* const p_x_b = given[1];
    const real* const p_x_y = given[2];
    const real* const p_x_u = given[3];
    const real* const p_x_v = given[4];
    real* const o_x_out = opened[0];
    for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < t.count * vectors;) {
      if (!scratch) { *failed = 1; continue; }
      const i64 e = t.element[b / vectors], from = t.begin[b / vectors];
      const i64 to = least(t.first[e + 1], from + 64);
      const i64 v = b % vectors;
      const i64 c = v * W; const int n = least(W, C - c);
      for (int i = 0; i < 2; ++i) store(x_u + i * W, get_some(p_x_u + (e * 2 + i) * C + c, n));
      for (int i = 0; i < 1; ++i) store(x_v + i * W, get_some(p_x_v + (e * 1 + i) * C + c, n));
      prologue(x_u, x_v, a);
      for (i64 q = from; q < to; ++q) {
        const i64 r = t.order[q];
        row(p_x_a + r * 3 * C, p_x_b + r * 3 * C, p_x_y + r * 3, o_x_out + r * 4 * C, a, C, c, n);
      }
    }
  });
  return fault;
}
