// The gradients of SiLU's gradient, in one pass.  Needs: real, numbers, functions.

// At x, for a cotangent c of g f'(x): c f'(x) and c g f''(x).
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(
    const real* x, const real* g, const real* c, const void*, real* by_g, real* by_x, void*, void*, i64 count) {
  every(count, 1, [=](i64 i, i64 n) {
    const Silu f(take(x + i, n));
    const vec by = take(c + i, n);
    give(by_g + i, by * f.slope(), n);
    give(by_x + i, by * take(g + i, n) * f.bend(), n);
  });
  return 0;
}
