// channel schedule: 4 lanes of float64, 1 tables
//   path 0: 16x1o x 1x1o -> 16x0e (uvu); x1[16], w[16], out[16]; 3 non-zeros
// opens x1, x2, w with x1 @ src, out @ dst
// prelude de754c8b6d65
static void tabulate(int n, num* T, const real* const* p_x2, num* t_x2) {
  for (int r = 0; r < W; ++r) {
    for (int e = 0; e < 3; ++e) t_x2[e * W + r] = r < n ? widen(p_x2[r][e]) : 0;
  }
  // T[i, k] of path 0
  for (int v = 0; v < 1; ++v) {
    const num* x = t_x2 + (0 + v * 3) * W;
    num* t = T + (0 + v * 3) * W;
    const vec x0 = load(x + 0 * W);
    const vec x1 = load(x + 1 * W);
    const vec x2 = load(x + 2 * W);
    store(t + 0 * W, 0.5773502691896257 * x0);
    store(t + 1 * W, 0.5773502691896258 * x1);
    store(t + 2 * W, 0.5773502691896257 * x2);
  }
}
static void row(const real* x1, const real* x2, const real* w, const real* out, real* d_x1, real* d_x2, real* d_w, num* s_x1, num* a_x1, num* t_x2, num* r_x2, const num* T) {
  stage<1, 16, 3>(x1 + 0, s_x1 + 0);
  clear(r_x2 + 0 * W, 3 * W);
  // path 0: 16x1o x 1x1o -> 16x0e (uvu)
  for (int v = 0; v < 1; ++v) {
    const num* t = T + (0 + v * 3) * W;
    vec s[3] = {};
    for (int c = 0; c < 16; c += W) {
      vec x[3]; x[0] = load(s_x1 + 0 + c); x[1] = load(s_x1 + 16 + c); x[2] = load(s_x1 + 32 + c);
      vec g[1]; g[0] = fetch(out + 0 + c);
      vec u[1]; u[0] = fetch(w + 0 + c);
      const vec v1 = u[0] * g[0];
      vec sum_x1_0 = v1 * t[0 * W];
      const vec v2 = t[0 * W] * x[0];
      s[0] += v1 * x[0];
      vec sum_x1_1 = v1 * t[1 * W];
      const vec v3 = v2 + t[1 * W] * x[1];
      s[1] += v1 * x[1];
      vec sum_x1_2 = v1 * t[2 * W];
      const vec v4 = v3 + t[2 * W] * x[2];
      s[2] += v1 * x[2];
      vec sum_w_0 = g[0] * v4;
      add(a_x1 + 0 + c, sum_x1_0);
      add(a_x1 + 16 + c, sum_x1_1);
      add(a_x1 + 32 + c, sum_x1_2);
      put(d_w + 0 + c, sum_w_0);
    }
    add(r_x2 + (0 + v * 3 + 0) * W, 0.5773502691896257 * s[0]);
    add(r_x2 + (0 + v * 3 + 1) * W, 0.5773502691896258 * s[1]);
    add(r_x2 + (0 + v * 3 + 2) * W, 0.5773502691896257 * s[2]);
  }
  for (int e = 0; e < 3; ++e) d_x2[e] = narrow(lane_sum(load(r_x2 + e * W)));
}
static void finish(real* d_x1, const num* a_x1) {
  unstage<1, 16, 3>(a_x1 + 0, d_x1 + 0);
}
// indices.h
// order.h
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(const real* const* given, real* const* opened, const RowIndex* indices, i64 rows, i64 channels) {
  const real* const x1 = given[0];
  const real* const x2 = given[1];
  const real* const w = given[2];
  const real* const out = given[3];
  real* const d_x1 = opened[0];
  real* const d_x2 = opened[1];
  real* const d_w = opened[2];
  int fault = 0;
  const RowIndex src = indices[0];
  const RowIndex dst = indices[1];
  expect_writes(d_x1, src.size * 48 * (i64)sizeof(real));
  expect_writes(d_x2, rows * 3 * (i64)sizeof(real));
  expect_writes(d_w, rows * 16 * (i64)sizeof(real));
  if (src.how & CHECKED && !inside(src, rows, src.size)) return 2;
  if (dst.how & CHECKED && !inside(dst, rows, dst.size)) return 3;
  const i64 owners = src.size;
  const Room<i64> first_room(owners + 1); i64* const first = first_room.at; if (!first) return 1;
  const Room<i64> order_room(rows + 1); i64* const order = order_room.at; if (!order) return 1;
  sort_rows(src, rows, owners, first, order);
  const i64 span = 196;
  const i64 blocks = rows / span + 1;
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(blocks, rows * 83, 65536, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(132); num* const scratch = scratch_room.at;
    num* const s_x1 = scratch + 0;
    num* const a_x1 = scratch + 48;
    num* const t_x2 = scratch + 96;
    num* const r_x2 = scratch + 108;
    num* const T = scratch + 120;
    for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < blocks;) {
      if (!scratch) { *failed = 1; continue; }
      const i64 from = owner_at(first, owners, b * span), to = owner_at(first, owners, (b + 1) * span);
      const i64 end = first[to];
      i64 q = first[from], tile = q;
      for (i64 o = from; o < to; ++o) {
        clear(a_x1, 48);
        for (; q < first[o + 1]; ++q) {
          if (q == tile) {
            const int n = least(W, end - q);
            const real* p_x2[W] = {};
            for (int r = 0; r < n; ++r) { const i64 e = order[q + r]; p_x2[r] = x2 + e * 3; }
            tabulate(n, T, p_x2, t_x2);
            tile += n;
          }
          const i64 e = order[q];
          row(x1 + src[e] * 48, x2 + e * 3, w + e * 16, out + dst[e] * 16, d_x1 + src[e] * 48, d_x2 + e * 3, d_w + e * 16, s_x1, a_x1, t_x2, r_x2, T + (q - first[from]) % W);
        }
        finish(d_x1 + o * 48, a_x1);
      }
    }
  });
  return fault;
}
