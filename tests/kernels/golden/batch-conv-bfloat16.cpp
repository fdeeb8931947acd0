// batch schedule: tiles of 8 rows, 8 lanes of bfloat16
//   path 0: 2x1o x 1x1o -> 3x0e (uvw); matrix products, 3 non-zeros
// opens out with x1 @ src, out @ dst
// prelude 8dee32c7c1de
// path 0: 2x1o x 1x1o -> 3x0e (uvw)
static void path_0(int n, num* s_x1, num* s_x2, num* a_out, num* P, const num* weights) {
  for (int u0 = 0; u0 < 2; u0 += 2) {
    const int u1 = least(2, u0 + 2);
    for (int u = u0; u < u1; ++u) for (int v = 0; v < 1; ++v) for (int r = 0; r < R; r += W) {
      vec x[3]; x[0] = load(s_x1 + (0 + u * 3) * (i64)R + 0 * R + r); x[1] = load(s_x1 + (0 + u * 3) * (i64)R + 1 * R + r); x[2] = load(s_x1 + (0 + u * 3) * (i64)R + 2 * R + r);
      vec y[3]; y[0] = load(s_x2 + (0 + v * 3) * (i64)R + 0 * R + r); y[1] = load(s_x2 + (0 + v * 3) * (i64)R + 1 * R + r); y[2] = load(s_x2 + (0 + v * 3) * (i64)R + 2 * R + r);
      const vec v1 = x[0] * y[0];
      vec sum_P_0 = 0.4082483f * v1;
      const vec v2 = x[1] * y[1];
      sum_P_0 += 0.4082483f * v2;
      const vec v3 = x[2] * y[2];
      sum_P_0 += 0.4082483f * v3;
      store(P + ((u - u0) * 1 + v) * 1 * R + 0 * R + r, sum_P_0);
    }
    const int count = (u1 - u0) * 1;
    multiply<1 * R>(true, a_out + 0 * (i64)R, 1 * R, weights + 0 + u0 * 3, 1, 3, P, 1 * R, 3, count);
  }
}
static void tile(int n, const real* const* p_x1, const real* const* p_x2, real* const* q_out, num* s_x1, num* s_x2, num* a_out, num* P, const num* weights) {
  stage_rows(p_x1, R, n, 0, 6, s_x1 + 0 * R, 1);
  stage_rows(p_x2, R, n, 0, 3, s_x2 + 0 * R, 1);
  clear(a_out, 3 * R);
  path_0(n, s_x1, s_x2, a_out, P, weights);
  add_rows(a_out + 0 * R, q_out, R, n, 0, 3, 1);
}
// indices.h
// order.h
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* const* given, real* const* opened, const RowIndex* indices, i64 rows, i64 channels) {
  const real* const x1 = given[0];
  const real* const x2 = given[1];
  const real* const w = given[2];
  real* const d_out = opened[0];
  int fault = 0;
  const RowIndex src = indices[0];
  const RowIndex dst = indices[1];
  expect_writes(d_out, dst.size * 3 * (i64)sizeof(real));
  if (src.how & CHECKED && !inside(src, rows, src.size)) return 2;
  if (dst.how & CHECKED && !inside(dst, rows, dst.size)) return 3;
  const i64 owners = dst.size;
  const Room<i64> first_room(owners + 1); i64* const first = first_room.at; if (!first) return 1;
  const Room<i64> order_room(rows + 1); i64* const order = order_room.at; if (!order) return 1;
  sort_rows(dst, rows, owners, first, order);
  const i64 span = 904;
  const i64 blocks = rows / span + 1;
  const Room<num> weights_room(8); num* const weights = weights_room.at; if (!weights) return 1;
  for (i64 m = 0; m < 6; ++m) weights[m] = widen(w[m]);
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(blocks, rows * 18, 65536, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(112); num* const scratch = scratch_room.at;
    num* const s_x1 = scratch + 0;
    num* const s_x2 = scratch + 48;
    num* const a_out = scratch + 72;
    num* const P = scratch + 96;
    for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < blocks;) {
      if (!scratch) { *failed = 1; continue; }
      const i64 from = owner_at(first, owners, b * span), to = owner_at(first, owners, (b + 1) * span);
      const i64 begin = first[from], end = first[to];
      zero(d_out + from * 3, (to - from) * 3);
      for (i64 q = begin; q < end; q += R) {
        const int n = least(R, end - q);
        const real* p_x1[R];
        const real* p_x2[R];
        real* q_out[R];
        for (int r = 0; r < n; ++r) {
          const i64 e = order[q + r];
          p_x1[r] = x1 + src[e] * 6;
          p_x2[r] = x2 + e * 3;
          q_out[r] = d_out + dst[e] * 3;
        }
        tile(n, p_x1, p_x2, q_out, s_x1, s_x2, a_out, P, weights);
      }
    }
  });
  return fault;
}
