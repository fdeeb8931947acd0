// Rows to shared memory and back, whichever way the device has.  Needs device.h, and how many threads and stages there are.

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
