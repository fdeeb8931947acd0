// cuda placement: opens w; float32, sm_90
//   a step is 32 rows: 8 units on 4 warps
//   shared memory: 4224 bytes, 2 stages of 1536
//   gather 0, phase 0: P + 0: paths 0; 64 items, 1 lanes each
//   gather 1, phase 3: w + 0: paths 0; 192 items, 1 lanes each
typedef long long i64; typedef unsigned long long u64;
typedef float real;  // in memory
typedef float num;  // in registers
enum { THREADS = 128, BLOCKS = 4, ROWS = 32, STAGES = 2 };
#ifndef TPGEN_DEVICE
// device.h
#endif
DEVICE num widen(real x) { return x; }
DEVICE real narrow(num x) { return x; }
// copies.h
// gather.h
struct Step {
  const real* x1;
  const real* x2;
  const real* out;
  real* d_w;
  num* P;
  int rows;
};
DEVICE void gather_0(const Step& s, const int chunk) {
  const int lane = threadIdx.x % 32;
  const int n = lane + chunk * 32;
  const bool inside = n < s.rows * 2;
  const bool alive = inside;
  const int item = inside ? n : 0;
  const int row = item / 2, copy = item % 2;
  num sum[1] = {};
  const real* const row_x1 = s.x1 + row * 6;
  const real* const row_x2 = s.x2 + row * 3;
  {
    // path 0: 2x1o x 1x1o -> 3x0e (uvw)
    const int u = copy;
    const int v = 0;
    const num x1_0 = widen(row_x1[u * 3]);
    const num x1_1 = widen(row_x1[1 + u * 3]);
    const num x1_2 = widen(row_x1[2 + u * 3]);
    const num x2_0 = widen(row_x2[v * 3]);
    const num x2_1 = widen(row_x2[1 + v * 3]);
    const num x2_2 = widen(row_x2[2 + v * 3]);
    const num v1 = x1_0 * x2_0;
    sum[0] += 0.4082483f * v1;
    const num v2 = x1_1 * x2_1;
    sum[0] += 0.4082483f * v2;
    const num v3 = x1_2 * x2_2;
    sum[0] += 0.4082483f * v3;
  }
  if (alive) {
    num* const to = s.P + row * 2;
    to[copy] = sum[0];
  }
}
DEVICE void gather_1(const Step& s, const int chunk) {
  const int lane = threadIdx.x % 32;
  const int n = lane + chunk * 32;
  const bool inside = n < s.rows * 6;
  const bool alive = inside;
  const int item = inside ? n : 0;
  const int row = item / 6, copy = item % 6;
  num sum[1] = {};
  const real* const row_out = s.out + row * 3;
  const num* const P = s.P + row * 2;
  {
    // path 0: 2x1o x 1x1o -> 3x0e (uvw)
    const int u = copy / 3;
    const int v = 0;
    const int w = copy % 3;
    const num out_0 = widen(row_out[w]);
    const num P_0 = P[u + v];
    sum[0] += P_0 * out_0;
  }
  if (alive) {
    real* const to = s.d_w + row * 6;
    to[copy] = narrow(sum[0]);
  }
}
struct Share { unsigned gather, chunk; };
static __device__ const Share shares_0[4][1] = {
  {{0, 0}},
  {{0, 1}},
  {{~0u, 0}},
  {{~0u, 0}},
};
DEVICE void phase_0(const Step& s, const int warp) {
  for (int n = 0; n < 1; ++n) {
    const Share share = shares_0[warp][n];
    switch (share.gather) {
      case 0: gather_0(s, share.chunk); break;
    }
  }
}
static __device__ const Share shares_1[4][2] = {
  {{1, 0}, {1, 4}},
  {{1, 1}, {1, 5}},
  {{1, 2}, {~0u, 0}},
  {{1, 3}, {~0u, 0}},
};
DEVICE void phase_1(const Step& s, const int warp) {
  for (int n = 0; n < 2; ++n) {
    const Share share = shares_1[warp][n];
    switch (share.gather) {
      case 1: gather_1(s, share.chunk); break;
    }
  }
}
struct Call {
  const real *x1, *x2, *w, *out;
  real *d_x1, *d_x2, *d_w, *d_out;
  i64 rows, owners;
  const i64 *order, *src, *dst;  // of edges: those of each owner together, and what they join
  num *sums, *ends;  // of blocks: of weights, and of owners at the ends of their runs
};
DEVICE int rows_of(i64 q, i64 end) {
  return end - q < ROWS ? (int)(end - q) : ROWS;
}
DEVICE void fetch_rows(const Call& call, unsigned char* stage, u64* barrier, i64 q, const int n) {
  if (n == ROWS) {
    fetch_begin(barrier, 1536);
    fetch(stage + 0, call.x1 + q * 6, 768, barrier);
    fetch(stage + 768, call.x2 + q * 3, 384, barrier);
    fetch(stage + 1152, call.out + q * 3, 384, barrier);
  }
  else {
    fetch_begin(barrier, 0);
    fetch_numbers((real*)(stage + 0), call.x1 + q * 6, n * 6);
    fetch_numbers((real*)(stage + 768), call.x2 + q * 3, n * 3);
    fetch_numbers((real*)(stage + 1152), call.out + q * 3, n * 3);
  }
}
DEVICE void compute(const Step& s) {
  const int warp = this_warp();
  phase_0(s, warp);
  __syncthreads();
  phase_1(s, warp);
}
DEVICE void deliver_rows(const Call& call, const Step& s, i64 q, const int n) {
  deliver_begin();
  if (n == ROWS) deliver(call.d_w + q * 6, s.d_w, 768);
  else copy(call.d_w + q * 6, s.d_w, n * 6);
  deliver_end();
}
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) tpgen_kernel(const Call call) {
  unsigned char* const shared = shared_memory();
  u64* const barriers = (u64*)shared;
  if (threadIdx.x == 0) for (int n = 0; n < STAGES; ++n) barrier_init(barriers + n);
  Step s;
  s.P = (num*)(shared + 32);
  s.d_w = (real*)(shared + 288);
  int at = 0;
  unsigned parity = 0;
  __syncthreads();
  const i64 begin = (i64)blockIdx.x * ROWS, by = (i64)gridDim.x * ROWS, end = call.rows;
  for (int n = 0; n < STAGES - 1; ++n) {
    const i64 q = begin + n * by;
    if (q < end) fetch_rows(call, shared + 1152 + (at + n) % STAGES * 1536, barriers + (at + n) % STAGES, q, rows_of(q, end));
    fetch_end();
  }
  for (i64 q = begin; q < end; q += by) {
    delivered();
    const i64 later = q + (STAGES - 1) * by;
    if (later < end) fetch_rows(call, shared + 1152 + (at + STAGES - 1) % STAGES * 1536, barriers + (at + STAGES - 1) % STAGES, later, rows_of(later, end));
    fetch_end();
    fetched(barriers + at, parity);
    unsigned char* const stage = shared + 1152 + at * 1536;
    s.x1 = (const real*)(stage + 0);
    s.x2 = (const real*)(stage + 768);
    s.out = (const real*)(stage + 1152);
    s.rows = rows_of(q, end);
    compute(s);
    deliver_rows(call, s, q, s.rows);
    if (++at == STAGES) at = 0, parity ^= 1;
  }
  delivered();
}
