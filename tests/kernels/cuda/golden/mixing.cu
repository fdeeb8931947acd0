// cuda placement: opens x1, x2, w; float32, sm_90
//   a step is 32 rows: 72 units on 4 warps
//   shared memory: 21632 bytes, 2 stages of 6784
//   gather 0, phase 0: P + 0: paths 0; 128 items, 1 lanes each
//   gather 1, phase 0: P + 4: paths 1; 128 items, 1 lanes each
//   gather 2, phase 0: P + 16: paths 2; 64 items, 1 lanes each
//   gather 3, phase 0: P + 22: paths 3; 64 items, 1 lanes each
//   gather 4, phase 1: D + 0: paths 0; 128 items, 1 lanes each
//   gather 5, phase 1: D + 4: paths 1; 128 items, 2 lanes each
//   gather 6, phase 1: D + 16: paths 2; 64 items, 2 lanes each
//   gather 7, phase 1: D + 22: paths 3; 64 items, 1 lanes each
//   gather 8, phase 2: x1 + 0: paths 0, 1; 128 items, 1 lanes each
//   gather 9, phase 2: x1 + 4: paths 2, 3; 64 items, 1 lanes each
//   gather 10, phase 2: x2 + 0: paths 0, 2; 32 items, 2 lanes each
//   gather 11, phase 2: x2 + 1: paths 1, 3; 32 items, 4 lanes each
//   gather 12, phase 3: w + 0: paths 0; 384 items, 1 lanes each
//   gather 13, phase 3: w + 12: paths 1; 256 items, 1 lanes each
//   gather 14, phase 3: w + 20: paths 2; 128 items, 1 lanes each
//   gather 15, phase 3: w + 24: paths 3; 192 items, 1 lanes each
typedef long long i64; typedef unsigned long long u64;
typedef float real;  // in memory
typedef float num;  // in registers
enum { THREADS = 128, BLOCKS = 4, ROWS = 32, STAGES = 2 };
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
template <int LOW, int HIGH, int N> DEVICE void sum_lanes(num (&a)[N]) {
#pragma unroll
  for (int mask = HIGH / 2; mask >= LOW; mask /= 2)
#pragma unroll
    for (int n = 0; n < N; ++n) a[n] += __shfl_xor_sync(~0u, a[n], mask);
}
struct Step {
  const real* x1;
  const real* x2;
  const real* w;
  const real* out;
  real* d_x1;
  real* d_x2;
  real* d_w;
  num* P;
  num* D;
  int rows;
};
DEVICE void gather_0(const Step& s, const int chunk) {
  const int lane = threadIdx.x % 32;
  const int n = lane + chunk * 32;
  const bool inside = n < s.rows * 4;
  const bool alive = inside;
  const int item = inside ? n : 0;
  const int row = item / 4, copy = item % 4;
  num sum[1] = {};
  const real* const row_x1 = s.x1 + row * 10;
  const real* const row_x2 = s.x2 + row * 4;
  {
    // path 0: 4x0e x 1x0e -> 3x0e (uvw)
    const int u = copy;
    const int v = 0;
    const num x1_0 = widen(row_x1[u]);
    const num x2_0 = widen(row_x2[v]);
    const num v1 = x1_0 * x2_0;
    sum[0] += 0.4082483f * v1;
  }
  if (alive) {
    num* const to = s.P + row * 24;
    to[copy] = sum[0];
  }
}
DEVICE void gather_1(const Step& s, const int chunk) {
  const int lane = threadIdx.x % 32;
  const int n = lane + chunk * 32;
  const bool inside = n < s.rows * 4;
  const bool alive = inside;
  const int item = inside ? n : 0;
  const int row = item / 4, copy = item % 4;
  num sum[3] = {};
  const real* const row_x1 = s.x1 + row * 10;
  const real* const row_x2 = s.x2 + row * 4;
  {
    // path 1: 4x0e x 1x1o -> 2x1o (uvw)
    const int u = copy;
    const int v = 0;
    const num x1_0 = widen(row_x1[u]);
    const num x2_0 = widen(row_x2[1 + v * 3]);
    const num x2_1 = widen(row_x2[2 + v * 3]);
    const num x2_2 = widen(row_x2[3 + v * 3]);
    const num v1 = x1_0 * x2_0;
    sum[0] += 0.4082483f * v1;
    const num v2 = x1_0 * x2_1;
    sum[1] += 0.4082483f * v2;
    const num v3 = x1_0 * x2_2;
    sum[2] += 0.4082483f * v3;
  }
  if (alive) {
    num* const to = s.P + row * 24;
    to[4 + copy * 3] = sum[0];
    to[5 + copy * 3] = sum[1];
    to[6 + copy * 3] = sum[2];
  }
}
DEVICE void gather_2(const Step& s, const int chunk) {
  const int lane = threadIdx.x % 32;
  const int n = lane + chunk * 32;
  const bool inside = n < s.rows * 2;
  const bool alive = inside;
  const int item = inside ? n : 0;
  const int row = item / 2, copy = item % 2;
  num sum[3] = {};
  const real* const row_x1 = s.x1 + row * 10;
  const real* const row_x2 = s.x2 + row * 4;
  {
    // path 2: 2x1o x 1x0e -> 2x1o (uvw)
    const int u = copy;
    const int v = 0;
    const num x1_0 = widen(row_x1[4 + u * 3]);
    const num x1_1 = widen(row_x1[5 + u * 3]);
    const num x1_2 = widen(row_x1[6 + u * 3]);
    const num x2_0 = widen(row_x2[v]);
    const num v1 = x1_0 * x2_0;
    sum[0] += 0.4082483f * v1;
    const num v2 = x1_1 * x2_0;
    sum[1] += 0.4082483f * v2;
    const num v3 = x1_2 * x2_0;
    sum[2] += 0.4082483f * v3;
  }
  if (alive) {
    num* const to = s.P + row * 24;
    to[16 + copy * 3] = sum[0];
    to[17 + copy * 3] = sum[1];
    to[18 + copy * 3] = sum[2];
  }
}
DEVICE void gather_3(const Step& s, const int chunk) {
  const int lane = threadIdx.x % 32;
  const int n = lane + chunk * 32;
  const bool inside = n < s.rows * 2;
  const bool alive = inside;
  const int item = inside ? n : 0;
  const int row = item / 2, copy = item % 2;
  num sum[1] = {};
  const real* const row_x1 = s.x1 + row * 10;
  const real* const row_x2 = s.x2 + row * 4;
  {
    // path 3: 2x1o x 1x1o -> 3x0e (uvw)
    const int u = copy;
    const int v = 0;
    const num x1_0 = widen(row_x1[4 + u * 3]);
    const num x1_1 = widen(row_x1[5 + u * 3]);
    const num x1_2 = widen(row_x1[6 + u * 3]);
    const num x2_0 = widen(row_x2[1 + v * 3]);
    const num x2_1 = widen(row_x2[2 + v * 3]);
    const num x2_2 = widen(row_x2[3 + v * 3]);
    const num v1 = x1_0 * x2_0;
    sum[0] += 0.23570226f * v1;
    const num v2 = x1_1 * x2_1;
    sum[0] += 0.23570226f * v2;
    const num v3 = x1_2 * x2_2;
    sum[0] += 0.23570226f * v3;
  }
  if (alive) {
    num* const to = s.P + row * 24;
    to[22 + copy] = sum[0];
  }
}
DEVICE void gather_4(const Step& s, const int chunk) {
  const int lane = threadIdx.x % 32;
  const int n = lane + chunk * 32;
  const bool inside = n < s.rows * 4;
  const bool alive = inside;
  const int item = inside ? n : 0;
  const int row = item / 4, copy = item % 4;
  num sum[1] = {};
  const real* const row_w = s.w + row * 30;
  const real* const row_out = s.out + row * 9;
  {
    // path 0: 4x0e x 1x0e -> 3x0e (uvw)
    const int u = copy;
    const int v = 0;
    #pragma unroll 8
    for (int m = 0; m < 3; m += 1) {
      const int w = m;
      const num out_0 = widen(row_out[w]);
      const num w_0 = widen(row_w[u * 3 + v * 3 + w]);
      sum[0] += w_0 * out_0;
    }
  }
  if (alive) {
    num* const to = s.D + row * 24;
    to[copy] = sum[0];
  }
}
DEVICE void gather_5(const Step& s, const int chunk) {
  const int lane = threadIdx.x % 32;
  const int n = lane / 2 + chunk * 16;
  const int sharer = lane % 2;
  const bool inside = n < s.rows * 4;
  const bool alive = inside && sharer == 0;
  const int item = inside ? n : 0;
  const int row = item / 4, copy = item % 4;
  num sum[3] = {};
  const real* const row_w = s.w + row * 30;
  const real* const row_out = s.out + row * 9;
  {
    // path 1: 4x0e x 1x1o -> 2x1o (uvw)
    const int u = copy;
    const int v = 0;
    #pragma unroll 3
    for (int m = sharer; m < 2; m += 2) {
      const int w = m;
      const num out_0 = widen(row_out[3 + w * 3]);
      const num out_1 = widen(row_out[4 + w * 3]);
      const num out_2 = widen(row_out[5 + w * 3]);
      const num w_0 = widen(row_w[12 + u * 2 + v * 2 + w]);
      sum[0] += w_0 * out_0;
      sum[1] += w_0 * out_1;
      sum[2] += w_0 * out_2;
    }
  }
  sum_lanes<1, 2>(sum);
  if (alive) {
    num* const to = s.D + row * 24;
    to[4 + copy * 3] = sum[0];
    to[5 + copy * 3] = sum[1];
    to[6 + copy * 3] = sum[2];
  }
}
DEVICE void gather_6(const Step& s, const int chunk) {
  const int lane = threadIdx.x % 32;
  const int n = lane / 2 + chunk * 16;
  const int sharer = lane % 2;
  const bool inside = n < s.rows * 2;
  const bool alive = inside && sharer == 0;
  const int item = inside ? n : 0;
  const int row = item / 2, copy = item % 2;
  num sum[3] = {};
  const real* const row_w = s.w + row * 30;
  const real* const row_out = s.out + row * 9;
  {
    // path 2: 2x1o x 1x0e -> 2x1o (uvw)
    const int u = copy;
    const int v = 0;
    #pragma unroll 3
    for (int m = sharer; m < 2; m += 2) {
      const int w = m;
      const num out_0 = widen(row_out[3 + w * 3]);
      const num out_1 = widen(row_out[4 + w * 3]);
      const num out_2 = widen(row_out[5 + w * 3]);
      const num w_0 = widen(row_w[20 + u * 2 + v * 2 + w]);
      sum[0] += w_0 * out_0;
      sum[1] += w_0 * out_1;
      sum[2] += w_0 * out_2;
    }
  }
  sum_lanes<1, 2>(sum);
  if (alive) {
    num* const to = s.D + row * 24;
    to[16 + copy * 3] = sum[0];
    to[17 + copy * 3] = sum[1];
    to[18 + copy * 3] = sum[2];
  }
}
DEVICE void gather_7(const Step& s, const int chunk) {
  const int lane = threadIdx.x % 32;
  const int n = lane + chunk * 32;
  const bool inside = n < s.rows * 2;
  const bool alive = inside;
  const int item = inside ? n : 0;
  const int row = item / 2, copy = item % 2;
  num sum[1] = {};
  const real* const row_w = s.w + row * 30;
  const real* const row_out = s.out + row * 9;
  {
    // path 3: 2x1o x 1x1o -> 3x0e (uvw)
    const int u = copy;
    const int v = 0;
    #pragma unroll 8
    for (int m = 0; m < 3; m += 1) {
      const int w = m;
      const num out_0 = widen(row_out[w]);
      const num w_0 = widen(row_w[24 + u * 3 + v * 3 + w]);
      sum[0] += w_0 * out_0;
    }
  }
  if (alive) {
    num* const to = s.D + row * 24;
    to[22 + copy] = sum[0];
  }
}
DEVICE void gather_8(const Step& s, const int chunk) {
  const int lane = threadIdx.x % 32;
  const int n = lane + chunk * 32;
  const bool inside = n < s.rows * 4;
  const bool alive = inside;
  const int item = inside ? n : 0;
  const int row = item / 4, copy = item % 4;
  num sum[1] = {};
  const real* const row_x2 = s.x2 + row * 4;
  const num* const D = s.D + row * 24;
  {
    // path 0: 4x0e x 1x0e -> 3x0e (uvw)
    const int u = copy;
    const int v = 0;
    const num x2_0 = widen(row_x2[v]);
    const num D_0 = D[u + v];
    const num h1 = D_0 * x2_0;
    sum[0] += 0.4082483f * h1;
  }
  {
    // path 1: 4x0e x 1x1o -> 2x1o (uvw)
    const int u = copy;
    const int v = 0;
    const num x2_0 = widen(row_x2[1 + v * 3]);
    const num x2_1 = widen(row_x2[2 + v * 3]);
    const num x2_2 = widen(row_x2[3 + v * 3]);
    const num D_0 = D[4 + u * 3 + v * 3];
    const num D_1 = D[5 + u * 3 + v * 3];
    const num D_2 = D[6 + u * 3 + v * 3];
    const num h1 = D_0 * x2_0;
    sum[0] += 0.4082483f * h1;
    const num h2 = D_1 * x2_1;
    sum[0] += 0.4082483f * h2;
    const num h3 = D_2 * x2_2;
    sum[0] += 0.4082483f * h3;
  }
  if (alive) {
    real* const to = s.d_x1 + row * 10;
    to[copy] = narrow(sum[0]);
  }
}
DEVICE void gather_9(const Step& s, const int chunk) {
  const int lane = threadIdx.x % 32;
  const int n = lane + chunk * 32;
  const bool inside = n < s.rows * 2;
  const bool alive = inside;
  const int item = inside ? n : 0;
  const int row = item / 2, copy = item % 2;
  num sum[3] = {};
  const real* const row_x2 = s.x2 + row * 4;
  const num* const D = s.D + row * 24;
  {
    // path 2: 2x1o x 1x0e -> 2x1o (uvw)
    const int u = copy;
    const int v = 0;
    const num x2_0 = widen(row_x2[v]);
    const num D_0 = D[16 + u * 3 + v * 3];
    const num D_1 = D[17 + u * 3 + v * 3];
    const num D_2 = D[18 + u * 3 + v * 3];
    const num h1 = D_0 * x2_0;
    sum[0] += 0.4082483f * h1;
    const num h2 = D_1 * x2_0;
    sum[1] += 0.4082483f * h2;
    const num h3 = D_2 * x2_0;
    sum[2] += 0.4082483f * h3;
  }
  {
    // path 3: 2x1o x 1x1o -> 3x0e (uvw)
    const int u = copy;
    const int v = 0;
    const num x2_0 = widen(row_x2[1 + v * 3]);
    const num x2_1 = widen(row_x2[2 + v * 3]);
    const num x2_2 = widen(row_x2[3 + v * 3]);
    const num D_0 = D[22 + u + v];
    const num h1 = D_0 * x2_0;
    sum[0] += 0.23570226f * h1;
    const num h2 = D_0 * x2_1;
    sum[1] += 0.23570226f * h2;
    const num h3 = D_0 * x2_2;
    sum[2] += 0.23570226f * h3;
  }
  if (alive) {
    real* const to = s.d_x1 + row * 10;
    to[4 + copy * 3] = narrow(sum[0]);
    to[5 + copy * 3] = narrow(sum[1]);
    to[6 + copy * 3] = narrow(sum[2]);
  }
}
DEVICE void gather_10(const Step& s, const int chunk) {
  const int lane = threadIdx.x % 32;
  const int n = lane % 16 + chunk * 16;
  const int sharer = lane / 16;
  const bool inside = n < s.rows * 1;
  const bool alive = inside && sharer == 0;
  const int item = inside ? n : 0;
  const int row = item / 1, copy = item % 1;
  num sum[1] = {};
  const real* const row_x1 = s.x1 + row * 10;
  const num* const D = s.D + row * 24;
  {
    // path 0: 4x0e x 1x0e -> 3x0e (uvw)
    const int v = 0;
    #pragma unroll 6
    for (int m = sharer; m < 4; m += 2) {
      const int u = m;
      const num x1_0 = widen(row_x1[u]);
      const num D_0 = D[u + v];
      const num h1 = 0.4082483f * D_0;
      sum[0] += x1_0 * h1;
    }
  }
  {
    // path 2: 2x1o x 1x0e -> 2x1o (uvw)
    const int v = 0;
    #pragma unroll 2
    for (int m = sharer; m < 2; m += 2) {
      const int u = m;
      const num x1_0 = widen(row_x1[4 + u * 3]);
      const num x1_1 = widen(row_x1[5 + u * 3]);
      const num x1_2 = widen(row_x1[6 + u * 3]);
      const num D_0 = D[16 + u * 3 + v * 3];
      const num D_1 = D[17 + u * 3 + v * 3];
      const num D_2 = D[18 + u * 3 + v * 3];
      const num h1 = 0.4082483f * D_0;
      sum[0] += x1_0 * h1;
      const num h2 = 0.4082483f * D_1;
      sum[0] += x1_1 * h2;
      const num h3 = 0.4082483f * D_2;
      sum[0] += x1_2 * h3;
    }
  }
  sum_lanes<16, 32>(sum);
  if (alive) {
    real* const to = s.d_x2 + row * 4;
    to[copy] = narrow(sum[0]);
  }
}
DEVICE void gather_11(const Step& s, const int chunk) {
  const int lane = threadIdx.x % 32;
  const int n = lane % 8 + chunk * 8;
  const int sharer = lane / 8;
  const bool inside = n < s.rows * 1;
  const bool alive = inside && sharer == 0;
  const int item = inside ? n : 0;
  const int row = item / 1, copy = item % 1;
  num sum[3] = {};
  const real* const row_x1 = s.x1 + row * 10;
  const num* const D = s.D + row * 24;
  {
    // path 1: 4x0e x 1x1o -> 2x1o (uvw)
    const int v = 0;
    #pragma unroll 2
    for (int m = sharer; m < 4; m += 4) {
      const int u = m;
      const num x1_0 = widen(row_x1[u]);
      const num D_0 = D[4 + u * 3 + v * 3];
      const num D_1 = D[5 + u * 3 + v * 3];
      const num D_2 = D[6 + u * 3 + v * 3];
      const num h1 = 0.4082483f * x1_0;
      sum[0] += D_0 * h1;
      const num h2 = 0.4082483f * x1_0;
      sum[1] += D_1 * h2;
      sum[2] += D_2 * h1;
    }
  }
  {
    // path 3: 2x1o x 1x1o -> 3x0e (uvw)
    const int v = 0;
    #pragma unroll 2
    for (int m = sharer; m < 2; m += 4) {
      const int u = m;
      const num x1_0 = widen(row_x1[4 + u * 3]);
      const num x1_1 = widen(row_x1[5 + u * 3]);
      const num x1_2 = widen(row_x1[6 + u * 3]);
      const num D_0 = D[22 + u + v];
      const num h1 = 0.23570226f * D_0;
      sum[0] += x1_0 * h1;
      const num h2 = 0.23570226f * D_0;
      sum[1] += x1_1 * h2;
      sum[2] += x1_2 * h1;
    }
  }
  sum_lanes<8, 32>(sum);
  if (alive) {
    real* const to = s.d_x2 + row * 4;
    to[1 + copy * 3] = narrow(sum[0]);
    to[2 + copy * 3] = narrow(sum[1]);
    to[3 + copy * 3] = narrow(sum[2]);
  }
}
DEVICE void gather_12(const Step& s, const int chunk) {
  const int lane = threadIdx.x % 32;
  const int n = lane + chunk * 32;
  const bool inside = n < s.rows * 12;
  const bool alive = inside;
  const int item = inside ? n : 0;
  const int row = item / 12, copy = item % 12;
  num sum[1] = {};
  const real* const row_out = s.out + row * 9;
  const num* const P = s.P + row * 24;
  {
    // path 0: 4x0e x 1x0e -> 3x0e (uvw)
    const int u = copy / 3;
    const int v = 0;
    const int w = copy % 3;
    const num out_0 = widen(row_out[w]);
    const num P_0 = P[u + v];
    sum[0] += P_0 * out_0;
  }
  if (alive) {
    real* const to = s.d_w + row * 30;
    to[copy] = narrow(sum[0]);
  }
}
DEVICE void gather_13(const Step& s, const int chunk) {
  const int lane = threadIdx.x % 32;
  const int n = lane + chunk * 32;
  const bool inside = n < s.rows * 8;
  const bool alive = inside;
  const int item = inside ? n : 0;
  const int row = item / 8, copy = item % 8;
  num sum[1] = {};
  const real* const row_out = s.out + row * 9;
  const num* const P = s.P + row * 24;
  {
    // path 1: 4x0e x 1x1o -> 2x1o (uvw)
    const int u = copy / 2;
    const int v = 0;
    const int w = copy % 2;
    const num out_0 = widen(row_out[3 + w * 3]);
    const num out_1 = widen(row_out[4 + w * 3]);
    const num out_2 = widen(row_out[5 + w * 3]);
    const num P_0 = P[4 + u * 3 + v * 3];
    const num P_1 = P[5 + u * 3 + v * 3];
    const num P_2 = P[6 + u * 3 + v * 3];
    sum[0] += P_0 * out_0 + P_1 * out_1 + P_2 * out_2;
  }
  if (alive) {
    real* const to = s.d_w + row * 30;
    to[12 + copy] = narrow(sum[0]);
  }
}
DEVICE void gather_14(const Step& s, const int chunk) {
  const int lane = threadIdx.x % 32;
  const int n = lane + chunk * 32;
  const bool inside = n < s.rows * 4;
  const bool alive = inside;
  const int item = inside ? n : 0;
  const int row = item / 4, copy = item % 4;
  num sum[1] = {};
  const real* const row_out = s.out + row * 9;
  const num* const P = s.P + row * 24;
  {
    // path 2: 2x1o x 1x0e -> 2x1o (uvw)
    const int u = copy / 2;
    const int v = 0;
    const int w = copy % 2;
    const num out_0 = widen(row_out[3 + w * 3]);
    const num out_1 = widen(row_out[4 + w * 3]);
    const num out_2 = widen(row_out[5 + w * 3]);
    const num P_0 = P[16 + u * 3 + v * 3];
    const num P_1 = P[17 + u * 3 + v * 3];
    const num P_2 = P[18 + u * 3 + v * 3];
    sum[0] += P_0 * out_0 + P_1 * out_1 + P_2 * out_2;
  }
  if (alive) {
    real* const to = s.d_w + row * 30;
    to[20 + copy] = narrow(sum[0]);
  }
}
DEVICE void gather_15(const Step& s, const int chunk) {
  const int lane = threadIdx.x % 32;
  const int n = lane + chunk * 32;
  const bool inside = n < s.rows * 6;
  const bool alive = inside;
  const int item = inside ? n : 0;
  const int row = item / 6, copy = item % 6;
  num sum[1] = {};
  const real* const row_out = s.out + row * 9;
  const num* const P = s.P + row * 24;
  {
    // path 3: 2x1o x 1x1o -> 3x0e (uvw)
    const int u = copy / 3;
    const int v = 0;
    const int w = copy % 3;
    const num out_0 = widen(row_out[w]);
    const num P_0 = P[22 + u + v];
    sum[0] += P_0 * out_0;
  }
  if (alive) {
    real* const to = s.d_w + row * 30;
    to[24 + copy] = narrow(sum[0]);
  }
}
struct Share { unsigned gather, chunk; };
static __device__ const Share shares_0[4][3] = {
  {{3, 0}, {2, 0}, {0, 2}},
  {{3, 1}, {2, 1}, {0, 3}},
  {{1, 0}, {1, 2}, {0, 0}},
  {{1, 1}, {1, 3}, {0, 1}},
};
DEVICE void phase_0(const Step& s, const int warp) {
  for (int n = 0; n < 3; ++n) {
    const Share share = shares_0[warp][n];
    switch (share.gather) {
      case 0: gather_0(s, share.chunk); break;
      case 1: gather_1(s, share.chunk); break;
      case 2: gather_2(s, share.chunk); break;
      case 3: gather_3(s, share.chunk); break;
    }
  }
}
static __device__ const Share shares_1[4][5] = {
  {{4, 0}, {7, 0}, {5, 4}, {6, 0}, {~0u, 0}},
  {{4, 1}, {7, 1}, {5, 5}, {6, 1}, {~0u, 0}},
  {{4, 2}, {5, 0}, {5, 2}, {5, 6}, {6, 2}},
  {{4, 3}, {5, 1}, {5, 3}, {5, 7}, {6, 3}},
};
DEVICE void phase_1(const Step& s, const int warp) {
  for (int n = 0; n < 5; ++n) {
    const Share share = shares_1[warp][n];
    switch (share.gather) {
      case 4: gather_4(s, share.chunk); break;
      case 5: gather_5(s, share.chunk); break;
      case 6: gather_6(s, share.chunk); break;
      case 7: gather_7(s, share.chunk); break;
    }
  }
}
static __device__ const Share shares_2[4][3] = {
  {{9, 0}, {11, 0}, {8, 0}},
  {{9, 1}, {11, 1}, {8, 1}},
  {{10, 0}, {11, 2}, {8, 2}},
  {{10, 1}, {11, 3}, {8, 3}},
};
DEVICE void phase_2(const Step& s, const int warp) {
  for (int n = 0; n < 3; ++n) {
    const Share share = shares_2[warp][n];
    switch (share.gather) {
      case 8: gather_8(s, share.chunk); break;
      case 9: gather_9(s, share.chunk); break;
      case 10: gather_10(s, share.chunk); break;
      case 11: gather_11(s, share.chunk); break;
    }
  }
}
static __device__ const Share shares_3[4][8] = {
  {{13, 0}, {13, 4}, {14, 0}, {12, 0}, {12, 4}, {12, 8}, {15, 0}, {15, 4}},
  {{13, 1}, {13, 5}, {14, 1}, {12, 1}, {12, 5}, {12, 9}, {15, 1}, {15, 5}},
  {{13, 2}, {13, 6}, {14, 2}, {12, 2}, {12, 6}, {12, 10}, {15, 2}, {~0u, 0}},
  {{13, 3}, {13, 7}, {14, 3}, {12, 3}, {12, 7}, {12, 11}, {15, 3}, {~0u, 0}},
};
DEVICE void phase_3(const Step& s, const int warp) {
  for (int n = 0; n < 8; ++n) {
    const Share share = shares_3[warp][n];
    switch (share.gather) {
      case 12: gather_12(s, share.chunk); break;
      case 13: gather_13(s, share.chunk); break;
      case 14: gather_14(s, share.chunk); break;
      case 15: gather_15(s, share.chunk); break;
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
    fetch_begin(barrier, 6784);
    fetch(stage + 0, call.x1 + q * 10, 1280, barrier);
    fetch(stage + 1280, call.x2 + q * 4, 512, barrier);
    fetch(stage + 1792, call.w + q * 30, 3840, barrier);
    fetch(stage + 5632, call.out + q * 9, 1152, barrier);
  }
  else {
    fetch_begin(barrier, 0);
    fetch_numbers((real*)(stage + 0), call.x1 + q * 10, n * 10);
    fetch_numbers((real*)(stage + 1280), call.x2 + q * 4, n * 4);
    fetch_numbers((real*)(stage + 1792), call.w + q * 30, n * 30);
    fetch_numbers((real*)(stage + 5632), call.out + q * 9, n * 9);
  }
}
DEVICE void compute(const Step& s) {
  const int warp = this_warp();
  phase_0(s, warp);
  __syncthreads();
  phase_1(s, warp);
  __syncthreads();
  phase_2(s, warp);
  __syncthreads();
  phase_3(s, warp);
}
DEVICE void deliver_rows(const Call& call, const Step& s, i64 q, const int n) {
  deliver_begin();
  if (n == ROWS) deliver(call.d_x1 + q * 10, s.d_x1, 1280);
  else copy(call.d_x1 + q * 10, s.d_x1, n * 10);
  if (n == ROWS) deliver(call.d_x2 + q * 4, s.d_x2, 512);
  else copy(call.d_x2 + q * 4, s.d_x2, n * 4);
  if (n == ROWS) deliver(call.d_w + q * 30, s.d_w, 3840);
  else copy(call.d_w + q * 30, s.d_w, n * 30);
  deliver_end();
}
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) tpgen_kernel(const Call call) {
  unsigned char* const shared = shared_memory();
  u64* const barriers = (u64*)shared;
  if (threadIdx.x == 0) for (int n = 0; n < STAGES; ++n) barrier_init(barriers + n);
  Step s;
  s.P = (num*)(shared + 32);
  s.D = (num*)(shared + 3104);
  s.d_x1 = (real*)(shared + 6176);
  s.d_x2 = (real*)(shared + 7456);
  int at = 0;
  unsigned parity = 0;
  __syncthreads();
  const i64 begin = (i64)blockIdx.x * ROWS, by = (i64)gridDim.x * ROWS, end = call.rows;
  for (int n = 0; n < STAGES - 1; ++n) {
    const i64 q = begin + n * by;
    if (q < end) fetch_rows(call, shared + 8064 + (at + n) % STAGES * 6784, barriers + (at + n) % STAGES, q, rows_of(q, end));
    fetch_end();
  }
  for (i64 q = begin; q < end; q += by) {
    delivered();
    const i64 later = q + (STAGES - 1) * by;
    if (later < end) fetch_rows(call, shared + 8064 + (at + STAGES - 1) % STAGES * 6784, barriers + (at + STAGES - 1) % STAGES, later, rows_of(later, end));
    fetch_end();
    fetched(barriers + at, parity);
    unsigned char* const stage = shared + 8064 + at * 6784;
    s.x1 = (const real*)(stage + 0);
    s.x2 = (const real*)(stage + 1280);
    s.w = (const real*)(stage + 1792);
    s.d_w = (real*)(stage + 1792);
    s.out = (const real*)(stage + 5632);
    s.rows = rows_of(q, end);
    compute(s);
    deliver_rows(call, s, q, s.rows);
    if (++at == STAGES) at = 0, parity ^= 1;
  }
  delivered();
}
