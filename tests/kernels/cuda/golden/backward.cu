// cuda placement: opens x1, x2, w; float32, sm_90
//   a step is 2 rows: 6 units on 4 warps
//   shared memory: 10496 bytes, 2 stages of 5056
//   warp 0: group 1.0 rows 0
//   warp 1: group 1.0 rows 1
//   warp 2: group 0.0 rows 0, group 0.1 rows 0
//   warp 3: group 0.0 rows 1, group 0.1 rows 1
//   group 0: paths 0, 2; 64 channels, 32 lanes a row
//   group 1: paths 1, 3; 20 channels, 32 lanes a row
typedef long long i64; typedef unsigned long long u64;
typedef float real;  // in memory
typedef float num;  // in registers
enum { THREADS = 128, BLOCKS = 4, ROWS = 2, STAGES = 2 };
#ifndef TPGEN_DEVICE
// 2: a copy engine moves whole rows (sm_90).  1: threads start copies of 16 bytes (sm_80).  0: threads copy.
#if __CUDA_ARCH__ >= 900
#define COPIES 2
#elif __CUDA_ARCH__ >= 800
#define COPIES 1
#else
#define COPIES 0
#endif
#define DEVICE __device__ __forceinline__

extern __shared__ __align__(128) unsigned char tpgen_shared[];
DEVICE unsigned char* shared_memory() { return tpgen_shared; }
// Which warp a thread is of, as a number that the compiler knows to be one for all its lanes: they never part then.
DEVICE int this_warp() { return __shfl_sync(~0u, (int)threadIdx.x / 32, 0); }
DEVICE unsigned at(const void* shared) { return (unsigned)__cvta_generic_to_shared(shared); }

#if COPIES == 2
DEVICE void barrier_init(u64* b) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at(b)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// This phase ends once so many bytes have arrived.
DEVICE void barrier_expect(u64* b, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(b)), "r"(bytes) : "memory");
}
DEVICE void barrier_wait(u64* b, unsigned parity) {
  unsigned done;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done) : "r"(at(b)), "r"(parity) : "memory");
  } while (!done);
}
// Addresses and sizes in multiples of 16 bytes.
DEVICE void bulk_in(void* to, const void* from, unsigned bytes, u64* b) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      ::"r"(at(to)), "l"(from), "r"(bytes), "r"(at(b)) : "memory");
}
DEVICE void bulk_out(void* to, const void* from, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(at(from)), "r"(bytes) : "memory");
}
DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until shared memory may be written again.
DEVICE void bulk_drain() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// What this thread has written to shared memory can be seen by the copy engine.
DEVICE void bulk_seal() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
#endif

#if COPIES >= 1
// 4, 8 or 16 bytes, which arrive some time later.
template <int BYTES> DEVICE void async_in(void* to, const void* from) {
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at(to)), "l"(from) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at(to)), "l"(from), "n"(BYTES) : "memory");
}
DEVICE void async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all but the last N groups of this thread have arrived.
template <int N> DEVICE void async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
#endif
#endif
DEVICE num widen(real x) { return x; }
DEVICE real narrow(num x) { return x; }
struct alignas(16) Sixteen { unsigned a, b, c, d; };

// One number after the other: rows that do not fill 16 bytes, and what is left at the end.
template <class To, class From> DEVICE void copy(To* to, const From* from, int count) {
  for (int n = threadIdx.x; n < count; n += THREADS) to[n] = from[n];
}
DEVICE void copy_sixteens(void* to, const void* from, int bytes) {
  for (int n = threadIdx.x; n < bytes / 16; n += THREADS) ((Sixteen*)to)[n] = ((const Sixteen*)from)[n];
}
template <class T> DEVICE void clear(T* to, int count) {
  for (int n = threadIdx.x; n < count; n += THREADS) to[n] = 0;
}

// Numbers that were added up, to where they belong.
DEVICE void write_out(real* to, const num* from, int count) {
  for (int n = threadIdx.x; n < count; n += THREADS) to[n] = narrow(from[n]);
}

// Rows that do not fill 16 bytes, on their way beside the others.
DEVICE void fetch_numbers(real* to, const real* from, int count) {
#if COPIES >= 1
  if constexpr (sizeof(real) >= 4) {
    for (int n = threadIdx.x; n < count; n += THREADS) async_in<sizeof(real)>(to + n, from + n);
    return;
  } else if (((u64)to | (u64)from) % 4 == 0) {  // the narrow ones by two, where they begin so
    const int pairs = count / 2;
    for (int n = threadIdx.x; n < pairs; n += THREADS) async_in<4>(to + 2 * n, from + 2 * n);
    to += 2 * pairs, from += 2 * pairs, count %= 2;
  }
#endif
  copy(to, from, count);
}

#if COPIES == 2
// Rows that stand apart are fetched by a thread each, and so are their results taken away.
DEVICE int first_row() { return threadIdx.x; }
DEVICE int next_row(int row) { return row + THREADS; }
DEVICE void fetch_row(void* to, const void* from, int bytes, u64* b) { bulk_in(to, from, bytes, b); }
DEVICE void deliver_row(void* to, const void* from, int bytes) { bulk_out(to, from, bytes); }
DEVICE void fetch_begin(u64* b, int bytes) {
  if (threadIdx.x == 0) barrier_expect(b, bytes);
}
DEVICE void fetch(void* to, const void* from, int bytes, u64* b) {
  if (threadIdx.x == 0) bulk_in(to, from, bytes, b);
}
DEVICE void fetch_end() { async_commit(); }
DEVICE void fetched(u64* b, unsigned parity) {
  barrier_wait(b, parity);
  async_wait<STAGES - 1>();
  __syncthreads();
}
DEVICE void deliver(void* to, const void* from, int bytes) {
  if (threadIdx.x == 0) bulk_out(to, from, bytes);
}
DEVICE void deliver_begin() {
  bulk_seal();
  __syncthreads();
}
DEVICE void deliver_end() { bulk_commit(); }
DEVICE void delivered() {
  bulk_drain();
  __syncthreads();
}
#else
DEVICE void barrier_init(u64*) {}
DEVICE int first_row() { return 0; }
DEVICE int next_row(int row) { return row + 1; }
DEVICE void fetch_begin(u64*, int) {}
#if COPIES == 1
DEVICE void fetch(void* to, const void* from, int bytes, u64*) {
  for (int n = threadIdx.x * 16; n < bytes; n += THREADS * 16) async_in<16>((char*)to + n, (const char*)from + n);
}
DEVICE void fetch_end() { async_commit(); }
DEVICE void fetched(u64*, unsigned) {
  async_wait<STAGES - 1>();
  __syncthreads();
}
#else
DEVICE void fetch(void* to, const void* from, int bytes, u64*) { copy_sixteens(to, from, bytes); }
DEVICE void fetch_end() {}
DEVICE void fetched(u64*, unsigned) { __syncthreads(); }
#endif
DEVICE void fetch_row(void* to, const void* from, int bytes, u64* b) { fetch(to, from, bytes, b); }
DEVICE void deliver(void* to, const void* from, int bytes) { copy_sixteens(to, from, bytes); }
DEVICE void deliver_row(void* to, const void* from, int bytes) { copy_sixteens(to, from, bytes); }
DEVICE void deliver_begin() { __syncthreads(); }
DEVICE void deliver_end() {}
DEVICE void delivered() { __syncthreads(); }
#endif
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
static __device__ const num value_0_0[] = {1.0f, 0.0f, 0.0f, 0.0f, 0.57735026f, 0.57735026f, 0.57735026f, 0.0f, 1.0f, 1.0f, 1.0f, 0.0f, 1.0f, 1.0f, 1.0f, 0.0f};
static __device__ const unsigned short place_0_0[] = {0, 0, 0, 0, 1, 2, 3, 0, 1, 2, 3, 0, 0, 0, 0, 0};
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
  const bool alive = row < s.rows;
  const int c = channel;
  const real* const x1 = s.x1 + row * 124;
  real* const d_x1 = s.d_x1 + row * 124;
  const real* const w = s.w + row * 168;
  real* const d_w = s.d_w + row * 168;
  const real* const out = s.out + row * 336;
  const num* const T = s.T + row * 16;
  num* const p_x2 = s.p_x2 + (row * 3 + 0 + chunk) * 4;
  num y_x2_0 = 0;
  num y_x2_1 = 0;
  num y_x2_2 = 0;
  num y_x2_3 = 0;
  // path 0: 64x0e x 1x0e -> 64x0e (uvu)
  const num x1_0_0 = widen(x1[c]);
  num d_x1_0_0 = 0;
  const num w_0_0 = widen(w[c]);
  num d_w_0_0 = 0;
  const num out_0_0 = widen(out[c]);
  {
    const quad t0 = four(T + 0);
    const num v1 = w_0_0 * x1_0_0;
    const num v2 = t0.x * out_0_0;
    const num s0 = v1 * out_0_0;
    const num v3 = x1_0_0 * v2;
    d_x1_0_0 += w_0_0 * v2;
    d_w_0_0 += v3;
    y_x2_0 += s0;
  }
  if (alive) {
    d_w[c] = narrow(d_w_0_0);
  }
  // path 2: 64x0e x 1x1o -> 64x1o (uvu)
  const num w_2_0 = widen(w[84 + c]);
  num d_w_2_0 = 0;
  const num out_2_0 = widen(out[84 + c * 3]);
  const num out_2_1 = widen(out[85 + c * 3]);
  const num out_2_2 = widen(out[86 + c * 3]);
  {
    const quad t0 = four(T + 8);
    const num v1 = w_2_0 * x1_0_0;
    const num v2 = t0.x * out_2_0;
    const num s0 = v1 * out_2_0;
    const num v3 = v2 + t0.y * out_2_1;
    const num s1 = v1 * out_2_1;
    const num v4 = v3 + t0.z * out_2_2;
    const num s2 = v1 * out_2_2;
    const num v5 = x1_0_0 * v4;
    d_x1_0_0 += w_2_0 * v4;
    d_w_2_0 += v5;
    y_x2_1 += 1.0f * s0;
    y_x2_2 += s1;
    y_x2_3 += 1.0f * s2;
  }
  if (alive) {
    d_x1[c] = narrow(d_x1_0_0);
  }
  if (alive) {
    d_w[84 + c] = narrow(d_w_2_0);
  }
  {
    num y[4] = {alive ? y_x2_0 : 0, alive ? y_x2_1 : 0, alive ? y_x2_2 : 0, alive ? y_x2_3 : 0};
    fold_lanes<32>(y, lane, 4, p_x2 + 0, 1);
  }
}
DEVICE void group_1(const Step& s, const int chunk, const int set) {
  const int lane = threadIdx.x % 32;
  const int channel = lane;
  const int row = set;
  const bool alive = channel < 20 && row < s.rows;
  const int c = channel < 20 ? channel : 19;
  const real* const x1 = s.x1 + row * 124;
  real* const d_x1 = s.d_x1 + row * 124;
  const real* const w = s.w + row * 168;
  real* const d_w = s.d_w + row * 168;
  const real* const out = s.out + row * 336;
  const num* const T = s.T + row * 16;
  num* const p_x2 = s.p_x2 + (row * 3 + 2) * 4;
  num y_x2_0 = 0;
  num y_x2_1 = 0;
  num y_x2_2 = 0;
  num y_x2_3 = 0;
  // path 1: 20x1o x 1x1o -> 20x0e (uvu)
  const num x1_1_0 = widen(x1[64 + c * 3]);
  const num x1_1_1 = widen(x1[65 + c * 3]);
  const num x1_1_2 = widen(x1[66 + c * 3]);
  num d_x1_1_0 = 0;
  num d_x1_1_1 = 0;
  num d_x1_1_2 = 0;
  const num w_1_0 = widen(w[64 + c]);
  num d_w_1_0 = 0;
  const num out_1_0 = widen(out[64 + c]);
  {
    const quad t0 = four(T + 4);
    const num v1 = w_1_0 * out_1_0;
    d_x1_1_0 += v1 * t0.x;
    const num v2 = t0.x * x1_1_0;
    const num s0 = v1 * x1_1_0;
    d_x1_1_1 += v1 * t0.y;
    const num v3 = v2 + t0.y * x1_1_1;
    const num s1 = v1 * x1_1_1;
    d_x1_1_2 += v1 * t0.z;
    const num v4 = v3 + t0.z * x1_1_2;
    const num s2 = v1 * x1_1_2;
    d_w_1_0 += out_1_0 * v4;
    y_x2_1 += 0.57735026f * s0;
    y_x2_2 += 0.57735026f * s1;
    y_x2_3 += 0.57735026f * s2;
  }
  __syncwarp();
  if (alive) {
    d_w[64 + c] = narrow(d_w_1_0);
  }
  // path 3: 20x1o x 1x0e -> 20x1o (uvu)
  const num w_3_0 = widen(w[148 + c]);
  num d_w_3_0 = 0;
  const num out_3_0 = widen(out[276 + c * 3]);
  const num out_3_1 = widen(out[277 + c * 3]);
  const num out_3_2 = widen(out[278 + c * 3]);
  {
    const quad t0 = four(T + 12);
    const num v1 = w_3_0 * x1_1_0;
    const num v2 = t0.x * out_3_0;
    const num s0 = v1 * out_3_0;
    const num v3 = x1_1_0 * v2;
    d_x1_1_0 += w_3_0 * v2;
    const num v4 = w_3_0 * x1_1_1;
    const num v5 = t0.y * out_3_1;
    const num s1 = v4 * out_3_1;
    const num v6 = v3 + x1_1_1 * v5;
    d_x1_1_1 += w_3_0 * v5;
    const num v7 = w_3_0 * x1_1_2;
    const num v8 = t0.z * out_3_2;
    const num s2 = v7 * out_3_2;
    const num v9 = v6 + x1_1_2 * v8;
    d_x1_1_2 += w_3_0 * v8;
    d_w_3_0 += v9;
    y_x2_0 += 1.0f * s0 + s1 + 1.0f * s2;
  }
  __syncwarp();
  if (alive) {
    d_x1[64 + c * 3] = narrow(d_x1_1_0);
    d_x1[65 + c * 3] = narrow(d_x1_1_1);
    d_x1[66 + c * 3] = narrow(d_x1_1_2);
  }
  __syncwarp();
  if (alive) {
    d_w[148 + c] = narrow(d_w_3_0);
  }
  {
    num y[4] = {alive ? y_x2_0 : 0, alive ? y_x2_1 : 0, alive ? y_x2_2 : 0, alive ? y_x2_3 : 0};
    fold_lanes<32>(y, lane, 4, p_x2 + 0, 1);
  }
}
struct Unit { unsigned char group, chunk, set; };
static __constant__ const Unit work[4][2] = {
  {{1, 0, 0}, {2, 0, 0}},
  {{1, 0, 1}, {2, 0, 0}},
  {{0, 0, 0}, {0, 1, 0}},
  {{0, 0, 1}, {0, 1, 1}},
};
DEVICE void compute_units(const Step& s) {
  const int warp = this_warp();
  for (int n = 0; n < 2; ++n) {
    const Unit u = work[warp][n];
    switch (u.group) {
      case 0: group_0(s, u.chunk, u.set); break;
      case 1: group_1(s, u.chunk, u.set); break;
    }
  }
}
DEVICE void tabulate(const Step& s) {
  for (int n = threadIdx.x; n < 32; n += THREADS) {
    const int m = n % 16, v = n / 16 % 1, row = n / 16;
    const real* const y = s.x2 + row * 4 + v * 0;
    s.T[row * 16 + 0 + n % 16] = value_0_0[m] * widen(y[place_0_0[m]]);
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
    fetch_begin(barrier, 5056);
    fetch(stage + 0, call.x1 + q * 124, 992, barrier);
    fetch(stage + 992, call.x2 + q * 4, 32, barrier);
    fetch(stage + 1024, call.w + q * 168, 1344, barrier);
    fetch(stage + 2368, call.out + q * 336, 2688, barrier);
  }
  else {
    fetch_begin(barrier, 0);
    fetch_numbers((real*)(stage + 0), call.x1 + q * 124, n * 124);
    fetch_numbers((real*)(stage + 992), call.x2 + q * 4, n * 4);
    fetch_numbers((real*)(stage + 1024), call.w + q * 168, n * 168);
    fetch_numbers((real*)(stage + 2368), call.out + q * 336, n * 336);
  }
}
DEVICE void compute(const Step& s) {
  tabulate(s);
  clear(s.p_x2, 24);
  __syncthreads();
  compute_units(s);
  __syncthreads();
  for (int n = threadIdx.x; n < 8; n += THREADS) {
    const int row = n / 4, place = 0 + n % 4;
    const num* const part = s.p_x2 + row * 12 + place;
    num sum = 0;
    for (int m = 0; m < 3; ++m) sum += part[m * 4];
    s.d_x2[row * 4 + place] = narrow(sum);
  }
}
DEVICE void deliver_rows(const Call& call, const Step& s, i64 q, const int n) {
  deliver_begin();
  if (n == ROWS) deliver(call.d_x1 + q * 124, s.d_x1, 992);
  else copy(call.d_x1 + q * 124, s.d_x1, n * 124);
  if (n == ROWS) deliver(call.d_x2 + q * 4, s.d_x2, 32);
  else copy(call.d_x2 + q * 4, s.d_x2, n * 4);
  if (n == ROWS) deliver(call.d_w + q * 168, s.d_w, 1344);
  else copy(call.d_w + q * 168, s.d_w, n * 168);
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
    if (q < end) fetch_rows(call, shared + 256 + (at + n) % STAGES * 5120, barriers + (at + n) % STAGES, q, rows_of(q, end));
    fetch_end();
  }
  for (i64 q = begin; q < end; q += by) {
    delivered();
    const i64 later = q + (STAGES - 1) * by;
    if (later < end) fetch_rows(call, shared + 256 + (at + STAGES - 1) % STAGES * 5120, barriers + (at + STAGES - 1) % STAGES, later, rows_of(later, end));
    fetch_end();
    fetched(barriers + at, parity);
    unsigned char* const stage = shared + 256 + at * 5120;
    s.x1 = (const real*)(stage + 0);
    s.d_x1 = (real*)(stage + 0);
    s.x2 = (const real*)(stage + 992);
    s.d_x2 = (real*)(stage + 992);
    s.w = (const real*)(stage + 1024);
    s.d_w = (real*)(stage + 1024);
    s.out = (const real*)(stage + 2368);
    s.rows = rows_of(q, end);
    compute(s);
    deliver_rows(call, s, q, s.rows);
    if (++at == STAGES) at = 0, parity ^= 1;
  }
  delivered();
}
