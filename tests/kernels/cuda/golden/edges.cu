// cuda placement: opens out, summed by the owner of out; float64, sm_80
//   a step is 4 rows: 3 units on 4 warps
//   shared memory: 22528 bytes, 2 stages of 9472
//   warp 0: group 1.0 rows 0
//   warp 1: group 0.0 rows 0
//   warp 2: group 0.1 rows 0
//   warp 3:
//   group 0: paths 0, 2; 64 channels, 32 lanes a row
//   group 1: paths 1, 3; 20 channels, 32 lanes a row
typedef long long i64; typedef unsigned long long u64;
typedef double real;  // in memory
typedef double num;  // in registers
enum { THREADS = 128, BLOCKS = 2, ROWS = 4, STAGES = 2 };
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
static __device__ const num value_0_0[] = {1.0, 0.0, 0.0, 0.0, 0.5773502691896257, 0.5773502691896258, 0.5773502691896257, 0.0, 0.9999999999999999, 1.0, 0.9999999999999999, 0.0, 0.9999999999999999, 1.0, 0.9999999999999999, 0.0};
static __device__ const unsigned short place_0_0[] = {0, 0, 0, 0, 1, 2, 3, 0, 1, 2, 3, 0, 0, 0, 0, 0};
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
  const bool alive = true;
  const int c = channel;
  num d_out_0_0 = 0;
  num d_out_2_0 = 0;
  num d_out_2_1 = 0;
  num d_out_2_2 = 0;
  for (int row = s.from; row < s.to; ++row) {
    const real* const x1 = s.x1 + row * 124;
    const real* const w = s.w + row * 168;
    num* const d_out = s.d_out;
    const num* const T = s.T + row * 16;
    // path 0: 64x0e x 1x0e -> 64x0e (uvu)
    const num x1_0_0 = widen(x1[c]);
    const num w_0_0 = widen(w[c]);
    {
      const quad t0 = four(T + 0);
      const num v1 = t0.x * x1_0_0;
      d_out_0_0 += w_0_0 * v1;
    }
    // path 2: 64x0e x 1x1o -> 64x1o (uvu)
    const num w_2_0 = widen(w[84 + c]);
    {
      const quad t0 = four(T + 8);
      const num v1 = w_2_0 * x1_0_0;
      d_out_2_0 += v1 * t0.x;
      d_out_2_1 += v1 * t0.y;
      d_out_2_2 += v1 * t0.z;
    }
  }
  num* const d_out = s.d_out;
  if (alive) {
    d_out[c] += d_out_0_0;
  }
  if (alive) {
    d_out[84 + c] += d_out_2_0;
    d_out[148 + c] += d_out_2_1;
    d_out[212 + c] += d_out_2_2;
  }
}
DEVICE void group_1(const Step& s, const int chunk) {
  const int lane = threadIdx.x % 32;
  const int channel = lane;
  const bool alive = channel < 20;
  const int c = channel < 20 ? channel : 19;
  num d_out_1_0 = 0;
  num d_out_3_0 = 0;
  num d_out_3_1 = 0;
  num d_out_3_2 = 0;
  for (int row = s.from; row < s.to; ++row) {
    const real* const x1 = s.x1 + row * 124;
    const real* const w = s.w + row * 168;
    num* const d_out = s.d_out;
    const num* const T = s.T + row * 16;
    // path 1: 20x1o x 1x1o -> 20x0e (uvu)
    const num x1_1_0 = widen(x1[64 + c]);
    const num x1_1_1 = widen(x1[84 + c]);
    const num x1_1_2 = widen(x1[104 + c]);
    const num w_1_0 = widen(w[64 + c]);
    {
      const quad t0 = four(T + 4);
      const num v1 = t0.x * x1_1_0 + t0.y * x1_1_1 + t0.z * x1_1_2;
      d_out_1_0 += w_1_0 * v1;
    }
    // path 3: 20x1o x 1x0e -> 20x1o (uvu)
    const num w_3_0 = widen(w[148 + c]);
    {
      const quad t0 = four(T + 12);
      const num v1 = t0.x * x1_1_0;
      d_out_3_0 += w_3_0 * v1;
      const num v2 = t0.y * x1_1_1;
      d_out_3_1 += w_3_0 * v2;
      const num v3 = t0.z * x1_1_2;
      d_out_3_2 += w_3_0 * v3;
    }
  }
  num* const d_out = s.d_out;
  if (alive) {
    d_out[64 + c] += d_out_1_0;
  }
  if (alive) {
    d_out[276 + c] += d_out_3_0;
    d_out[296 + c] += d_out_3_1;
    d_out[316 + c] += d_out_3_2;
  }
}
struct Unit { unsigned char group, chunk, set; };
static __constant__ const Unit work[4][1] = {
  {{1, 0, 0}},
  {{0, 0, 0}},
  {{0, 1, 0}},
  {{2, 0, 0}},
};
DEVICE void compute_units(const Step& s) {
  const int warp = this_warp();
  for (int n = 0; n < 1; ++n) {
    const Unit u = work[warp][n];
    switch (u.group) {
      case 0: group_0(s, u.chunk); break;
      case 1: group_1(s, u.chunk); break;
    }
  }
}
DEVICE void tabulate(const Step& s) {
  for (int n = threadIdx.x; n < 64; n += THREADS) {
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
struct Ends { i64 edge, src, dst; };
enum { SLOTS = STAGES + 1 };  // steps whose edges stand in shared memory

// Blocks take equal runs of whole steps.
DEVICE i64 run_begin(const Call& call, i64 block, i64 blocks) {
  const i64 begin = (call.rows + ROWS - 1) / ROWS * block / blocks * ROWS;
  return begin < call.rows ? begin : call.rows;
}
DEVICE i64 edge_at(const Call& call, i64 q) { return call.order ? call.order[q] : q; }
DEVICE Ends ends_of(const Call& call, i64 edge) {
  return {edge, call.src[edge], call.dst[edge]};
}
DEVICE Ends* ends_of_step(Ends* slots, int step) { return slots + step % SLOTS * ROWS; }

// Those of one thread: which row of each step it looks for, and what it has found already.
struct Ahead {
  i64 q, end;  // the row that `edge` is of
  i64 edge;
  Ends ends;
  bool found;
};
DEVICE void look_ahead(const Call& call, Ahead& a) {
  a.found = a.q < a.end;
  if (a.found) a.ends = ends_of(call, a.edge);
  a.q += ROWS;
  if (a.q < a.end) a.edge = edge_at(call, a.q);
}
DEVICE void put_down(const Ahead& a, Ends* ends) {
  if (a.found) ends[threadIdx.x] = a.ends;
}
DEVICE Ahead begin_run(const Call& call, Ends* slots, i64 begin, i64 end) {
  Ahead a = {begin + threadIdx.x, threadIdx.x < ROWS ? end : begin, 0, {}, false};
  if (a.q < a.end) a.edge = edge_at(call, a.q);
  for (int n = 0; n < STAGES; ++n) {
    look_ahead(call, a);
    put_down(a, ends_of_step(slots, n));
  }
  __syncthreads();
  return a;
}
enum { OWNED = 336 };
DEVICE i64 owner_of(const Ends& e) { return e.dst; }
DEVICE real* owned(const Call& call) { return call.d_out; }
DEVICE num* owned(const Step& s) { return s.d_out; }
struct Run { i64 owner, before, after; bool any; };  // at hand; of the edges around the run; whether something is added

DEVICE i64 owner_at(const Call& call, i64 q) { return owner_of(ends_of(call, edge_at(call, q))); }
DEVICE Run owners_of(const Call& call, i64 begin, i64 end) {
  const i64 before = begin > 0 ? owner_at(call, begin - 1) : -1;
  return {before, before, end < call.rows ? owner_at(call, end) : -1, false};
}
DEVICE num* head_of(const Call& call, i64 block) { return call.ends + 2 * block * OWNED; }
DEVICE num* tail_of(const Call& call, i64 block) { return head_of(call, block) + OWNED; }

// What was added up, to where it belongs; it is cleared for the next owner, and so are those without an edge between.
DEVICE void settle(const Call& call, const Step& s, Run& run, i64 next) {
  __syncthreads();
  if (run.any) {
    num* const sum = owned(s);
    const bool aside = run.owner == run.before || run.owner == run.after;
    num* const part = run.owner == run.before ? head_of(call, blockIdx.x) : tail_of(call, blockIdx.x);
    real* const row = owned(call) + run.owner * OWNED;
    for (int n = threadIdx.x; n < OWNED; n += THREADS) {
      if (aside) part[n] = sum[n];
      else row[n] = narrow(sum[n]);
      sum[n] = 0;
    }
  }
  for (i64 n = (run.owner + 1) * OWNED + threadIdx.x; n < next * OWNED; n += THREADS) owned(call)[n] = 0;
  run.owner = next;
  __syncthreads();
}
// The next rows of a step that are of one owner.
DEVICE void next_piece(const Call& call, Step& s, Run& run, const Ends* ends) {
  const i64 owner = owner_of(ends[s.from]);
  for (s.to = s.from + 1; s.to < s.rows && owner_of(ends[s.to]) == owner;) ++s.to;
  if (owner != run.owner) settle(call, s, run, owner);
  run.any = true;
}

// The parts of owners that lie across the ends of runs: by the block that has the first of them, so many numbers each.
extern "C" __global__ void __launch_bounds__(THREADS) tpgen_join(const Call call, int blocks) {
  enum { CHUNKS = (OWNED + THREADS - 1) / THREADS };
  const i64 block = blockIdx.x / CHUNKS, begin = run_begin(call, block, blocks);
  const int n = blockIdx.x % CHUNKS * THREADS + threadIdx.x;
  i64 end = run_begin(call, block + 1, blocks);
  const i64 owner = owner_at(call, end - 1);
  if (n >= OWNED || end == call.rows || owner_at(call, end) != owner) return;
  if (begin > 0 && owner_at(call, begin - 1) == owner) return;
  num sum = tail_of(call, block)[n];
  for (i64 m = block + 1; end < call.rows && owner_at(call, end) == owner; ++m) {
    sum += head_of(call, m)[n];
    end = run_begin(call, m + 1, blocks);
  }
  owned(call)[owner * OWNED + n] = narrow(sum);
}
DEVICE int rows_of(i64 q, i64 end) {
  return end - q < ROWS ? (int)(end - q) : ROWS;
}
DEVICE void fetch_rows(const Call& call, unsigned char* stage, u64* barrier, const Ends* ends, const int n) {
  fetch_begin(barrier, n * 2368);
#pragma unroll 1
  for (int r = first_row(); r < n; r = next_row(r)) {
    fetch_row(stage + 0 + r * 992, call.x1 + ends[r].src * 124, 992, barrier);
    fetch_row(stage + 3968 + r * 32, call.x2 + ends[r].edge * 4, 32, barrier);
    fetch_row(stage + 4096 + r * 1344, call.w + ends[r].edge * 168, 1344, barrier);
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
  s.d_out = (num*)(shared + 832);
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
    if (q < end) fetch_rows(call, shared + 3584 + (at + n) % STAGES * 9472, barriers + (at + n) % STAGES, ends_of_step(slots, n), rows_of(q, end));
    fetch_end();
  }
  for (i64 q = begin; q < end; q += by) {
    delivered();
    const i64 later = q + (STAGES - 1) * by;
    if (later < end) fetch_rows(call, shared + 3584 + (at + STAGES - 1) % STAGES * 9472, barriers + (at + STAGES - 1) % STAGES, ends_of_step(slots, step + STAGES - 1), rows_of(later, end));
    fetch_end();
    look_ahead(call, ahead);
    fetched(barriers + at, parity);
    unsigned char* const stage = shared + 3584 + at * 9472;
    s.x1 = (const real*)(stage + 0);
    s.x2 = (const real*)(stage + 3968);
    s.w = (const real*)(stage + 4096);
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
