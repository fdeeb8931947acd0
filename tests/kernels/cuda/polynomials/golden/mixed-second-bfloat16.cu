// a: 1x0e+1x1o (row, mul_ir)
// b: 1x1o (row, mul_ir)
// y: 1x0e+1x1o+1x2e (row, one copy for all channels, mul_ir)
// u: 5x0e (weights, ir_mul)
// v: 1x0e (weights, ir_mul)
// out: 1x0e+1x1o (row, mul_ir)
// a x a x y x u -> out[1] 1x1o | 5 paths, 41 entries, independent couplings
// a x b x v -> out[0] 1x0e | 1 paths, 3 entries, independent couplings
// y x y -> out[0] 1x0e | 3 paths, 9 entries, independent couplings
// cuda placement: a b y u v out.1 a.2 b.2 y.2 u.2 v.2 -> a b y u v out.1; bfloat16, sm_80
//   a block: rows of one element at 32 channels, on 4 warps
//   shared memory: 8448 bytes; of a lane 18 coefficients, and of each warp 9 gradients of them and 3 to turn segments
//   a: read row by row, components 0, 1:4 transposed
//   b: read row by row, components 0:3 transposed
//   y: read row by row, one copy spread over the channels
//   u: read once per task
//   v: read once per task
//   out.1: read row by row, components 0, 1:4 transposed
//   a.2: read row by row, components 0, 1:4 transposed
//   b.2: read row by row, components 0:3 transposed
//   y.2: read row by row, one copy spread over the channels
//   u.2: read once per task
//   v.2: read once per task
//   -> a: stored row by row, components 0, 1:4 transposed
//   -> b: stored row by row, components 0:3 transposed
//   -> y: summed over channels, stored when all tasks are done
//   -> u: summed over the rows of an element, stored once per task
//   -> v: summed over the rows of an element, stored once per task
//   -> out.1: stored row by row, components 0, 1:4 transposed
typedef long long i64; typedef unsigned long long u64;
typedef unsigned short real;  // in memory
typedef float num;  // in registers
enum { WARPS = 4, TILE = 96 };
enum { COEFFICIENTS = 9, KEPT = 18, ADDED = 9 };
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
  const real* p_x1_out;
  const real* p_x2_a;
  const real* p_x2_b;
  const real* p_x2_y;
  const real* p_x2_u;
  const real* p_x2_v;
  real* o_x_a;
  real* o_x_b;
  real* o_x_y;
  real* o_x_u;
  real* o_x_v;
  real* o_x1_out;
  num* sums;  // of gradients of coefficients, by task
  num* s_x_y;  // sums over some channels
  const i64 *first, *order;  // rows by element
  i64 rows, elements, channels, width, span;
};
// polynomial.h
DEVICE void prologue(const Call& call, i64 e, i64 c, int warp, num* a, num* a2) {
  if (warp == 0) {
    num t_x_u[5];
    t_x_u[0] = widen(call.p_x_u[(e * 5 + 0) * call.channels + c]);
    t_x_u[2] = widen(call.p_x_u[(e * 5 + 2) * call.channels + c]);
    t_x_u[3] = widen(call.p_x_u[(e * 5 + 3) * call.channels + c]);
    num t_x2_u[5];
    t_x2_u[0] = widen(call.p_x2_u[(e * 5 + 0) * call.channels + c]);
    t_x2_u[2] = widen(call.p_x2_u[(e * 5 + 2) * call.channels + c]);
    t_x2_u[3] = widen(call.p_x2_u[(e * 5 + 3) * call.channels + c]);
    a[0 * 32] = 1.0f * t_x_u[0];
    a2[0 * 32] = 1.0f * t_x2_u[0];
    a[1 * 32] = 1.0f * t_x_u[2];
    a2[1 * 32] = 1.0f * t_x2_u[2];
    a[2 * 32] = 0.31622776f * t_x_u[3];
    a2[2 * 32] = 0.31622776f * t_x2_u[3];
  }
  if (warp == 1) {
    num t_x_u[5];
    t_x_u[1] = widen(call.p_x_u[(e * 5 + 1) * call.channels + c]);
    t_x_u[3] = widen(call.p_x_u[(e * 5 + 3) * call.channels + c]);
    t_x_u[4] = widen(call.p_x_u[(e * 5 + 4) * call.channels + c]);
    num t_x2_u[5];
    t_x2_u[3] = widen(call.p_x2_u[(e * 5 + 3) * call.channels + c]);
    a[3 * 32] = 0.5477226f * t_x_u[3];
    a2[3 * 32] = 0.5477226f * t_x2_u[3];
    a[4 * 32] = 0.6324555f * t_x_u[3];
    a2[4 * 32] = 0.6324555f * t_x2_u[3];
    a[5 * 32] = 0.57735026f * t_x_u[1] + 0.5163978f * t_x_u[4];
  }
  if (warp == 2) {
    num t_x_u[5];
    t_x_u[1] = widen(call.p_x_u[(e * 5 + 1) * call.channels + c]);
    t_x_u[4] = widen(call.p_x_u[(e * 5 + 4) * call.channels + c]);
    num t_x2_u[5];
    t_x2_u[1] = widen(call.p_x2_u[(e * 5 + 1) * call.channels + c]);
    t_x2_u[4] = widen(call.p_x2_u[(e * 5 + 4) * call.channels + c]);
    a2[5 * 32] = 0.57735026f * t_x2_u[1] + 0.5163978f * t_x2_u[4];
    a[6 * 32] = 0.57735026f * t_x_u[1] - 0.2581989f * t_x_u[4];
    a2[6 * 32] = 0.57735026f * t_x2_u[1] - 0.2581989f * t_x2_u[4];
  }
  if (warp == 3) {
    num t_x_u[5];
    t_x_u[4] = widen(call.p_x_u[(e * 5 + 4) * call.channels + c]);
    num t_x_v[1];
    t_x_v[0] = widen(call.p_x_v[(e * 1 + 0) * call.channels + c]);
    num t_x2_u[5];
    t_x2_u[4] = widen(call.p_x2_u[(e * 5 + 4) * call.channels + c]);
    num t_x2_v[1];
    t_x2_v[0] = widen(call.p_x2_v[(e * 1 + 0) * call.channels + c]);
    a[7 * 32] = 0.7745967f * t_x_u[4];
    a2[7 * 32] = 0.7745967f * t_x2_u[4];
    a[8 * 32] = 0.57735026f * t_x_v[0];
    a2[8 * 32] = 0.57735026f * t_x2_v[0];
  }
}
DEVICE void row(const Call& call, const Lane& l, i64 r, i64 chunk, const num* a, const num* a2, num* da12) {
  const real* const p_x_a = call.p_x_a + r * 4 * call.channels;
  num t_x_a[4];
  get<1>(p_x_a + 0 * call.channels, l, t_x_a + 0);
  get<3>(p_x_a + 1 * call.channels, l, t_x_a + 1);
  const real* const p_x_b = call.p_x_b + r * 3 * call.channels;
  num t_x_b[3];
  get<3>(p_x_b + 0 * call.channels, l, t_x_b + 0);
  const real* const p_x_y = call.p_x_y + r * 9;
  num t_x_y[9];
  t_x_y[0] = l.alive ? widen(p_x_y[0]) : 0;
  t_x_y[1] = l.alive ? widen(p_x_y[1]) : 0;
  t_x_y[2] = l.alive ? widen(p_x_y[2]) : 0;
  t_x_y[3] = l.alive ? widen(p_x_y[3]) : 0;
  t_x_y[4] = l.alive ? widen(p_x_y[4]) : 0;
  t_x_y[5] = l.alive ? widen(p_x_y[5]) : 0;
  t_x_y[6] = l.alive ? widen(p_x_y[6]) : 0;
  t_x_y[7] = l.alive ? widen(p_x_y[7]) : 0;
  t_x_y[8] = l.alive ? widen(p_x_y[8]) : 0;
  const real* const p_x1_out = call.p_x1_out + r * 4 * call.channels;
  num t_x1_out[4];
  get<1>(p_x1_out + 0 * call.channels, l, t_x1_out + 0);
  get<3>(p_x1_out + 1 * call.channels, l, t_x1_out + 1);
  const real* const p_x2_a = call.p_x2_a + r * 4 * call.channels;
  num t_x2_a[4];
  get<1>(p_x2_a + 0 * call.channels, l, t_x2_a + 0);
  get<3>(p_x2_a + 1 * call.channels, l, t_x2_a + 1);
  const real* const p_x2_b = call.p_x2_b + r * 3 * call.channels;
  num t_x2_b[3];
  get<3>(p_x2_b + 0 * call.channels, l, t_x2_b + 0);
  const real* const p_x2_y = call.p_x2_y + r * 9;
  num t_x2_y[9];
  t_x2_y[0] = l.alive ? widen(p_x2_y[0]) : 0;
  t_x2_y[1] = l.alive ? widen(p_x2_y[1]) : 0;
  t_x2_y[2] = l.alive ? widen(p_x2_y[2]) : 0;
  t_x2_y[3] = l.alive ? widen(p_x2_y[3]) : 0;
  t_x2_y[4] = l.alive ? widen(p_x2_y[4]) : 0;
  t_x2_y[5] = l.alive ? widen(p_x2_y[5]) : 0;
  t_x2_y[6] = l.alive ? widen(p_x2_y[6]) : 0;
  t_x2_y[7] = l.alive ? widen(p_x2_y[7]) : 0;
  t_x2_y[8] = l.alive ? widen(p_x2_y[8]) : 0;
  num d_x_a[4] = {};
  num d_x_b[3] = {};
  num d_x_y[9] = {};
  num d_x1_out[4] = {};
  const num v1 = t_x_a[0] * t_x_a[0];
  const num v2 = t_x_a[0] * t_x2_a[0] + t_x2_a[0] * t_x_a[0];
  const num v3 = v1 * t_x_y[1];
  const num v4 = v1 * t_x2_y[1] + v2 * t_x_y[1];
  da12[0 * 32] += v4 * t_x1_out[1];
  const num v5 = t_x1_out[1] * a[0 * 32];
  const num v6 = t_x1_out[1] * a2[0 * 32];
  d_x1_out[1] += v3 * a2[0 * 32] + v4 * a[0 * 32];
  const num v7 = t_x_y[1] * v5;
  const num v8 = t_x_y[1] * v6 + t_x2_y[1] * v5;
  d_x_y[1] += v1 * v6 + v2 * v5;
  const num v9 = v1 * t_x_y[2];
  const num v10 = v1 * t_x2_y[2] + v2 * t_x_y[2];
  da12[0 * 32] += v10 * t_x1_out[2];
  const num v11 = t_x1_out[2] * a[0 * 32];
  const num v12 = t_x1_out[2] * a2[0 * 32];
  d_x1_out[2] += v9 * a2[0 * 32] + v10 * a[0 * 32];
  const num v13 = v7 + t_x_y[2] * v11;
  const num v14 = v8 + t_x_y[2] * v12 + t_x2_y[2] * v11;
  d_x_y[2] += v1 * v12 + v2 * v11;
  const num v15 = v1 * t_x_y[3];
  const num v16 = v1 * t_x2_y[3] + v2 * t_x_y[3];
  da12[0 * 32] += v16 * t_x1_out[3];
  const num v17 = t_x1_out[3] * a[0 * 32];
  const num v18 = t_x1_out[3] * a2[0 * 32];
  d_x1_out[3] += v15 * a2[0 * 32] + v16 * a[0 * 32];
  const num v19 = v13 + t_x_y[3] * v17;
  const num v20 = v14 + t_x_y[3] * v18 + t_x2_y[3] * v17;
  d_x_y[3] += v1 * v18 + v2 * v17;
  const num v22 = t_x_a[0] * v20 + t_x2_a[0] * v19;
  d_x_a[0] += t_x_a[0] * v20 + t_x2_a[0] * v19;
  const num v23 = t_x_a[0] * t_x_a[1];
  const num v24 = t_x_a[0] * t_x2_a[1] + t_x2_a[0] * t_x_a[1];
  const num v25 = v23 * t_x_y[0];
  const num v26 = v23 * t_x2_y[0] + v24 * t_x_y[0];
  da12[1 * 32] += v26 * t_x1_out[1];
  const num v27 = t_x1_out[1] * a[1 * 32];
  const num v28 = t_x1_out[1] * a2[1 * 32];
  d_x1_out[1] += v25 * a2[1 * 32] + v26 * a[1 * 32];
  const num v29 = t_x_y[0] * v27;
  const num v30 = t_x_y[0] * v28 + t_x2_y[0] * v27;
  d_x_y[0] += v23 * v28 + v24 * v27;
  const num v31 = v23 * t_x_y[6];
  const num v32 = v23 * t_x2_y[6] + v24 * t_x_y[6];
  da12[2 * 32] += -v32 * t_x1_out[1];
  const num v33 = -t_x1_out[1] * a[2 * 32];
  const num v34 = -t_x1_out[1] * a2[2 * 32];
  d_x1_out[1] += -v31 * a2[2 * 32] - v32 * a[2 * 32];
  const num v35 = v29 + t_x_y[6] * v33;
  const num v36 = v30 + t_x_y[6] * v34 + t_x2_y[6] * v33;
  d_x_y[6] += v23 * v34 + v24 * v33;
  const num v37 = v23 * t_x_y[8];
  const num v38 = v23 * t_x2_y[8] + v24 * t_x_y[8];
  da12[3 * 32] += -v38 * t_x1_out[1];
  const num v39 = -t_x1_out[1] * a[3 * 32];
  const num v40 = -t_x1_out[1] * a2[3 * 32];
  d_x1_out[1] += -v37 * a2[3 * 32] - v38 * a[3 * 32];
  const num v41 = v35 + t_x_y[8] * v39;
  const num v42 = v36 + t_x_y[8] * v40 + t_x2_y[8] * v39;
  d_x_y[8] += v23 * v40 + v24 * v39;
  const num v43 = v23 * t_x_y[5];
  const num v44 = v23 * t_x2_y[5] + v24 * t_x_y[5];
  da12[3 * 32] += v44 * t_x1_out[2];
  const num v45 = t_x1_out[2] * a[3 * 32];
  const num v46 = t_x1_out[2] * a2[3 * 32];
  d_x1_out[2] += v43 * a2[3 * 32] + v44 * a[3 * 32];
  const num v47 = v41 + t_x_y[5] * v45;
  const num v48 = v42 + t_x_y[5] * v46 + t_x2_y[5] * v45;
  d_x_y[5] += v23 * v46 + v24 * v45;
  const num v49 = v23 * t_x_y[4];
  const num v50 = v23 * t_x2_y[4] + v24 * t_x_y[4];
  da12[3 * 32] += v50 * t_x1_out[3];
  const num v51 = t_x1_out[3] * a[3 * 32];
  const num v52 = t_x1_out[3] * a2[3 * 32];
  d_x1_out[3] += v49 * a2[3 * 32] + v50 * a[3 * 32];
  const num v53 = v47 + t_x_y[4] * v51;
  const num v54 = v48 + t_x_y[4] * v52 + t_x2_y[4] * v51;
  d_x_y[4] += v23 * v52 + v24 * v51;
  const num v56 = v22 + t_x_a[1] * v54 + t_x2_a[1] * v53;
  d_x_a[1] += t_x_a[0] * v54 + t_x2_a[0] * v53;
  const num v57 = t_x_a[0] * t_x_a[2];
  const num v58 = t_x_a[0] * t_x2_a[2] + t_x2_a[0] * t_x_a[2];
  const num v59 = v57 * t_x_y[0];
  const num v60 = v57 * t_x2_y[0] + v58 * t_x_y[0];
  da12[1 * 32] += v60 * t_x1_out[2];
  const num v61 = t_x1_out[2] * a[1 * 32];
  const num v62 = t_x1_out[2] * a2[1 * 32];
  d_x1_out[2] += v59 * a2[1 * 32] + v60 * a[1 * 32];
  const num v63 = t_x_y[0] * v61;
  const num v64 = t_x_y[0] * v62 + t_x2_y[0] * v61;
  d_x_y[0] += v57 * v62 + v58 * v61;
  const num v65 = v57 * t_x_y[5];
  const num v66 = v57 * t_x2_y[5] + v58 * t_x_y[5];
  da12[3 * 32] += v66 * t_x1_out[1];
  const num v67 = t_x1_out[1] * a[3 * 32];
  const num v68 = t_x1_out[1] * a2[3 * 32];
  d_x1_out[1] += v65 * a2[3 * 32] + v66 * a[3 * 32];
  const num v69 = v63 + t_x_y[5] * v67;
  const num v70 = v64 + t_x_y[5] * v68 + t_x2_y[5] * v67;
  d_x_y[5] += v57 * v68 + v58 * v67;
  const num v71 = v57 * t_x_y[6];
  const num v72 = v57 * t_x2_y[6] + v58 * t_x_y[6];
  da12[4 * 32] += v72 * t_x1_out[2];
  const num v73 = t_x1_out[2] * a[4 * 32];
  const num v74 = t_x1_out[2] * a2[4 * 32];
  d_x1_out[2] += v71 * a2[4 * 32] + v72 * a[4 * 32];
  const num v75 = v69 + t_x_y[6] * v73;
  const num v76 = v70 + t_x_y[6] * v74 + t_x2_y[6] * v73;
  d_x_y[6] += v57 * v74 + v58 * v73;
  const num v77 = v57 * t_x_y[7];
  const num v78 = v57 * t_x2_y[7] + v58 * t_x_y[7];
  da12[3 * 32] += v78 * t_x1_out[3];
  d_x1_out[3] += v77 * a2[3 * 32] + v78 * a[3 * 32];
  const num v79 = v75 + t_x_y[7] * v51;
  const num v80 = v76 + t_x_y[7] * v52 + t_x2_y[7] * v51;
  d_x_y[7] += v57 * v52 + v58 * v51;
  const num v82 = v56 + t_x_a[2] * v80 + t_x2_a[2] * v79;
  d_x_a[2] += t_x_a[0] * v80 + t_x2_a[0] * v79;
  const num v83 = t_x_a[0] * t_x_a[3];
  const num v84 = t_x_a[0] * t_x2_a[3] + t_x2_a[0] * t_x_a[3];
  const num v85 = v83 * t_x_y[0];
  const num v86 = v83 * t_x2_y[0] + v84 * t_x_y[0];
  da12[1 * 32] += v86 * t_x1_out[3];
  const num v87 = t_x1_out[3] * a[1 * 32];
  const num v88 = t_x1_out[3] * a2[1 * 32];
  d_x1_out[3] += v85 * a2[1 * 32] + v86 * a[1 * 32];
  const num v89 = t_x_y[0] * v87;
  const num v90 = t_x_y[0] * v88 + t_x2_y[0] * v87;
  d_x_y[0] += v83 * v88 + v84 * v87;
  const num v91 = v83 * t_x_y[4];
  const num v92 = v83 * t_x2_y[4] + v84 * t_x_y[4];
  da12[3 * 32] += v92 * t_x1_out[1];
  d_x1_out[1] += v91 * a2[3 * 32] + v92 * a[3 * 32];
  const num v93 = v89 + t_x_y[4] * v67;
  const num v94 = v90 + t_x_y[4] * v68 + t_x2_y[4] * v67;
  d_x_y[4] += v83 * v68 + v84 * v67;
  const num v95 = v83 * t_x_y[7];
  const num v96 = v83 * t_x2_y[7] + v84 * t_x_y[7];
  da12[3 * 32] += v96 * t_x1_out[2];
  d_x1_out[2] += v95 * a2[3 * 32] + v96 * a[3 * 32];
  const num v97 = v93 + t_x_y[7] * v45;
  const num v98 = v94 + t_x_y[7] * v46 + t_x2_y[7] * v45;
  d_x_y[7] += v83 * v46 + v84 * v45;
  const num v99 = v83 * t_x_y[6];
  const num v100 = v83 * t_x2_y[6] + v84 * t_x_y[6];
  da12[2 * 32] += -v100 * t_x1_out[3];
  const num v101 = -t_x1_out[3] * a[2 * 32];
  const num v102 = -t_x1_out[3] * a2[2 * 32];
  d_x1_out[3] += -v99 * a2[2 * 32] - v100 * a[2 * 32];
  const num v103 = v97 + t_x_y[6] * v101;
  const num v104 = v98 + t_x_y[6] * v102 + t_x2_y[6] * v101;
  d_x_y[6] += v83 * v102 + v84 * v101;
  const num v105 = v83 * t_x_y[8];
  const num v106 = v83 * t_x2_y[8] + v84 * t_x_y[8];
  da12[3 * 32] += v106 * t_x1_out[3];
  d_x1_out[3] += v105 * a2[3 * 32] + v106 * a[3 * 32];
  const num v107 = v103 + t_x_y[8] * v51;
  const num v108 = v104 + t_x_y[8] * v52 + t_x2_y[8] * v51;
  d_x_y[8] += v83 * v52 + v84 * v51;
  const num v110 = v82 + t_x_a[3] * v108 + t_x2_a[3] * v107;
  d_x_a[3] += t_x_a[0] * v108 + t_x2_a[0] * v107;
  d_x_a[0] += v110;
  const num v111 = t_x_a[1] * t_x_a[1];
  const num v112 = t_x_a[1] * t_x2_a[1] + t_x2_a[1] * t_x_a[1];
  const num v113 = v111 * t_x_y[1];
  const num v114 = v111 * t_x2_y[1] + v112 * t_x_y[1];
  da12[5 * 32] += v114 * t_x1_out[1];
  const num v115 = t_x1_out[1] * a[5 * 32];
  const num v116 = t_x1_out[1] * a2[5 * 32];
  d_x1_out[1] += v113 * a2[5 * 32] + v114 * a[5 * 32];
  const num v117 = t_x_y[1] * v115;
  const num v118 = t_x_y[1] * v116 + t_x2_y[1] * v115;
  d_x_y[1] += v111 * v116 + v112 * v115;
  const num v119 = v111 * t_x_y[2];
  const num v120 = v111 * t_x2_y[2] + v112 * t_x_y[2];
  da12[6 * 32] += v120 * t_x1_out[2];
  const num v121 = t_x1_out[2] * a[6 * 32];
  const num v122 = t_x1_out[2] * a2[6 * 32];
  d_x1_out[2] += v119 * a2[6 * 32] + v120 * a[6 * 32];
  const num v123 = v117 + t_x_y[2] * v121;
  const num v124 = v118 + t_x_y[2] * v122 + t_x2_y[2] * v121;
  d_x_y[2] += v111 * v122 + v112 * v121;
  const num v125 = v111 * t_x_y[3];
  const num v126 = v111 * t_x2_y[3] + v112 * t_x_y[3];
  da12[6 * 32] += v126 * t_x1_out[3];
  const num v127 = t_x1_out[3] * a[6 * 32];
  const num v128 = t_x1_out[3] * a2[6 * 32];
  d_x1_out[3] += v125 * a2[6 * 32] + v126 * a[6 * 32];
  const num v129 = v123 + t_x_y[3] * v127;
  const num v130 = v124 + t_x_y[3] * v128 + t_x2_y[3] * v127;
  d_x_y[3] += v111 * v128 + v112 * v127;
  const num v132 = t_x_a[1] * v130 + t_x2_a[1] * v129;
  d_x_a[1] += t_x_a[1] * v130 + t_x2_a[1] * v129;
  const num v133 = t_x_a[1] * t_x_a[2];
  const num v134 = t_x_a[1] * t_x2_a[2] + t_x2_a[1] * t_x_a[2];
  const num v135 = v133 * t_x_y[2];
  const num v136 = v133 * t_x2_y[2] + v134 * t_x_y[2];
  da12[7 * 32] += v136 * t_x1_out[1];
  const num v137 = t_x1_out[1] * a[7 * 32];
  const num v138 = t_x1_out[1] * a2[7 * 32];
  d_x1_out[1] += v135 * a2[7 * 32] + v136 * a[7 * 32];
  const num v139 = t_x_y[2] * v137;
  const num v140 = t_x_y[2] * v138 + t_x2_y[2] * v137;
  d_x_y[2] += v133 * v138 + v134 * v137;
  const num v141 = v133 * t_x_y[1];
  const num v142 = v133 * t_x2_y[1] + v134 * t_x_y[1];
  da12[7 * 32] += v142 * t_x1_out[2];
  const num v143 = t_x1_out[2] * a[7 * 32];
  const num v144 = t_x1_out[2] * a2[7 * 32];
  d_x1_out[2] += v141 * a2[7 * 32] + v142 * a[7 * 32];
  const num v145 = v139 + t_x_y[1] * v143;
  const num v146 = v140 + t_x_y[1] * v144 + t_x2_y[1] * v143;
  d_x_y[1] += v133 * v144 + v134 * v143;
  const num v148 = v132 + t_x_a[2] * v146 + t_x2_a[2] * v145;
  d_x_a[2] += t_x_a[1] * v146 + t_x2_a[1] * v145;
  const num v149 = t_x_a[1] * t_x_a[3];
  const num v150 = t_x_a[1] * t_x2_a[3] + t_x2_a[1] * t_x_a[3];
  const num v151 = v149 * t_x_y[3];
  const num v152 = v149 * t_x2_y[3] + v150 * t_x_y[3];
  da12[7 * 32] += v152 * t_x1_out[1];
  d_x1_out[1] += v151 * a2[7 * 32] + v152 * a[7 * 32];
  const num v153 = t_x_y[3] * v137;
  const num v154 = t_x_y[3] * v138 + t_x2_y[3] * v137;
  d_x_y[3] += v149 * v138 + v150 * v137;
  const num v155 = v149 * t_x_y[1];
  const num v156 = v149 * t_x2_y[1] + v150 * t_x_y[1];
  da12[7 * 32] += v156 * t_x1_out[3];
  const num v157 = t_x1_out[3] * a[7 * 32];
  const num v158 = t_x1_out[3] * a2[7 * 32];
  d_x1_out[3] += v155 * a2[7 * 32] + v156 * a[7 * 32];
  const num v159 = v153 + t_x_y[1] * v157;
  const num v160 = v154 + t_x_y[1] * v158 + t_x2_y[1] * v157;
  d_x_y[1] += v149 * v158 + v150 * v157;
  const num v162 = v148 + t_x_a[3] * v160 + t_x2_a[3] * v159;
  d_x_a[3] += t_x_a[1] * v160 + t_x2_a[1] * v159;
  d_x_a[1] += v162;
  const num v163 = t_x_a[2] * t_x_a[2];
  const num v164 = t_x_a[2] * t_x2_a[2] + t_x2_a[2] * t_x_a[2];
  const num v165 = v163 * t_x_y[1];
  const num v166 = v163 * t_x2_y[1] + v164 * t_x_y[1];
  da12[6 * 32] += v166 * t_x1_out[1];
  const num v167 = t_x1_out[1] * a[6 * 32];
  const num v168 = t_x1_out[1] * a2[6 * 32];
  d_x1_out[1] += v165 * a2[6 * 32] + v166 * a[6 * 32];
  const num v169 = t_x_y[1] * v167;
  const num v170 = t_x_y[1] * v168 + t_x2_y[1] * v167;
  d_x_y[1] += v163 * v168 + v164 * v167;
  const num v171 = v163 * t_x_y[2];
  const num v172 = v163 * t_x2_y[2] + v164 * t_x_y[2];
  da12[5 * 32] += v172 * t_x1_out[2];
  const num v173 = t_x1_out[2] * a[5 * 32];
  const num v174 = t_x1_out[2] * a2[5 * 32];
  d_x1_out[2] += v171 * a2[5 * 32] + v172 * a[5 * 32];
  const num v175 = v169 + t_x_y[2] * v173;
  const num v176 = v170 + t_x_y[2] * v174 + t_x2_y[2] * v173;
  d_x_y[2] += v163 * v174 + v164 * v173;
  const num v177 = v163 * t_x_y[3];
  const num v178 = v163 * t_x2_y[3] + v164 * t_x_y[3];
  da12[6 * 32] += v178 * t_x1_out[3];
  d_x1_out[3] += v177 * a2[6 * 32] + v178 * a[6 * 32];
  const num v179 = v175 + t_x_y[3] * v127;
  const num v180 = v176 + t_x_y[3] * v128 + t_x2_y[3] * v127;
  d_x_y[3] += v163 * v128 + v164 * v127;
  const num v182 = t_x_a[2] * v180 + t_x2_a[2] * v179;
  d_x_a[2] += t_x_a[2] * v180 + t_x2_a[2] * v179;
  const num v183 = t_x_a[2] * t_x_a[3];
  const num v184 = t_x_a[2] * t_x2_a[3] + t_x2_a[2] * t_x_a[3];
  const num v185 = v183 * t_x_y[3];
  const num v186 = v183 * t_x2_y[3] + v184 * t_x_y[3];
  da12[7 * 32] += v186 * t_x1_out[2];
  d_x1_out[2] += v185 * a2[7 * 32] + v186 * a[7 * 32];
  const num v187 = t_x_y[3] * v143;
  const num v188 = t_x_y[3] * v144 + t_x2_y[3] * v143;
  d_x_y[3] += v183 * v144 + v184 * v143;
  const num v189 = v183 * t_x_y[2];
  const num v190 = v183 * t_x2_y[2] + v184 * t_x_y[2];
  da12[7 * 32] += v190 * t_x1_out[3];
  d_x1_out[3] += v189 * a2[7 * 32] + v190 * a[7 * 32];
  const num v191 = v187 + t_x_y[2] * v157;
  const num v192 = v188 + t_x_y[2] * v158 + t_x2_y[2] * v157;
  d_x_y[2] += v183 * v158 + v184 * v157;
  const num v194 = v182 + t_x_a[3] * v192 + t_x2_a[3] * v191;
  d_x_a[3] += t_x_a[2] * v192 + t_x2_a[2] * v191;
  d_x_a[2] += v194;
  const num v195 = t_x_a[3] * t_x_a[3];
  const num v196 = t_x_a[3] * t_x2_a[3] + t_x2_a[3] * t_x_a[3];
  const num v197 = v195 * t_x_y[1];
  const num v198 = v195 * t_x2_y[1] + v196 * t_x_y[1];
  da12[6 * 32] += v198 * t_x1_out[1];
  d_x1_out[1] += v197 * a2[6 * 32] + v198 * a[6 * 32];
  d_x_y[1] += v195 * v168 + v196 * v167;
  const num v199 = v195 * t_x_y[2];
  const num v200 = v195 * t_x2_y[2] + v196 * t_x_y[2];
  da12[6 * 32] += v200 * t_x1_out[2];
  d_x1_out[2] += v199 * a2[6 * 32] + v200 * a[6 * 32];
  const num v201 = v169 + t_x_y[2] * v121;
  const num v202 = v170 + t_x_y[2] * v122 + t_x2_y[2] * v121;
  d_x_y[2] += v195 * v122 + v196 * v121;
  const num v203 = v195 * t_x_y[3];
  const num v204 = v195 * t_x2_y[3] + v196 * t_x_y[3];
  da12[5 * 32] += v204 * t_x1_out[3];
  const num v205 = t_x1_out[3] * a[5 * 32];
  const num v206 = t_x1_out[3] * a2[5 * 32];
  d_x1_out[3] += v203 * a2[5 * 32] + v204 * a[5 * 32];
  const num v207 = v201 + t_x_y[3] * v205;
  const num v208 = v202 + t_x_y[3] * v206 + t_x2_y[3] * v205;
  d_x_y[3] += v195 * v206 + v196 * v205;
  const num v210 = t_x_a[3] * v208 + t_x2_a[3] * v207;
  d_x_a[3] += t_x_a[3] * v208 + t_x2_a[3] * v207;
  d_x_a[3] += v210;
  const num v211 = t_x_b[0] * t_x_a[1];
  const num v212 = t_x_b[0] * t_x2_a[1] + t_x2_b[0] * t_x_a[1];
  da12[8 * 32] += v212 * t_x1_out[0];
  const num v213 = t_x1_out[0] * a[8 * 32];
  const num v214 = t_x1_out[0] * a2[8 * 32];
  d_x1_out[0] += v211 * a2[8 * 32] + v212 * a[8 * 32];
  const num v216 = t_x_a[1] * v214 + t_x2_a[1] * v213;
  d_x_a[1] += t_x_b[0] * v214 + t_x2_b[0] * v213;
  d_x_b[0] += v216;
  const num v217 = t_x_b[1] * t_x_a[2];
  const num v218 = t_x_b[1] * t_x2_a[2] + t_x2_b[1] * t_x_a[2];
  da12[8 * 32] += v218 * t_x1_out[0];
  d_x1_out[0] += v217 * a2[8 * 32] + v218 * a[8 * 32];
  const num v220 = t_x_a[2] * v214 + t_x2_a[2] * v213;
  d_x_a[2] += t_x_b[1] * v214 + t_x2_b[1] * v213;
  d_x_b[1] += v220;
  const num v221 = t_x_b[2] * t_x_a[3];
  const num v222 = t_x_b[2] * t_x2_a[3] + t_x2_b[2] * t_x_a[3];
  da12[8 * 32] += v222 * t_x1_out[0];
  d_x1_out[0] += v221 * a2[8 * 32] + v222 * a[8 * 32];
  const num v224 = t_x_a[3] * v214 + t_x2_a[3] * v213;
  d_x_a[3] += t_x_b[2] * v214 + t_x2_b[2] * v213;
  d_x_b[2] += v224;
  const num v226 = t_x_y[0] * t_x2_y[0] + t_x2_y[0] * t_x_y[0];
  d_x1_out[0] += v226;
  const num v228 = t_x2_y[0] * t_x1_out[0];
  d_x_y[0] += t_x2_y[0] * t_x1_out[0];
  d_x_y[0] += v228;
  const num v230 = t_x_y[1] * t_x2_y[1] + t_x2_y[1] * t_x_y[1];
  const num v231 = 0.57735026f * t_x1_out[0];
  d_x1_out[0] += 0.57735026f * v230;
  const num v233 = t_x2_y[1] * v231;
  d_x_y[1] += t_x2_y[1] * v231;
  d_x_y[1] += v233;
  const num v235 = t_x_y[2] * t_x2_y[2] + t_x2_y[2] * t_x_y[2];
  const num v236 = 0.57735026f * t_x1_out[0];
  d_x1_out[0] += 0.57735026f * v235;
  const num v238 = t_x2_y[2] * v236;
  d_x_y[2] += t_x2_y[2] * v236;
  d_x_y[2] += v238;
  const num v240 = t_x_y[3] * t_x2_y[3] + t_x2_y[3] * t_x_y[3];
  d_x1_out[0] += 0.57735026f * v240;
  const num v242 = t_x2_y[3] * v231;
  d_x_y[3] += t_x2_y[3] * v231;
  d_x_y[3] += v242;
  const num v244 = t_x_y[4] * t_x2_y[4] + t_x2_y[4] * t_x_y[4];
  const num v245 = 0.4472136f * t_x1_out[0];
  d_x1_out[0] += 0.4472136f * v244;
  const num v247 = t_x2_y[4] * v245;
  d_x_y[4] += t_x2_y[4] * v245;
  d_x_y[4] += v247;
  const num v249 = t_x_y[5] * t_x2_y[5] + t_x2_y[5] * t_x_y[5];
  d_x1_out[0] += 0.4472136f * v249;
  const num v251 = t_x2_y[5] * v245;
  d_x_y[5] += t_x2_y[5] * v245;
  d_x_y[5] += v251;
  const num v253 = t_x_y[6] * t_x2_y[6] + t_x2_y[6] * t_x_y[6];
  const num v254 = 0.4472136f * t_x1_out[0];
  d_x1_out[0] += 0.4472136f * v253;
  const num v256 = t_x2_y[6] * v254;
  d_x_y[6] += t_x2_y[6] * v254;
  d_x_y[6] += v256;
  const num v258 = t_x_y[7] * t_x2_y[7] + t_x2_y[7] * t_x_y[7];
  d_x1_out[0] += 0.4472136f * v258;
  const num v260 = t_x2_y[7] * v245;
  d_x_y[7] += t_x2_y[7] * v245;
  d_x_y[7] += v260;
  const num v262 = t_x_y[8] * t_x2_y[8] + t_x2_y[8] * t_x_y[8];
  d_x1_out[0] += 0.4472136f * v262;
  const num v264 = t_x2_y[8] * v245;
  d_x_y[8] += t_x2_y[8] * v245;
  d_x_y[8] += v264;
  real* const o_x_a = call.o_x_a + r * 4 * call.channels;
  set<1>(o_x_a + 0 * call.channels, l, d_x_a + 0);
  set<3>(o_x_a + 1 * call.channels, l, d_x_a + 1);
  real* const o_x_b = call.o_x_b + r * 3 * call.channels;
  set<3>(o_x_b + 0 * call.channels, l, d_x_b + 0);
  real* const o_x1_out = call.o_x1_out + r * 4 * call.channels;
  set<1>(o_x1_out + 0 * call.channels, l, d_x1_out + 0);
  set<3>(o_x1_out + 1 * call.channels, l, d_x1_out + 1);
  for (int i = 0; i < 9; ++i) {
    const num sum = over_channels(d_x_y[i], l, (int)call.width);
    if (l.alive && l.lane % call.width == 0) call.s_x_y[(chunk * call.rows + r) * 9 + i] = sum;
  }
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
    call.o_x_u[(e * 5 + 0) * call.channels + c] = narrow(1.0f * da12[0 * 32]);
    call.o_x_u[(e * 5 + 1) * call.channels + c] = narrow(0.57735026f * da12[5 * 32] + 0.57735026f * da12[6 * 32]);
  }
  if (warp == 1) {
    call.o_x_u[(e * 5 + 2) * call.channels + c] = narrow(1.0f * da12[1 * 32]);
    call.o_x_u[(e * 5 + 3) * call.channels + c] = narrow(0.31622776f * da12[2 * 32] + 0.5477226f * da12[3 * 32] + 0.6324555f * da12[4 * 32]);
  }
  if (warp == 2) {
    call.o_x_u[(e * 5 + 4) * call.channels + c] = narrow(0.5163978f * da12[5 * 32] - 0.2581989f * da12[6 * 32] + 0.7745967f * da12[7 * 32]);
  }
  if (warp == 3) {
    call.o_x_v[(e * 1 + 0) * call.channels + c] = narrow(0.57735026f * da12[8 * 32]);
  }
}
extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) tpgen_sum(const Call call) {
  const i64 chunks = (call.channels + 31) / 32, e = blockIdx.x / chunks;
  const int warp = this_warp(), lane = threadIdx.x % 32;
  const i64 c = blockIdx.x % chunks * 32 + lane, t = task_of(call, e);
  const i64 count = (first_of(call, e + 1) - first_of(call, e) + call.span - 1) / call.span;
  num* const sums = (num*)shared_memory() + lane;
  if (c < call.channels)
  for (int n = warp; n < ADDED; n += WARPS * 3) {
    num sum[3] = {};
    for (i64 m = t; m < t + count; m += 13) {
      num found[13][3];
#pragma unroll
      for (int a = 0; a < 13; ++a) {
#pragma unroll
        for (int k = 0; k < 3; ++k) found[a][k] = m + a < t + count && n + k * WARPS < ADDED
        ? call.sums[((m + a) * ADDED + n + k * WARPS) * call.channels + c] : 0;
      }
#pragma unroll
      for (int a = 0; a < 13; ++a) {
#pragma unroll
        for (int k = 0; k < 3; ++k) sum[k] += found[a][k];
      }
    }
#pragma unroll
    for (int k = 0; k < 3; ++k) if (n + k * WARPS < ADDED) sums[(n + k * WARPS) * 32] = sum[k];
  }
  __syncthreads();
  if (c < call.channels) epilogue(call, e, c, warp, sums + 32 * COEFFICIENTS * 0);
}
extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) tpgen_channels(const Call call) {
  const i64 chunks = (call.channels + call.width - 1) / call.width;
  const i64 place = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (place < call.rows * 9) {
    num sum = 0;
    for (i64 n = 0; n < chunks; ++n) sum += call.s_x_y[n * call.rows * 9 + place];
    call.o_x_y[place] = narrow(sum);
  }
}
