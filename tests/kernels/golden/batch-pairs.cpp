// batch schedule: tiles of 4 rows, 4 lanes of float64
//   path 0: 4x1o x 4x1o -> 6x0e (uvu<v); 3 non-zeros
//   path 1: 4x1o x 4x1o -> 3x1e (u<vw); matrix products, 6 non-zeros
//   path 2: 4x1o x 4x1o -> 2x0e (uuw); matrix products, 3 non-zeros
// opens w
// prelude 5a490909f003
// path 0: 4x1o x 4x1o -> 6x0e (uvu<v)
static void path_0(int n, num* s_x1, num* s_x2, num* s_out, num* P, num* a_w) {
  static const int pair_a[] = {0, 0, 0, 1, 1, 2};
  static const int pair_b[] = {1, 2, 3, 2, 3, 3};
  for (int p = 0; p < 6; ++p) {
    for (int r = 0; r < R; r += W) {
      vec x[3]; x[0] = load(s_x1 + (0 + pair_a[p] * 3) * (i64)R + 0 * R + r); x[1] = load(s_x1 + (0 + pair_a[p] * 3) * (i64)R + 1 * R + r); x[2] = load(s_x1 + (0 + pair_a[p] * 3) * (i64)R + 2 * R + r);
      vec y[3]; y[0] = load(s_x2 + (0 + pair_b[p] * 3) * (i64)R + 0 * R + r); y[1] = load(s_x2 + (0 + pair_b[p] * 3) * (i64)R + 1 * R + r); y[2] = load(s_x2 + (0 + pair_b[p] * 3) * (i64)R + 2 * R + r);
      vec g[1]; g[0] = load(s_out + (0 + p * 1) * (i64)R + 0 * R + r);
      const vec v1 = 0.5773502691896257 * x[0];
      const vec v2 = y[0] * v1;
      const vec v3 = 0.5773502691896258 * x[1];
      const vec v4 = v2 + y[1] * v3;
      const vec v5 = 0.5773502691896257 * x[2];
      const vec v6 = v4 + y[2] * v5;
      vec sum_w_0 = g[0] * v6;
      a_w[0 + p] += lane_sum(sum_w_0);
    }
  }
}
// path 1: 4x1o x 4x1o -> 3x1e (u<vw)
static void path_1(int n, num* s_x1, num* s_x2, num* s_out, num* P, num* a_w) {
  static const int pair_a[] = {0, 0, 0, 1, 1, 2};
  static const int pair_b[] = {1, 2, 3, 2, 3, 3};
  for (int p0 = 0; p0 < 6; p0 += 6) {
    const int p1 = least(6, p0 + 6);
    for (int p = p0; p < p1; ++p) for (int r = 0; r < R; r += W) {
      vec x[3]; x[0] = load(s_x1 + (0 + pair_a[p] * 3) * (i64)R + 0 * R + r); x[1] = load(s_x1 + (0 + pair_a[p] * 3) * (i64)R + 1 * R + r); x[2] = load(s_x1 + (0 + pair_a[p] * 3) * (i64)R + 2 * R + r);
      vec y[3]; y[0] = load(s_x2 + (0 + pair_b[p] * 3) * (i64)R + 0 * R + r); y[1] = load(s_x2 + (0 + pair_b[p] * 3) * (i64)R + 1 * R + r); y[2] = load(s_x2 + (0 + pair_b[p] * 3) * (i64)R + 2 * R + r);
      const vec v1 = x[0] * y[1];
      vec sum_P_2 = 0.2886751345948129 * v1;
      const vec v2 = x[0] * y[2];
      vec sum_P_1 = -0.2886751345948129 * v2;
      const vec v3 = x[1] * y[0];
      sum_P_2 += -0.2886751345948129 * v3;
      const vec v4 = x[1] * y[2];
      vec sum_P_0 = 0.2886751345948129 * v4;
      const vec v5 = x[2] * y[0];
      sum_P_1 += 0.2886751345948129 * v5;
      const vec v6 = x[2] * y[1];
      sum_P_0 += -0.2886751345948129 * v6;
      store(P + (p - p0) * 3 * R + 2 * R + r, sum_P_2);
      store(P + (p - p0) * 3 * R + 1 * R + r, sum_P_1);
      store(P + (p - p0) * 3 * R + 0 * R + r, sum_P_0);
    }
    const int count = (p1 - p0) * 1;
    correlate(a_w + 6 + p0 * 3 + 0, 3, P, s_out + 6 * (i64)R, count, 3, 3 * R);
  }
}
// path 2: 4x1o x 4x1o -> 2x0e (uuw)
static void path_2(int n, num* s_x1, num* s_x2, num* s_out, num* P, num* a_w) {
  for (int u0 = 0; u0 < 4; u0 += 4) {
    const int u1 = least(4, u0 + 4);
    for (int u = u0; u < u1; ++u) for (int r = 0; r < R; r += W) {
      vec x[3]; x[0] = load(s_x1 + (0 + u * 3) * (i64)R + 0 * R + r); x[1] = load(s_x1 + (0 + u * 3) * (i64)R + 1 * R + r); x[2] = load(s_x1 + (0 + u * 3) * (i64)R + 2 * R + r);
      vec y[3]; y[0] = load(s_x2 + (0 + u * 3) * (i64)R + 0 * R + r); y[1] = load(s_x2 + (0 + u * 3) * (i64)R + 1 * R + r); y[2] = load(s_x2 + (0 + u * 3) * (i64)R + 2 * R + r);
      const vec v1 = x[0] * y[0];
      vec sum_P_0 = 0.28867513459481287 * v1;
      const vec v2 = x[1] * y[1];
      sum_P_0 += 0.2886751345948129 * v2;
      const vec v3 = x[2] * y[2];
      sum_P_0 += 0.28867513459481287 * v3;
      store(P + (u - u0) * 1 * R + 0 * R + r, sum_P_0);
    }
    const int count = (u1 - u0) * 1;
    correlate(a_w + 24 + u0 * 2 + 0, 2, P, s_out + 15 * (i64)R, count, 2, 1 * R);
  }
}
static void tile(int n, const real* const* p_x1, const real* const* p_x2, const real* const* p_out, num* s_x1, num* s_x2, num* s_out, num* P, num* a_w) {
  stage_rows(p_x1, R, n, 0, 12, s_x1 + 0 * R, 1);
  stage_rows(p_x2, R, n, 0, 12, s_x2 + 0 * R, 1);
  stage_rows(p_out, R, n, 0, 6, s_out + 0 * R, 1);
  stage_rows(p_out, R, n, 6, 9, s_out + 6 * R, 1);
  stage_rows(p_out, R, n, 15, 2, s_out + 15 * R, 1);
  path_0(n, s_x1, s_x2, s_out, P, a_w);
  path_1(n, s_x1, s_x2, s_out, P, a_w);
  path_2(n, s_x1, s_x2, s_out, P, a_w);
}
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* const* given, real* const* opened, const void*, i64 rows, i64 channels) {
  const real* const x1 = given[0];
  const real* const x2 = given[1];
  const real* const out = given[3];
  real* const d_w = opened[0];
  int fault = 0;
  const i64 room = 524288;  // blocks that fit into 64 MB of sums
  const i64 most = room < 32 ? room : 32;
  const i64 span = ((rows + most - 1) / most + 4) / 4 * 4;
  const i64 blocks = rows ? (rows + span - 1) / span : 0;
  const Room<num> sums_room((blocks + 1) * 32); num* const sums = sums_room.at; if (!sums) return 1;
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(blocks, rows * 73, 65536, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(236); num* const scratch = scratch_room.at;
    num* const s_x1 = scratch + 0;
    num* const s_x2 = scratch + 48;
    num* const s_out = scratch + 96;
    num* const P = scratch + 164;
    for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < blocks;) {
      if (!scratch) { *failed = 1; continue; }
      num* const a_w = sums + b * 32; clear(a_w, 32);
      const i64 begin = b * span, end = least(rows, begin + span);
      for (i64 q = begin; q < end; q += R) {
        const int n = least(R, end - q);
        const real* p_x1[R];
        const real* p_x2[R];
        const real* p_out[R];
        for (int r = 0; r < n; ++r) {
          const i64 e = q + r;
          p_x1[r] = x1 + e * 12;
          p_x2[r] = x2 + e * 12;
          p_out[r] = out + e * 17;
        }
        tile(n, p_x1, p_x2, p_out, s_x1, s_x2, s_out, P, a_w);
      }
    }
  });
  if (!blocks) clear(sums, 32);
  for (i64 b = 1; b < blocks; ++b) for (i64 m = 0; m < 32; m += W) add(sums + m, load(sums + b * 32 + m));
  for (i64 m = 0; m < 32; ++m) d_w[m] = narrow(sums[m]);
  return fault;
}
