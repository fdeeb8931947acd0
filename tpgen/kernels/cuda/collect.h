// The sums over the edges of each node of what a kernel has written for each edge, in the order of its edges.  Needs
// device.h, and how many numbers a row has.

// A thread adds one number of a node; so many edges of it are on their way at once.
extern "C" __global__ void __launch_bounds__(THREADS) tpgen_collect(
    const real* parts, const i64* first, const i64* order, real* sums) {
  enum { CHUNKS = (COLLECTED + THREADS - 1) / THREADS, AT_ONCE = 8 };
  const i64 node = blockIdx.x / CHUNKS, end = first[node + 1];
  const int n = blockIdx.x % CHUNKS * THREADS + threadIdx.x;
  if (n >= COLLECTED) return;
  num sum = 0;
  for (i64 q = first[node]; q < end; q += AT_ONCE) {
    num found[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) found[k] = q + k < end ? widen(parts[order[q + k] * COLLECTED + n]) : 0;
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) sum += found[k];
  }
  sums[node * COLLECTED + n] = narrow(sum);
}
