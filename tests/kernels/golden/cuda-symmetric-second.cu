// x: 1x1o (row, channel)
// w0_2: 1x0e (weights, ir_mul)
// w1_1: 1x0e (weights, ir_mul)
// out: 1x0e+1x1o (row, mul_ir)
// x x x x w0_2 -> out[0] 1x0e | 1 paths, 3 entries, chained couplings
// x x w1_1 -> out[1] 1x1o | 1 paths, 3 entries, chained couplings
// cuda placement: x w0_2 w1_1 out.1 x.2 w0_2.2 w1_1.2 -> x w0_2 w1_1 out.1; float32, sm_90
//   a block: rows of one element at 32 channels, on 4 warps
//   shared memory: 3072 bytes; of a lane 4 coefficients, and of each warp 2 gradients of them and 3 to turn segments
//   x: read row by row, components 0:3 transposed
//   w0_2: read once per task
//   w1_1: read once per task
//   out.1: read row by row, components 0, 1:4 transposed
//   x.2: read row by row, components 0:3 transposed
//   w0_2.2: read once per task
//   w1_1.2: read once per task
//   -> x: stored row by row, components 0:3 transposed
//   -> w0_2: summed over the rows of an element, stored once per task
//   -> w1_1: summed over the rows of an element, stored once per task
//   -> out.1: stored row by row, components 0, 1:4 transposed
typedef long long i64; typedef unsigned long long u64;
typedef float real;  // in memory
typedef float num;  // in registers
enum { WARPS = 4, TILE = 96 };
enum { COEFFICIENTS = 2, KEPT = 4, ADDED = 2 };
#ifndef TPGEN_DEVICE
// device.h
#endif
DEVICE num widen(real x) { return x; }
DEVICE real narrow(num x) { return x; }
struct Call {
  const real* p_x_x;
  const real* p_x_w0_2;
  const real* p_x_w1_1;
  const real* p_x1_out;
  const real* p_x2_x;
  const real* p_x2_w0_2;
  const real* p_x2_w1_1;
  real* o_x_x;
  real* o_x_w0_2;
  real* o_x_w1_1;
  real* o_x1_out;
  num* sums;  // of gradients of coefficients, by task
  const i64 *first, *order;  // rows by element
  i64 rows, elements, channels, width, span;
};
// polynomial.h
DEVICE void prologue(const Call& call, i64 e, i64 c, int warp, num* a, num* a2) {
  if (warp == 0) {
    num t_x_w0_2[1];
    t_x_w0_2[0] = widen(call.p_x_w0_2[(e * 1 + 0) * call.channels + c]);
    a[0 * 32] = 0.57735026f * t_x_w0_2[0];
  }
  if (warp == 1) {
    num t_x2_w0_2[1];
    t_x2_w0_2[0] = widen(call.p_x2_w0_2[(e * 1 + 0) * call.channels + c]);
    a2[0 * 32] = 0.57735026f * t_x2_w0_2[0];
  }
  if (warp == 2) {
    num t_x_w1_1[1];
    t_x_w1_1[0] = widen(call.p_x_w1_1[(e * 1 + 0) * call.channels + c]);
    a[1 * 32] = t_x_w1_1[0];
  }
  if (warp == 3) {
    num t_x2_w1_1[1];
    t_x2_w1_1[0] = widen(call.p_x2_w1_1[(e * 1 + 0) * call.channels + c]);
    a2[1 * 32] = t_x2_w1_1[0];
  }
}
DEVICE void row(const Call& call, const Lane& l, i64 r, i64 chunk, const num* a, const num* a2, num* da12) {
  const real* const p_x_x = call.p_x_x + r * 3 * call.channels;
  num t_x_x[3];
  get<3>(p_x_x + 0 * call.channels, l, t_x_x + 0);
  const real* const p_x1_out = call.p_x1_out + r * 4 * call.channels;
  num t_x1_out[4];
  get<1>(p_x1_out + 0 * call.channels, l, t_x1_out + 0);
  get<3>(p_x1_out + 1 * call.channels, l, t_x1_out + 1);
  const real* const p_x2_x = call.p_x2_x + r * 3 * call.channels;
  num t_x2_x[3];
  get<3>(p_x2_x + 0 * call.channels, l, t_x2_x + 0);
  num d_x_x[3] = {};
  num d_x1_out[4] = {};
  const num v1 = t_x_x[0] * t_x_x[0];
  const num v2 = t_x_x[0] * t_x2_x[0] + t_x2_x[0] * t_x_x[0];
  da12[0 * 32] += v2 * t_x1_out[0];
  const num v3 = t_x1_out[0] * a[0 * 32];
  const num v4 = t_x1_out[0] * a2[0 * 32];
  d_x1_out[0] += v1 * a2[0 * 32] + v2 * a[0 * 32];
  const num v6 = t_x_x[0] * v4 + t_x2_x[0] * v3;
  d_x_x[0] += t_x_x[0] * v4 + t_x2_x[0] * v3;
  da12[1 * 32] += t_x2_x[0] * t_x1_out[1];
  const num v8 = v6 + t_x1_out[1] * a2[1 * 32];
  d_x1_out[1] += t_x_x[0] * a2[1 * 32] + t_x2_x[0] * a[1 * 32];
  d_x_x[0] += v8;
  const num v9 = t_x_x[1] * t_x_x[1];
  const num v10 = t_x_x[1] * t_x2_x[1] + t_x2_x[1] * t_x_x[1];
  da12[0 * 32] += v10 * t_x1_out[0];
  d_x1_out[0] += v9 * a2[0 * 32] + v10 * a[0 * 32];
  const num v12 = t_x_x[1] * v4 + t_x2_x[1] * v3;
  d_x_x[1] += t_x_x[1] * v4 + t_x2_x[1] * v3;
  da12[1 * 32] += t_x2_x[1] * t_x1_out[2];
  const num v14 = v12 + t_x1_out[2] * a2[1 * 32];
  d_x1_out[2] += t_x_x[1] * a2[1 * 32] + t_x2_x[1] * a[1 * 32];
  d_x_x[1] += v14;
  const num v15 = t_x_x[2] * t_x_x[2];
  const num v16 = t_x_x[2] * t_x2_x[2] + t_x2_x[2] * t_x_x[2];
  da12[0 * 32] += v16 * t_x1_out[0];
  d_x1_out[0] += v15 * a2[0 * 32] + v16 * a[0 * 32];
  const num v18 = t_x_x[2] * v4 + t_x2_x[2] * v3;
  d_x_x[2] += t_x_x[2] * v4 + t_x2_x[2] * v3;
  da12[1 * 32] += t_x2_x[2] * t_x1_out[3];
  const num v20 = v18 + t_x1_out[3] * a2[1 * 32];
  d_x1_out[3] += t_x_x[2] * a2[1 * 32] + t_x2_x[2] * a[1 * 32];
  d_x_x[2] += v20;
  real* const o_x_x = call.o_x_x + r * 3 * call.channels;
  set<3>(o_x_x + 0 * call.channels, l, d_x_x + 0);
  real* const o_x1_out = call.o_x1_out + r * 4 * call.channels;
  set<1>(o_x1_out + 0 * call.channels, l, d_x1_out + 0);
  set<3>(o_x1_out + 1 * call.channels, l, d_x1_out + 1);
}
extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) tpgen_kernel(const Call call) {
  const i64 chunks = (call.channels + call.width - 1) / call.width, chunk = blockIdx.x % chunks;
  const Task task = find_task(call, blockIdx.x / chunks);
  if (task.from >= task.to) return;
  num* const shared = (num*)shared_memory();
  const int warp = this_warp(), lane = threadIdx.x % 32;
  const int width = (int)call.width, rows = 32 / width;
  const i64 c = chunk * width + lane % width;
  prologue(call, task.element, c < call.channels ? c : call.channels - 1, warp, shared + 32 * COEFFICIENTS * 0 + lane, shared + 32 * COEFFICIENTS * 1 + lane);
  num* const added = shared + 32 * (KEPT + warp * ADDED);
  for (int n = lane; n < 32 * ADDED; n += 32) added[n] = 0;
  __syncthreads();
  num* const tile = shared + 32 * (KEPT + WARPS * ADDED) + warp * TILE;
  for (i64 q = task.from + warp * rows; q < task.to; q += WARPS * rows) {
    const i64 mine = q + lane / width, there = mine < task.to ? mine : q;
    const bool alive = mine < task.to && c < call.channels;
    const Lane l = {lane, rows == 1, alive, call.channels, c, tile};
    row(call, l, call.order ? call.order[there] : there, chunk, shared + 32 * COEFFICIENTS * 0 + lane, shared + 32 * COEFFICIENTS * 1 + lane, added + 32 * COEFFICIENTS * 0 + lane);
  }
  __syncthreads();
  for (int n = warp; n < ADDED; n += WARPS) if (lane < width && c < call.channels) {
    num sum = 0;
    for (int m = 0; m < WARPS * rows; ++m) {
      sum += shared[32 * (KEPT + m / rows * ADDED + n) + m % rows * width + lane];
    }
    call.sums[(blockIdx.x / chunks * ADDED + n) * call.channels + c] = sum;
  }
}
DEVICE void epilogue(const Call& call, i64 e, i64 c, int warp, const num* da12) {
  if (warp == 0) {
    call.o_x_w0_2[(e * 1 + 0) * call.channels + c] = narrow(0.57735026f * da12[0 * 32]);
  }
  if (warp == 2) {
    call.o_x_w1_1[(e * 1 + 0) * call.channels + c] = narrow(da12[1 * 32]);
  }
}
extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) tpgen_sum(const Call call) {
  const i64 chunks = (call.channels + 31) / 32, e = blockIdx.x / chunks;
  const int warp = this_warp(), lane = threadIdx.x % 32;
  const i64 c = blockIdx.x % chunks * 32 + lane, t = task_of(call, e);
  const i64 count = (first_of(call, e + 1) - first_of(call, e) + call.span - 1) / call.span;
  num* const sums = (num*)shared_memory() + lane;
  if (c < call.channels)
  for (int n = warp; n < ADDED; n += WARPS * 1) {
    num sum[1] = {};
    for (i64 m = t; m < t + count; m += 40) {
      num found[40][1];
#pragma unroll
      for (int a = 0; a < 40; ++a) {
#pragma unroll
        for (int k = 0; k < 1; ++k) found[a][k] = m + a < t + count && n + k * WARPS < ADDED
        ? call.sums[((m + a) * ADDED + n + k * WARPS) * call.channels + c] : 0;
      }
#pragma unroll
      for (int a = 0; a < 40; ++a) {
#pragma unroll
        for (int k = 0; k < 1; ++k) sum[k] += found[a][k];
      }
    }
#pragma unroll
    for (int k = 0; k < 1; ++k) if (n + k * WARPS < ADDED) sums[(n + k * WARPS) * 32] = sum[k];
  }
  __syncthreads();
  if (c < call.channels) epilogue(call, e, c, warp, sums + 32 * COEFFICIENTS * 0);
}
