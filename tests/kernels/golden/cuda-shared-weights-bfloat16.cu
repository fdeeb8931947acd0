// cuda placement: opens w; bfloat16, sm_70
//   a step is 16 rows: 2 units on 2 warps
//   shared memory: 10880 bytes, 2 stages of 5216
//   warp 0: group 0.0 rows 0
//   warp 1: group 0.1 rows 0
//   group 0: paths 0; 40 channels, 32 lanes a row
typedef long long i64; typedef unsigned long long u64;
typedef unsigned short real;  // in memory
typedef float num;  // in registers
enum { THREADS = 64, BLOCKS = 8, ROWS = 16, STAGES = 2 };
#ifndef TPGEN_DEVICE
// device.h
#endif
// numbers.h
// copies.h
// lanes.h
static __device__ const num value_0_0[] = {0.57735026f, 0.57735026f, 0.57735026f, 0.0f};
static __device__ const unsigned short place_0_0[] = {0, 1, 2, 0};
struct Step {
  const real* x1;
  const real* x2;
  const real* out;
  num* d_w;
  num* T;
  int rows;
};
DEVICE void group_0(const Step& s, const int chunk) {
  const int lane = threadIdx.x % 32;
  const int channel = lane + chunk * 32;
  const bool alive = channel < 40;
  const int c = channel < 40 ? channel : 39;
  num d_w_0_0 = 0;
  for (int row = 0; row < s.rows; ++row) {
    const real* const x1 = s.x1 + row * 120;
    num* const d_w = s.d_w;
    const real* const out = s.out + row * 40;
    const num* const T = s.T + row * 4;
    // path 0: 40x1o x 1x1o -> 40x0e (uvu)
    const num x1_0_0 = widen(x1[c * 3]);
    const num x1_0_1 = widen(x1[1 + c * 3]);
    const num x1_0_2 = widen(x1[2 + c * 3]);
    const num out_0_0 = widen(out[c]);
    {
      const quad t0 = four(T + 0);
      const num v1 = t0.x * x1_0_0 + t0.y * x1_0_1 + t0.z * x1_0_2;
      d_w_0_0 += out_0_0 * v1;
    }
  }
  num* const d_w = s.d_w;
  if (alive) {
    d_w[c] += d_w_0_0;
  }
}
struct Unit { unsigned char group, chunk, set; };
static __constant__ const Unit work[2][1] = {
  {{0, 0, 0}},
  {{0, 1, 0}},
};
DEVICE void compute_units(const Step& s) {
  const int warp = this_warp();
  for (int n = 0; n < 1; ++n) {
    const Unit u = work[warp][n];
    switch (u.group) {
      case 0: group_0(s, u.chunk); break;
    }
  }
}
DEVICE void tabulate(const Step& s) {
  for (int n = threadIdx.x; n < 64; n += THREADS) {
    const int m = n % 4, v = n / 4 % 1, row = n / 4;
    const real* const y = s.x2 + row * 3 + v * 0;
    s.T[row * 4 + 0 + n % 4] = value_0_0[m] * widen(y[place_0_0[m]]);
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
    fetch_begin(barrier, 5216);
    fetch(stage + 0, call.x1 + q * 120, 3840, barrier);
    fetch(stage + 3840, call.x2 + q * 3, 96, barrier);
    fetch(stage + 3936, call.out + q * 40, 1280, barrier);
  }
  else {
    fetch_begin(barrier, 0);
    fetch_numbers((real*)(stage + 0), call.x1 + q * 120, n * 120);
    fetch_numbers((real*)(stage + 3840), call.x2 + q * 3, n * 3);
    fetch_numbers((real*)(stage + 3936), call.out + q * 40, n * 40);
  }
}
DEVICE void compute(const Step& s) {
  tabulate(s);
  __syncthreads();
  compute_units(s);
}
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) tpgen_kernel(const Call call) {
  unsigned char* const shared = shared_memory();
  u64* const barriers = (u64*)shared;
  if (threadIdx.x == 0) for (int n = 0; n < STAGES; ++n) barrier_init(barriers + n);
  Step s;
  s.T = (num*)(shared + 32);
  s.d_w = call.sums + (i64)blockIdx.x * 40;
  clear(s.d_w, 40);
  int at = 0;
  unsigned parity = 0;
  __syncthreads();
  const i64 begin = (i64)blockIdx.x * ROWS, by = (i64)gridDim.x * ROWS, end = call.rows;
  for (int n = 0; n < STAGES - 1; ++n) {
    const i64 q = begin + n * by;
    if (q < end) fetch_rows(call, shared + 384 + (at + n) % STAGES * 5248, barriers + (at + n) % STAGES, q, rows_of(q, end));
    fetch_end();
  }
  for (i64 q = begin; q < end; q += by) {
    delivered();
    const i64 later = q + (STAGES - 1) * by;
    if (later < end) fetch_rows(call, shared + 384 + (at + STAGES - 1) % STAGES * 5248, barriers + (at + STAGES - 1) % STAGES, later, rows_of(later, end));
    fetch_end();
    fetched(barriers + at, parity);
    unsigned char* const stage = shared + 384 + at * 5248;
    s.x1 = (const real*)(stage + 0);
    s.x2 = (const real*)(stage + 3840);
    s.out = (const real*)(stage + 3936);
    s.rows = rows_of(q, end);
    compute(s);
    if (++at == STAGES) at = 0, parity ^= 1;
  }
  delivered();
}
enum { WEIGHTS = 40 };
// sum.h
