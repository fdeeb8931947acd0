// cuda placement: opens out, summed by the owner of out; float64, sm_80
//   a step is 4 rows: 2 units on 2 warps
//   shared memory: 11264 bytes, 2 stages of 5216
//   warp 0: group 0.0 rows 0
//   warp 1: group 0.1 rows 0
//   group 0: paths 0; 40 channels, 32 lanes a row
typedef long long i64; typedef unsigned long long u64;
typedef double real;  // in memory
typedef double num;  // in registers
enum { THREADS = 64, BLOCKS = 4, ROWS = 4, STAGES = 2 };
#ifndef TPGEN_DEVICE
// device.h
#endif
DEVICE num widen(real x) { return x; }
DEVICE real narrow(num x) { return x; }
// copies.h
// lanes.h
static __device__ const num value_0_0[] = {0.5773502691896257, 0.5773502691896258, 0.5773502691896257, 0.0};
static __device__ const unsigned short place_0_0[] = {0, 1, 2, 0};
struct Step {
  const real* x1;
  const real* x2;
  const real* w;
  num* d_out;
  num* T;
  int rows;
  int from, to;  // rows of one owner
};
DEVICE void group_0(const Step& s, const int chunk) {
  const int lane = threadIdx.x % 32;
  const int channel = lane + chunk * 32;
  const bool alive = channel < 40;
  const int c = channel < 40 ? channel : 39;
  num d_out_0_0 = 0;
  for (int row = s.from; row < s.to; ++row) {
    const real* const x1 = s.x1 + row * 120;
    const real* const w = s.w + row * 40;
    num* const d_out = s.d_out;
    const num* const T = s.T + row * 4;
    // path 0: 40x1o x 1x1o -> 40x0e (uvu)
    const num x1_0_0 = widen(x1[c]);
    const num x1_0_1 = widen(x1[40 + c]);
    const num x1_0_2 = widen(x1[80 + c]);
    const num w_0_0 = widen(w[c]);
    {
      const quad t0 = four(T + 0);
      const num v1 = t0.x * x1_0_0 + t0.y * x1_0_1 + t0.z * x1_0_2;
      d_out_0_0 += w_0_0 * v1;
    }
  }
  num* const d_out = s.d_out;
  if (alive) {
    d_out[c] += d_out_0_0;
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
  for (int n = threadIdx.x; n < 16; n += THREADS) {
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
// edges.h
enum { OWNED = 40 };
DEVICE i64 owner_of(const Ends& e) { return e.dst; }
DEVICE real* owned(const Call& call) { return call.d_out; }
DEVICE num* owned(const Step& s) { return s.d_out; }
// owners.h
DEVICE int rows_of(i64 q, i64 end) {
  return end - q < ROWS ? (int)(end - q) : ROWS;
}
DEVICE void fetch_rows(const Call& call, unsigned char* stage, u64* barrier, const Ends* ends, const int n) {
  fetch_begin(barrier, n * 1280);
#pragma unroll 1
  for (int r = first_row(); r < n; r = next_row(r)) {
    fetch_row(stage + 0 + r * 960, call.x1 + ends[r].src * 120, 960, barrier);
    fetch_row(stage + 3936 + r * 320, call.w + ends[r].edge * 40, 320, barrier);
  }
#pragma unroll 1
  for (int r = 0; r < n; ++r) {
    fetch_numbers((real*)(stage + 3840 + r * 24), call.x2 + ends[r].edge * 3, 3);
  }
}
DEVICE void compute(const Call& call, Step& s, Run& run, const Ends* ends) {
  tabulate(s);
  __syncthreads();
  for (s.from = 0; s.from < s.rows; s.from = s.to) {
    next_piece(call, s, run, ends);
    compute_units(s);
  }
}
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) tpgen_kernel(const Call call) {
  unsigned char* const shared = shared_memory();
  u64* const barriers = (u64*)shared;
  if (threadIdx.x == 0) for (int n = 0; n < STAGES; ++n) barrier_init(barriers + n);
  Step s;
  s.T = (num*)(shared + 320);
  s.d_out = (num*)(shared + 448);
  int at = 0;
  unsigned parity = 0;
  const i64 begin = run_begin(call, blockIdx.x, gridDim.x), by = ROWS;
  const i64 end = run_begin(call, blockIdx.x + 1, gridDim.x);
  Ends* const slots = (Ends*)(shared + 32);
  clear(owned(s), OWNED);
  Run run = owners_of(call, begin, end);
  Ahead ahead = begin_run(call, slots, begin, end);
  int step = 0;
  for (int n = 0; n < STAGES - 1; ++n) {
    const i64 q = begin + n * by;
    if (q < end) fetch_rows(call, shared + 768 + (at + n) % STAGES * 5248, barriers + (at + n) % STAGES, ends_of_step(slots, n), rows_of(q, end));
    fetch_end();
  }
  for (i64 q = begin; q < end; q += by) {
    delivered();
    const i64 later = q + (STAGES - 1) * by;
    if (later < end) fetch_rows(call, shared + 768 + (at + STAGES - 1) % STAGES * 5248, barriers + (at + STAGES - 1) % STAGES, ends_of_step(slots, step + STAGES - 1), rows_of(later, end));
    fetch_end();
    look_ahead(call, ahead);
    fetched(barriers + at, parity);
    unsigned char* const stage = shared + 768 + at * 5248;
    s.x1 = (const real*)(stage + 0);
    s.x2 = (const real*)(stage + 3840);
    s.w = (const real*)(stage + 3936);
    s.rows = rows_of(q, end);
    const Ends* const ends = ends_of_step(slots, step);
    compute(call, s, run, ends);
    put_down(ahead, ends_of_step(slots, step + STAGES));
    ++step;
    if (++at == STAGES) at = 0, parity ^= 1;
  }
  settle(call, s, run, end == call.rows ? call.owners : run.owner + 1);
  delivered();
}
