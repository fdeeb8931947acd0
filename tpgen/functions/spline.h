// Cubic splines of many functions of one number.  Needs: real = num, vec, numbers.

// Steps are equally long.  For each there are four coefficients of all functions: of 1, t, t^2 and t^3.
struct Grid { num start, step, steps, functions; };

struct Place { i64 step; num part; bool inside; };  // the step, what part of it is behind the place, and if it is in one
static inline Place place(num r, const Grid& k) {
  const num at = (r - k.start) / k.step, last = k.steps - 1;
  const i64 step = at > 0 ? (i64)(at < last ? at : last) : 0;  // 0 for what is no number, which its part tells
  const num part = at - step;
  return {step, part > 1 ? 1 : part < 0 ? 0 : part, !(part > 1 || part < 0)};
}
static inline vec value(const num* from, i64 N, i64 n, num t) {
  return take(from, n) + t * (take(from + N, n) + t * (take(from + 2 * N, n) + t * take(from + 3 * N, n)));
}
static inline vec slope(const num* from, i64 N, i64 n, num t) {
  return take(from + N, n) + t * (2 * take(from + 2 * N, n) + 3 * t * take(from + 3 * N, n));
}

// At places r: rows of all functions.  Or, where there is room for it, the gradient by r for cotangents g of the rows.
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(
    const real* r, const real* table, const Grid* grid, const real* g, real* rows, real* by_r, const real*, const real*,
    i64 count) {
  const Grid k = *grid;
  const i64 N = k.functions;
  in_blocks(count, BLOCK / N + 1, N, [=](i64 at, i64 end) __attribute__((always_inline)) {
    for (i64 i = at; i < end; ++i) {
      const Place here = place(r[i], k);
      const num* from = table + here.step * 4 * N;
      if (!by_r) {
        for (i64 m = 0; m < N; m += W) give(rows + i * N + m, value(from + m, N, N - m, here.part), N - m);
        continue;
      }
      vec sum = {};
      for (i64 m = 0; m < N; m += W) sum += take(g + i * N + m, N - m) * slope(from + m, N, N - m, here.part);
      num total = 0;
      UNROLL for (int m = 0; m < W; ++m) total += sum[m];
      by_r[i] = here.inside ? total / k.step : 0;
    }
  });
  return 0;
}
