// cuda placement: opens x1, x2, w; float32, sm_90
//   a step is 8 rows: 16 units on 4 warps
//   shared memory: 13440 bytes, 2 stages of 6496
//   warp 0: group 0.0 rows 0, group 0.0 rows 4, group 0.1 rows 0, group 0.1 rows 4
//   warp 1: group 0.0 rows 1, group 0.0 rows 5, group 0.1 rows 1, group 0.1 rows 5
//   warp 2: group 0.0 rows 2, group 0.0 rows 6, group 0.1 rows 2, group 0.1 rows 6
//   warp 3: group 0.0 rows 3, group 0.0 rows 7, group 0.1 rows 3, group 0.1 rows 7
//   group 0: paths 0; 40 channels, 32 lanes a row
typedef long long i64; typedef unsigned long long u64;
typedef float real;  // in memory
typedef float num;  // in registers
enum { THREADS = 128, BLOCKS = 4, ROWS = 8, STAGES = 2 };
#ifndef TPGEN_DEVICE
// device.h
#endif
DEVICE num widen(real x) { return x; }
DEVICE real narrow(num x) { return x; }
// copies.h
// lanes.h
static __device__ const num value_0_0[] = {0.57735026f, 0.57735026f, 0.57735026f, 0.0f};
static __device__ const unsigned short place_0_0[] = {0, 1, 2, 0};
struct Step {
  const real* x1;
  const real* x2;
  const real* w;
  const real* out;
  real* d_x1;
  real* d_x2;
  real* d_w;
  num* T;
  num* p_x2;
  int rows;
};
DEVICE void group_0(const Step& s, const int chunk, const int set) {
  const int lane = threadIdx.x % 32;
  const int channel = lane + chunk * 32;
  const int row = set;
  const bool alive = channel < 40 && row < s.rows;
  const int c = channel < 40 ? channel : 39;
  const real* const x1 = s.x1 + row * 120;
  real* const d_x1 = s.d_x1 + row * 120;
  const real* const w = s.w + row * 40;
  real* const d_w = s.d_w + row * 40;
  const real* const out = s.out + row * 40;
  const num* const T = s.T + row * 4;
  num* const p_x2 = s.p_x2 + (row * 2 + 0 + chunk) * 3;
  num y_x2_0 = 0;
  num y_x2_1 = 0;
  num y_x2_2 = 0;
  // path 0: 40x1o x 1x1o -> 40x0e (uvu)
  const num x1_0_0 = widen(x1[c * 3]);
  const num x1_0_1 = widen(x1[1 + c * 3]);
  const num x1_0_2 = widen(x1[2 + c * 3]);
  num d_x1_0_0 = 0;
  num d_x1_0_1 = 0;
  num d_x1_0_2 = 0;
  const num w_0_0 = widen(w[c]);
  num d_w_0_0 = 0;
  const num out_0_0 = widen(out[c]);
  {
    const quad t0 = four(T + 0);
    const num v1 = w_0_0 * out_0_0;
    d_x1_0_0 += v1 * t0.x;
    const num v2 = t0.x * x1_0_0;
    const num s0 = v1 * x1_0_0;
    d_x1_0_1 += v1 * t0.y;
    const num v3 = v2 + t0.y * x1_0_1;
    const num s1 = v1 * x1_0_1;
    d_x1_0_2 += v1 * t0.z;
    const num v4 = v3 + t0.z * x1_0_2;
    const num s2 = v1 * x1_0_2;
    d_w_0_0 += out_0_0 * v4;
    y_x2_0 += 0.57735026f * s0;
    y_x2_1 += 0.57735026f * s1;
    y_x2_2 += 0.57735026f * s2;
  }
  __syncwarp();
  if (alive) {
    d_x1[c * 3] = narrow(d_x1_0_0);
    d_x1[1 + c * 3] = narrow(d_x1_0_1);
    d_x1[2 + c * 3] = narrow(d_x1_0_2);
  }
  __syncwarp();
  if (alive) {
    d_w[c] = narrow(d_w_0_0);
  }
  {
    num y[4] = {alive ? y_x2_0 : 0, alive ? y_x2_1 : 0, alive ? y_x2_2 : 0};
    fold_lanes<32>(y, lane, 3, p_x2 + 0, 1);
  }
}
struct Unit { unsigned char group, chunk, set; };
static __constant__ const Unit work[4][4] = {
  {{0, 0, 0}, {0, 0, 4}, {0, 1, 0}, {0, 1, 4}},
  {{0, 0, 1}, {0, 0, 5}, {0, 1, 1}, {0, 1, 5}},
  {{0, 0, 2}, {0, 0, 6}, {0, 1, 2}, {0, 1, 6}},
  {{0, 0, 3}, {0, 0, 7}, {0, 1, 3}, {0, 1, 7}},
};
DEVICE void compute_units(const Step& s) {
  const int warp = this_warp();
  for (int n = 0; n < 4; ++n) {
    const Unit u = work[warp][n];
    switch (u.group) {
      case 0: group_0(s, u.chunk, u.set); break;
    }
  }
}
DEVICE void tabulate(const Step& s) {
  for (int n = threadIdx.x; n < 32; n += THREADS) {
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
    fetch_begin(barrier, 6496);
    fetch(stage + 0, call.x1 + q * 120, 3840, barrier);
    fetch(stage + 3840, call.x2 + q * 3, 96, barrier);
    fetch(stage + 3936, call.w + q * 40, 1280, barrier);
    fetch(stage + 5216, call.out + q * 40, 1280, barrier);
  }
  else {
    fetch_begin(barrier, 0);
    fetch_numbers((real*)(stage + 0), call.x1 + q * 120, n * 120);
    fetch_numbers((real*)(stage + 3840), call.x2 + q * 3, n * 3);
    fetch_numbers((real*)(stage + 3936), call.w + q * 40, n * 40);
    fetch_numbers((real*)(stage + 5216), call.out + q * 40, n * 40);
  }
}
DEVICE void compute(const Step& s) {
  tabulate(s);
  clear(s.p_x2, 48);
  __syncthreads();
  compute_units(s);
  __syncthreads();
  for (int n = threadIdx.x; n < 24; n += THREADS) {
    const int row = n / 3, place = 0 + n % 3;
    const num* const part = s.p_x2 + row * 6 + place;
    num sum = 0;
    for (int m = 0; m < 2; ++m) sum += part[m * 3];
    s.d_x2[row * 3 + place] = narrow(sum);
  }
}
DEVICE void deliver_rows(const Call& call, const Step& s, i64 q, const int n) {
  deliver_begin();
  if (n == ROWS) deliver(call.d_x1 + q * 120, s.d_x1, 3840);
  else copy(call.d_x1 + q * 120, s.d_x1, n * 120);
  if (n == ROWS) deliver(call.d_x2 + q * 3, s.d_x2, 96);
  else copy(call.d_x2 + q * 3, s.d_x2, n * 3);
  if (n == ROWS) deliver(call.d_w + q * 40, s.d_w, 1280);
  else copy(call.d_w + q * 40, s.d_w, n * 40);
  deliver_end();
}
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) tpgen_kernel(const Call call) {
  unsigned char* const shared = shared_memory();
  u64* const barriers = (u64*)shared;
  if (threadIdx.x == 0) for (int n = 0; n < STAGES; ++n) barrier_init(barriers + n);
  Step s;
  s.T = (num*)(shared + 32);
  s.p_x2 = (num*)(shared + 160);
  int at = 0;
  unsigned parity = 0;
  __syncthreads();
  const i64 begin = (i64)blockIdx.x * ROWS, by = (i64)gridDim.x * ROWS, end = call.rows;
  for (int n = 0; n < STAGES - 1; ++n) {
    const i64 q = begin + n * by;
    if (q < end) fetch_rows(call, shared + 384 + (at + n) % STAGES * 6528, barriers + (at + n) % STAGES, q, rows_of(q, end));
    fetch_end();
  }
  for (i64 q = begin; q < end; q += by) {
    delivered();
    const i64 later = q + (STAGES - 1) * by;
    if (later < end) fetch_rows(call, shared + 384 + (at + STAGES - 1) % STAGES * 6528, barriers + (at + STAGES - 1) % STAGES, later, rows_of(later, end));
    fetch_end();
    fetched(barriers + at, parity);
    unsigned char* const stage = shared + 384 + at * 6528;
    s.x1 = (const real*)(stage + 0);
    s.d_x1 = (real*)(stage + 0);
    s.x2 = (const real*)(stage + 3840);
    s.d_x2 = (real*)(stage + 3840);
    s.w = (const real*)(stage + 3936);
    s.d_w = (real*)(stage + 3936);
    s.out = (const real*)(stage + 5216);
    s.rows = rows_of(q, end);
    compute(s);
    deliver_rows(call, s, q, s.rows);
    if (++at == STAGES) at = 0, parity ^= 1;
  }
  delivered();
}
