// The sums of what the blocks of a kernel have of the gradient of weights that all rows share.  Needs device.h, and how
// many weights there are.

enum { SUMMERS = 16, AT_ONCE = 16 };  // warps of a block, and numbers that a thread has on their way

// A block takes 32 neighbouring weights.  Its warps take parts in turn, each a fixed set of them in their order; the
// first warp adds what they have in the order of the warps.  So the bits depend on the number of parts alone.
extern "C" __global__ void __launch_bounds__(32 * SUMMERS) tpgen_sum(const num* parts, real* d_w, int count) {
  num* const mine = (num*)shared_memory() + threadIdx.x;
  const int n = blockIdx.x * 32 + threadIdx.x % 32;
  num sum = 0;
  if (n < WEIGHTS)
    for (int b = threadIdx.x / 32; b < count; b += SUMMERS * AT_ONCE) {
      num found[AT_ONCE];
#pragma unroll
      for (int k = 0; k < AT_ONCE; ++k)
        found[k] = b + k * SUMMERS < count ? parts[(i64)(b + k * SUMMERS) * WEIGHTS + n] : 0;
#pragma unroll
      for (int k = 0; k < AT_ONCE; ++k) sum += found[k];
    }
  *mine = sum;
  __syncthreads();
  if (threadIdx.x >= 32 || n >= WEIGHTS) return;
  for (int m = 1; m < SUMMERS; ++m) sum += mine[m * 32];
  d_w[n] = narrow(sum);
}
