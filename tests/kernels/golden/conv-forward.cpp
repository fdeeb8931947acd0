// channel schedule: 4 lanes of float32, 1 tables
//   path 0: 16x1o x 1x1o -> 16x0e (uvu); x1[16], w[16], out[16]; 3 non-zeros
// opens out with x1 @ src, out @ dst
// prelude ae7e174fedfa
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
    store(t + 0 * W, 0.57735026f * x0);
    store(t + 1 * W, 0.57735026f * x1);
    store(t + 2 * W, 0.57735026f * x2);
  }
}
static void row(const real* x1, const real* x2, const real* w, real* d_out, num* a_out, num* t_x2, const num* T) {
  // path 0: 16x1o x 1x1o -> 16x0e (uvu)
  for (int v = 0; v < 1; ++v) {
    const num* t = T + (0 + v * 3) * W;
    for (int c = 0; c < 16; c += W) {
      vec x[3]; Tile<3>::fetch_items(x1 + 0 + c * 3, x);
      vec u[1]; u[0] = fetch(w + 0 + c);
      const vec v1 = t[0 * W] * x[0] + t[1 * W] * x[1] + t[2 * W] * x[2];
      vec sum_out_0 = u[0] * v1;
      add(a_out + 0 + c, sum_out_0);
    }
  }
}
static void finish(real* d_out, const num* a_out) {
  unstage<1, 16, 1>(a_out + 0, d_out + 0);
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
  expect_writes(d_out, dst.size * 16 * (i64)sizeof(real));
  if (src.how & CHECKED && !inside(src, rows, src.size)) return 2;
  if (dst.how & CHECKED && !inside(dst, rows, dst.size)) return 3;
  const i64 owners = dst.size;
  const Room<i64> first_room(owners + 1); i64* const first = first_room.at; if (!first) return 1;
  const Room<i64> order_room(rows + 1); i64* const order = order_room.at; if (!order) return 1;
  sort_rows(dst, rows, owners, first, order);
  const i64 span = 196;
  const i64 blocks = rows / span + 1;
  i64 next = 0; i64* const taken = &next; int* const failed = &fault;
  on_threads(blocks, rows * 83, 65536, [=]() __attribute__((always_inline)) {
    const Room<num> scratch_room(40); num* const scratch = scratch_room.at;
    num* const a_out = scratch + 0;
    num* const t_x2 = scratch + 16;
    num* const T = scratch + 28;
    for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < blocks;) {
      if (!scratch) { *failed = 1; continue; }
      const i64 from = owner_at(first, owners, b * span), to = owner_at(first, owners, (b + 1) * span);
      const i64 end = first[to];
      i64 q = first[from], tile = q;
      for (i64 o = from; o < to; ++o) {
        clear(a_out, 16);
        for (; q < first[o + 1]; ++q) {
          if (q == tile) {
            const int n = least(W, end - q);
            const real* p_x2[W] = {};
            for (int r = 0; r < n; ++r) { const i64 e = order[q + r]; p_x2[r] = x2 + e * 3; }
            tabulate(n, T, p_x2, t_x2);
            tile += n;
          }
          const i64 e = order[q];
          row(x1 + src[e] * 48, x2 + e * 3, w + e * 16, d_out + dst[e] * 16, a_out, t_x2, T + (q - first[from]) % W);
        }
        finish(d_out + o * 16, a_out);
      }
    }
  });
  return fault;
}
