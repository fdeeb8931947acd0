// One closure on every thread.  Needs: i64.
// The closure is copied to each thread's stack, where its members become locals: through the shared one every store
// of a kernel would make the compiler read them again.

// On the threads of the OpenMP runtime in the process, by the entry that all of them have: a pragma would tie the
// compiler to its own runtime.  All threads are woken or none: to call fewer makes GNU's runtime end the others.
#ifdef TPGEN_THREADS
extern "C" void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
extern "C" int omp_get_max_threads(void);
extern "C" int omp_get_num_procs(void);
// a thread without a core of its own waits for its turn
static bool is_shared(i64 tasks, i64 work, i64 least) {
  if (tasks < 2 || work <= least) return false;
  const i64 threads = omp_get_max_threads();
  return work > 4 * threads * least || threads <= omp_get_num_procs();
}
static i64 threads_for(i64 work, i64 least) { return is_shared(2, work, least) ? omp_get_max_threads() : 1; }
template <class F> static void run_here(void* f) { F mine = *(F*)f; mine(); }
template <class F> static void on_threads(i64 tasks, i64 work, i64 least, F f) {
  if (is_shared(tasks, work, least)) GOMP_parallel(run_here<F>, &f, 0, 0); else run_here<F>(&f);
}
#else
static i64 threads_for(i64, i64) { return 1; }
template <class F> static void on_threads(i64, i64, i64, F f) { f(); }
#endif
