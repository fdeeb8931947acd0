// a: 1x1o (row, mul_ir)
// b: 1x1o (row, mul_ir)
// y: 1x1o (row, one copy for all channels, mul_ir)
// u: 2x0e (weights, ir_mul)
// v: 1x0e (weights, ir_mul)
// out: 1x0e+1x1o (row, mul_ir)
// a x a x y x u -> out[1] 1x1o | 2 paths, 24 entries, independent couplings
// a x b x v -> out[0] 1x0e | 1 paths, 3 entries, independent couplings
// y x y -> out[0] 1x0e | 1 paths, 3 entries, independent couplings
// cuda placement: a b y u v -> out; bfloat16, sm_80
//   a block: rows of one element at 32 channels, on 4 warps
//   shared memory: 2048 bytes; of a lane 4 coefficients, and of each warp 0 gradients of them and 3 to turn segments
//   a: read row by row, components 0:3 transposed
//   b: read row by row, components 0:3 transposed
//   y: read row by row, one copy spread over the channels
//   u: read once per task
//   v: read once per task
//   -> out: stored row by row, components 0, 1:4 transposed
typedef long long i64; typedef unsigned long long u64;
typedef unsigned short real;  // in memory
typedef float num;  // in registers
enum { WARPS = 4, TILE = 96 };
enum { COEFFICIENTS = 4, KEPT = 4, ADDED = 0 };
#ifndef TPGEN_DEVICE
// device.h
#endif
// numbers.h
struct Call {
  const real* p_x_a;
  const real* p_x_b;
  const real* p_x_y;
  const real* p_x_u;
  const real* p_x_v;
  real* o_x_out;
  num* sums;  // of gradients of coefficients, by task
  const i64 *first, *order;  // rows by element
  i64 rows, elements, channels, width, span;
};
// polynomial.h
DEVICE void prologue(const Call& call, i64 e, i64 c, int warp, num* a) {
  if (warp == 0) {
    num t_x_u[2];
    t_x_u[0] = widen(call.p_x_u[(e * 2 + 0) * call.channels + c]);
    t_x_u[1] = widen(call.p_x_u[(e * 2 + 1) * call.channels + c]);
    a[0 * 32] = 0.57735026f * t_x_u[0] + 0.5163978f * t_x_u[1];
  }
  if (warp == 1) {
    num t_x_u[2];
    t_x_u[0] = widen(call.p_x_u[(e * 2 + 0) * call.channels + c]);
    t_x_u[1] = widen(call.p_x_u[(e * 2 + 1) * call.channels + c]);
    a[1 * 32] = 0.57735026f * t_x_u[0] - 0.2581989f * t_x_u[1];
  }
  if (warp == 2) {
    num t_x_u[2];
    t_x_u[1] = widen(call.p_x_u[(e * 2 + 1) * call.channels + c]);
    a[2 * 32] = 0.7745967f * t_x_u[1];
  }
  if (warp == 3) {
    num t_x_v[1];
    t_x_v[0] = widen(call.p_x_v[(e * 1 + 0) * call.channels + c]);
    a[3 * 32] = 0.57735026f * t_x_v[0];
  }
}
DEVICE void row(const Call& call, const Lane& l, i64 r, i64 chunk, const num* a) {
  const real* const p_x_a = call.p_x_a + r * 3 * call.channels;
  num t_x_a[3];
  get<3>(p_x_a + 0 * call.channels, l, t_x_a + 0);
  const real* const p_x_b = call.p_x_b + r * 3 * call.channels;
  num t_x_b[3];
  get<3>(p_x_b + 0 * call.channels, l, t_x_b + 0);
  const real* const p_x_y = call.p_x_y + r * 3;
  num t_x_y[3];
  t_x_y[0] = l.alive ? widen(p_x_y[0]) : 0;
  t_x_y[1] = l.alive ? widen(p_x_y[1]) : 0;
  t_x_y[2] = l.alive ? widen(p_x_y[2]) : 0;
  num d_x_out[4] = {};
  const num v1 = t_x_a[0] * t_x_a[0];
  const num v2 = v1 * t_x_y[0];
  d_x_out[1] += v2 * a[0 * 32];
  const num v3 = v1 * t_x_y[1];
  d_x_out[2] += v3 * a[1 * 32];
  const num v4 = v1 * t_x_y[2];
  d_x_out[3] += v4 * a[1 * 32];
  const num v5 = t_x_a[0] * t_x_a[1];
  const num v6 = v5 * t_x_y[1];
  d_x_out[1] += v6 * a[2 * 32];
  const num v7 = v5 * t_x_y[0];
  d_x_out[2] += v7 * a[2 * 32];
  const num v8 = t_x_a[0] * t_x_a[2];
  const num v9 = v8 * t_x_y[2];
  d_x_out[1] += v9 * a[2 * 32];
  const num v10 = v8 * t_x_y[0];
  d_x_out[3] += v10 * a[2 * 32];
  const num v11 = t_x_b[0] * a[3 * 32];
  d_x_out[0] += t_x_a[0] * v11;
  const num v12 = t_x_a[1] * t_x_a[1];
  const num v13 = v12 * t_x_y[0];
  d_x_out[1] += v13 * a[1 * 32];
  const num v14 = v12 * t_x_y[1];
  d_x_out[2] += v14 * a[0 * 32];
  const num v15 = v12 * t_x_y[2];
  d_x_out[3] += v15 * a[1 * 32];
  const num v16 = t_x_a[1] * t_x_a[2];
  const num v17 = v16 * t_x_y[2];
  d_x_out[2] += v17 * a[2 * 32];
  const num v18 = v16 * t_x_y[1];
  d_x_out[3] += v18 * a[2 * 32];
  const num v19 = t_x_b[1] * a[3 * 32];
  d_x_out[0] += t_x_a[1] * v19;
  const num v20 = t_x_a[2] * t_x_a[2];
  const num v21 = v20 * t_x_y[0];
  d_x_out[1] += v21 * a[1 * 32];
  const num v22 = v20 * t_x_y[1];
  d_x_out[2] += v22 * a[1 * 32];
  const num v23 = v20 * t_x_y[2];
  d_x_out[3] += v23 * a[0 * 32];
  const num v24 = t_x_b[2] * a[3 * 32];
  d_x_out[0] += t_x_a[2] * v24;
  const num v25 = t_x_y[0] * t_x_y[0];
  d_x_out[0] += 0.57735026f * v25;
  const num v26 = t_x_y[1] * t_x_y[1];
  d_x_out[0] += 0.57735026f * v26;
  const num v27 = t_x_y[2] * t_x_y[2];
  d_x_out[0] += 0.57735026f * v27;
  real* const o_x_out = call.o_x_out + r * 4 * call.channels;
  set<1>(o_x_out + 0 * call.channels, l, d_x_out + 0);
  set<3>(o_x_out + 1 * call.channels, l, d_x_out + 1);
}
extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) tpgen_kernel(const Call call) {
  const i64 chunks = (call.channels + call.width - 1) / call.width, chunk = blockIdx.x % chunks;
  const Task task = find_task(call, blockIdx.x / chunks);
  if (task.from >= task.to) return;
  num* const shared = (num*)shared_memory();
  const int warp = this_warp(), lane = threadIdx.x % 32;
  const int width = (int)call.width, rows = 32 / width;
  const i64 c = chunk * width + lane % width;
  prologue(call, task.element, c < call.channels ? c : call.channels - 1, warp, shared + 32 * COEFFICIENTS * 0 + lane);
  num* const added = shared + 32 * (KEPT + warp * ADDED);
  __syncthreads();
  num* const tile = shared + 32 * (KEPT + WARPS * ADDED) + warp * TILE;
  for (i64 q = task.from + warp * rows; q < task.to; q += WARPS * rows) {
    const i64 mine = q + lane / width, there = mine < task.to ? mine : q;
    const bool alive = mine < task.to && c < call.channels;
    const Lane l = {lane, rows == 1, alive, call.channels, c, tile};
    row(call, l, call.order ? call.order[there] : there, chunk, shared + 32 * COEFFICIENTS * 0 + lane);
  }
}
