// Sums over the lanes of a row, in a fixed order.

struct alignas(16) quad { num x, y, z, w; };
DEVICE quad four(const num* p) { return *(const quad*)p; }

// Each step halves the numbers that a lane holds: it keeps those whose index has the bit that the lane has.
template <int SIZE, int MASK, int N> DEVICE void fold_step(num (&a)[N], int lane) {
  if constexpr (MASK > 0) {
    if constexpr (SIZE > 1) {
      const bool up = lane & MASK;
#pragma unroll
      for (int n = 0; n < SIZE / 2; ++n) {
        const num kept = up ? a[n + SIZE / 2] : a[n], given = up ? a[n] : a[n + SIZE / 2];
        a[n] = kept + __shfl_xor_sync(~0u, given, MASK);
      }
    } else {
      a[0] += __shfl_xor_sync(~0u, a[0], MASK);
    }
    fold_step<(SIZE + 1) / 2, MASK / 2>(a, lane);
  }
}

// N numbers of each of WIDTH lanes, a power of two both, added to parts[0], parts[stride], ... of which there are so many.
template <int WIDTH, int N> DEVICE void fold_lanes(num (&a)[N], int lane, int used, num* parts, int stride) {
  constexpr int KEPT = N > WIDTH ? N / WIDTH : 1, SHARERS = N > WIDTH ? 1 : WIDTH / N;
  const int within = lane % WIDTH;
  fold_step<N, WIDTH / 2>(a, within);
  if (within % SHARERS == 0) {
#pragma unroll
    for (int n = 0; n < KEPT; ++n) {
      const int at = within / SHARERS * KEPT + n;
      if (at < used) parts[at * stride] += a[n];
    }
  }
}
