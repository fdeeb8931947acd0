// a: 1x1o (row, mul_ir)
// b: 1x1o (row, mul_ir)
// y: 1x1o (row, one copy for all channels, mul_ir)
// u: 2x0e (weights, ir_mul)
// v: 1x0e (weights, ir_mul)
// out: 1x0e+1x1o (row, mul_ir)
// a x a x y x u -> out[1] 1x1o | 2 paths, 24 entries, independent couplings
// a x b x v -> out[0] 1x0e | 1 paths, 3 entries, independent couplings
// y x y -> out[0] 1x0e | 1 paths, 3 entries, independent couplings
// a b y u v out.1 -> a b y u v
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
static void row(const real* p_x_a, const real* p_x_b, const real* p_x_y, const real* p_x1_out, real* o_x_a, real* o_x_b, num* o_x_y, const num* a, num* da1, i64 C, i64 c, int n) {
  vec t_x_a[3];
  Items<3>::get(p_x_a + 0 * C + c * 3, n, t_x_a + 0);
  vec t_x_b[3];
  Items<3>::get(p_x_b + 0 * C + c * 3, n, t_x_b + 0);
  vec t_x_y[3];
  t_x_y[0] = vec{} + widen(p_x_y[0]);
  t_x_y[1] = vec{} + widen(p_x_y[1]);
  t_x_y[2] = vec{} + widen(p_x_y[2]);
  vec t_x1_out[4];
  Items<1>::get(p_x1_out + 0 * C + c * 1, n, t_x1_out + 0);
  Items<3>::get(p_x1_out + 1 * C + c * 3, n, t_x1_out + 1);
  vec d_x_a[3] = {};
  vec d_x_b[3] = {};
  vec d_x_y[3] = {};
  const vec v1 = t_x_a[0] * t_x_a[0];
  const vec v2 = v1 * t_x_y[0];
  add(da1 + 0 * W, v2 * t_x1_out[1]);
  const vec v3 = t_x1_out[1] * load(a + 0 * W);
  const vec v4 = t_x_y[0] * v3;
  d_x_y[0] += v1 * v3;
  const vec v5 = v1 * t_x_y[1];
  add(da1 + 1 * W, v5 * t_x1_out[2]);
  const vec v6 = t_x1_out[2] * load(a + 1 * W);
  const vec v7 = v4 + t_x_y[1] * v6;
  d_x_y[1] += v1 * v6;
  const vec v8 = v1 * t_x_y[2];
  add(da1 + 1 * W, v8 * t_x1_out[3]);
  const vec v9 = t_x1_out[3] * load(a + 1 * W);
  const vec v10 = v7 + t_x_y[2] * v9;
  d_x_y[2] += v1 * v9;
  const vec v11 = t_x_a[0] * v10;
  d_x_a[0] += t_x_a[0] * v10;
  const vec v12 = t_x_a[0] * t_x_a[1];
  const vec v13 = v12 * t_x_y[1];
  add(da1 + 2 * W, v13 * t_x1_out[1]);
  const vec v14 = t_x1_out[1] * load(a + 2 * W);
  const vec v15 = t_x_y[1] * v14;
  d_x_y[1] += v12 * v14;
  const vec v16 = v12 * t_x_y[0];
  add(da1 + 2 * W, v16 * t_x1_out[2]);
  const vec v17 = t_x1_out[2] * load(a + 2 * W);
  const vec v18 = v15 + t_x_y[0] * v17;
  d_x_y[0] += v12 * v17;
  const vec v19 = v11 + t_x_a[1] * v18;
  d_x_a[1] += t_x_a[0] * v18;
  const vec v20 = t_x_a[0] * t_x_a[2];
  const vec v21 = v20 * t_x_y[2];
  add(da1 + 2 * W, v21 * t_x1_out[1]);
  const vec v22 = t_x_y[2] * v14;
  d_x_y[2] += v20 * v14;
  const vec v23 = v20 * t_x_y[0];
  add(da1 + 2 * W, v23 * t_x1_out[3]);
  const vec v24 = t_x1_out[3] * load(a + 2 * W);
  const vec v25 = v22 + t_x_y[0] * v24;
  d_x_y[0] += v20 * v24;
  const vec v26 = v19 + t_x_a[2] * v25;
  d_x_a[2] += t_x_a[0] * v25;
  d_x_a[0] += v26;
  const vec v27 = t_x_a[1] * t_x_a[1];
  const vec v28 = v27 * t_x_y[0];
  add(da1 + 1 * W, v28 * t_x1_out[1]);
  const vec v29 = t_x1_out[1] * load(a + 1 * W);
  const vec v30 = t_x_y[0] * v29;
  d_x_y[0] += v27 * v29;
  const vec v31 = v27 * t_x_y[1];
  add(da1 + 0 * W, v31 * t_x1_out[2]);
  const vec v32 = t_x1_out[2] * load(a + 0 * W);
  const vec v33 = v30 + t_x_y[1] * v32;
  d_x_y[1] += v27 * v32;
  const vec v34 = v27 * t_x_y[2];
  add(da1 + 1 * W, v34 * t_x1_out[3]);
  const vec v35 = v33 + t_x_y[2] * v9;
  d_x_y[2] += v27 * v9;
  const vec v36 = t_x_a[1] * v35;
  d_x_a[1] += t_x_a[1] * v35;
  const vec v37 = t_x_a[1] * t_x_a[2];
  const vec v38 = v37 * t_x_y[2];
  add(da1 + 2 * W, v38 * t_x1_out[2]);
  const vec v39 = t_x_y[2] * v17;
  d_x_y[2] += v37 * v17;
  const vec v40 = v37 * t_x_y[1];
  add(da1 + 2 * W, v40 * t_x1_out[3]);
  const vec v41 = v39 + t_x_y[1] * v24;
  d_x_y[1] += v37 * v24;
  const vec v42 = v36 + t_x_a[2] * v41;
  d_x_a[2] += t_x_a[1] * v41;
  d_x_a[1] += v42;
  const vec v43 = t_x_a[2] * t_x_a[2];
  const vec v44 = v43 * t_x_y[0];
  add(da1 + 1 * W, v44 * t_x1_out[1]);
  d_x_y[0] += v43 * v29;
  const vec v45 = v43 * t_x_y[1];
  add(da1 + 1 * W, v45 * t_x1_out[2]);
  const vec v46 = v30 + t_x_y[1] * v6;
  d_x_y[1] += v43 * v6;
  const vec v47 = v43 * t_x_y[2];
  add(da1 + 0 * W, v47 * t_x1_out[3]);
  const vec v48 = t_x1_out[3] * load(a + 0 * W);
  const vec v49 = v46 + t_x_y[2] * v48;
  d_x_y[2] += v43 * v48;
  const vec v50 = t_x_a[2] * v49;
  d_x_a[2] += t_x_a[2] * v49;
  d_x_a[2] += v50;
  const vec v51 = t_x_b[0] * t_x_a[0];
  add(da1 + 3 * W, v51 * t_x1_out[0]);
  const vec v52 = t_x1_out[0] * load(a + 3 * W);
  const vec v53 = t_x_a[0] * v52;
  d_x_a[0] += t_x_b[0] * v52;
  d_x_b[0] += v53;
  const vec v54 = t_x_b[1] * t_x_a[1];
  add(da1 + 3 * W, v54 * t_x1_out[0]);
  const vec v55 = t_x_a[1] * v52;
  d_x_a[1] += t_x_b[1] * v52;
  d_x_b[1] += v55;
  const vec v56 = t_x_b[2] * t_x_a[2];
  add(da1 + 3 * W, v56 * t_x1_out[0]);
  const vec v57 = t_x_a[2] * v52;
  d_x_a[2] += t_x_b[2] * v52;
  d_x_b[2] += v57;
  const vec v58 = 0.57735026f * t_x1_out[0];
  const vec v59 = t_x_y[0] * v58;
  d_x_y[0] += t_x_y[0] * v58;
  d_x_y[0] += v59;
  const vec v60 = 0.57735026f * t_x1_out[0];
  const vec v61 = t_x_y[1] * v60;
  d_x_y[1] += t_x_y[1] * v60;
  d_x_y[1] += v61;
  const vec v62 = t_x_y[2] * v58;
  d_x_y[2] += t_x_y[2] * v58;
  d_x_y[2] += v62;
  Items<3>::set(o_x_a + 0 * C + c * 3, n, d_x_a + 0);
  Items<3>::set(o_x_b + 0 * C + c * 3, n, d_x_b + 0);
  o_x_y[0] += sum_some(d_x_y[0], n);
  o_x_y[1] += sum_some(d_x_y[1], n);
  o_x_y[2] += sum_some(d_x_y[2], n);
}
static void epilogue(const num* x_u, const num* x_v, const num* da1, real* o_x_u, real* o_x_v, i64 C, int n) {
  set_some(o_x_u + 0 * C, n, 0.57735026f * load(da1 + 0 * W) + 0.57735026f * load(da1 + 1 * W));
  set_some(o_x_u + 1 * C, n, 0.5163978f * load(da1 + 0 * W) - 0.2581989f * load(da1 + 1 * W) + 0.7745967f * load(da1 + 2 * W));
  set_some(o_x_v + 0 * C, n, 0.57735026f * load(da1 + 3 * W));
}
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* const* given, real* const* opened, const RowIndex* indices, i64 rows, i64 channels) {
  const i64 elements = indices[0].size, C = channels, vectors = (C + W - 1) / W;
  const i64* const index = (const i64*)indices[0].at;
  if (index && !inside(index, rows, elements)) return 2;
  const Room<i64> tasks_room(tasks_size(rows, elements, 0)); i64* const tasks = tasks_room.at; if (!tasks) return 1;
  const Tasks t = make_tasks(tasks, index, rows, elements, 0);
  const Room<num> s_x_y_room(rows * 3 + 1); num* const s_x_y = s_x_y_room.at; if (!s_x_y) return 1;
  for (i64 m = 0; m < rows * 3; ++m) s_x_y[m] = 0;
  int fault = 0;
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(t.count * 1, rows * vectors * 457, 131072, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(11 * W); num* const scratch = scratch_room.at;
    num* const x_u = scratch + 0 * W;
    num* const x_v = scratch + 2 * W;
    num* const a = scratch + 3 * W;
    num* const da1 = scratch + 7 * W;
    const real* const p_x_a = given[0];
    const real* const p_x_b = given[1];
    const real* const p_x_y = given[2];
    const real* const p_x_u = given[3];
    const real* const p_x_v = given[4];
    const real* const p_x1_out = given[5];
    real* const o_x_a = opened[0];
    real* const o_x_b = opened[1];
    real* const o_x_u = opened[3];
    real* const o_x_v = opened[4];
    for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < t.count * 1;) {
      if (!scratch) { *failed = 1; continue; }
      const i64 e = t.element[b / 1], from = t.begin[b / 1];
      const i64 to = t.first[e + 1];
      for (i64 v = 0; v < vectors; ++v) {
        const i64 c = v * W; const int n = least(W, C - c);
        if (from == to) {
          for (int i = 0; i < 2; ++i) set_some(o_x_u + (e * 2 + i) * C + c, n, vec{});
          for (int i = 0; i < 1; ++i) set_some(o_x_v + (e * 1 + i) * C + c, n, vec{});
          continue;
        }
        for (int i = 0; i < 2; ++i) store(x_u + i * W, get_some(p_x_u + (e * 2 + i) * C + c, n));
        for (int i = 0; i < 1; ++i) store(x_v + i * W, get_some(p_x_v + (e * 1 + i) * C + c, n));
        prologue(x_u, x_v, a);
        clear(da1, 4 * W);
        for (i64 q = from; q < to; ++q) {
          const i64 r = t.order[q];
          row(p_x_a + r * 3 * C, p_x_b + r * 3 * C, p_x_y + r * 3, p_x1_out + r * 4 * C, o_x_a + r * 3 * C, o_x_b + r * 3 * C, s_x_y + r * 3, a, da1, C, c, n);
        }
        epilogue(x_u, x_v, da1, o_x_u + e * 2 * C + c, o_x_v + e * 1 * C + c, C, n);
      }
    }
  });
  for (i64 m = 0; m < rows * 3; ++m) opened[2][m] = narrow(s_x_y[m]);
  return fault;
}
