// The sum of several numbers over lanes whose numbers differ in the bits from LOW up to HIGH, in a fixed order; all get it.

template <int LOW, int HIGH, int N> DEVICE void sum_lanes(num (&a)[N]) {
#pragma unroll
  for (int mask = HIGH / 2; mask >= LOW; mask /= 2)
#pragma unroll
    for (int n = 0; n < N; ++n) a[n] += __shfl_xor_sync(~0u, a[n], mask);
}
