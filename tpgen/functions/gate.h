// Gates of rows, their gradients, and the gradients of these.  Needs: real, numbers, functions, Tile<D>; a table:
// IN, OUT, EVERY_RUN.

// Where copies stand in a row: their scalars, what these multiply (of D numbers each, 0 for nothing), and the results.
struct Run { i64 scalar, gated, out, count; num scale; };

// n items of D numbers, as many as a vector has or fewer
template <int D> static inline void take(const real* p, vec* v, i64 n) {
  if (n >= W) return Tile<D>::fetch_items(p, v);
  real room[D * W] = {};
  for (i64 m = 0; m < n * D; ++m) room[m] = p[m];
  Tile<D>::fetch_items(room, v);
}
template <int D> static inline void give(real* p, const vec* v, i64 n) {
  if (n >= W) return Tile<D>::put_items(p, v);
  real room[D * W];
  Tile<D>::put_items(room, v);
  for (i64 m = 0; m < n * D; ++m) p[m] = room[m];
}

// out = k f(s) y
template <class F, int D> static void value(Run r, const real* x, real* out) {
  for (i64 i = 0; i < r.count; i += W) {
    const i64 n = r.count - i;
    const vec a = r.scale * F(take(x + r.scalar + i, n)).value();
    if constexpr (D == 0) give(out + r.out + i, a, n);
    else {
      vec y[D];
      take<D>(x + r.gated + i * D, y, n);
      UNROLL for (int d = 0; d < D; ++d) y[d] *= a;
      give<D>(out + r.out + i * D, y, n);
    }
  }
}
// for a cotangent g of out: k f'(s) y g by s, k f(s) g by y
template <class F, int D> static void slope(Run r, const real* x, const real* g, real* by_x) {
  for (i64 i = 0; i < r.count; i += W) {
    const i64 n = r.count - i;
    const F f(take(x + r.scalar + i, n));
    if constexpr (D == 0) give(by_x + r.scalar + i, by_slope(f, r.scale * take(g + r.out + i, n)), n);
    else {
      vec y[D], h[D], sum = {};
      take<D>(x + r.gated + i * D, y, n);
      take<D>(g + r.out + i * D, h, n);
      const vec a = r.scale * f.value();
      UNROLL for (int d = 0; d < D; ++d) sum += y[d] * h[d], h[d] *= a;
      give<D>(by_x + r.gated + i * D, h, n);
      give(by_x + r.scalar + i, by_slope(f, r.scale * sum), n);
    }
  }
}
// for a cotangent c of these: k (f'(s) y c_s + f(s) c_y) by g, k (f''(s) y g c_s + f'(s) g c_y) by s, k f'(s) g c_s by y
template <class F, int D>
static void bend(Run r, const real* x, const real* g, const real* c, real* by_g, real* by_x) {
  for (i64 i = 0; i < r.count; i += W) {
    const i64 n = r.count - i;
    const F f(take(x + r.scalar + i, n));
    const vec by = r.scale * take(c + r.scalar + i, n), first = by_slope(f, by);
    if constexpr (D == 0) {
      give(by_g + r.out + i, first, n);
      give(by_x + r.scalar + i, by_bend(f, by * take(g + r.out + i, n)), n);
    } else {
      vec y[D], h[D], e[D], along = {}, across = {};
      take<D>(x + r.gated + i * D, y, n);
      take<D>(g + r.out + i * D, h, n);
      take<D>(c + r.gated + i * D, e, n);
      const vec a = r.scale * f.value();
      UNROLL for (int d = 0; d < D; ++d) {
        along += y[d] * h[d], across += e[d] * h[d];
        e[d] = a * e[d] + first * y[d];
        h[d] *= first;
      }
      give<D>(by_g + r.out + i * D, e, n);
      give<D>(by_x + r.gated + i * D, h, n);
      give(by_x + r.scalar + i, by_bend(f, by * along) + by_slope(f, r.scale * across), n);
    }
  }
}

// The gate of x; or, for g, its gradient; or, for g and c, the gradients of that.
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(
    const real* x, const real* g, const real* c, const void*, real* out, real* by_g, real* by_x, void*, i64 rows) {
  in_blocks(rows, 1 + BLOCK / (IN + OUT + 1), IN + OUT, [=](i64 at, i64 end) {
    for (i64 r = at; r < end; ++r) {
      if (c) { EVERY_RUN(bend, x + r * IN, g + r * OUT, c + r * IN, by_g + r * OUT, by_x + r * IN) }
      else if (g) { EVERY_RUN(slope, x + r * IN, g + r * OUT, by_x + r * IN) }
      else { EVERY_RUN(value, x + r * IN, out + r * OUT) }
    }
  });
  return 0;
}
