// What the device brings, under names of our own: barriers and copies that run beside the threads.
// A test can put another file in this one's place, and run the rest of a kernel's text without a GPU.

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
