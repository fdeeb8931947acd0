// Runs generated kernels on threads that ThreadSanitizer sees.  The OpenMP runtime is not instrumented, so the entries that
// kernels ask of it stand here: threads that are made, and joined, as many as there are cores.  The kernels' text is as it is.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int threads = 1;
static pthread_barrier_t start;  // none may do all the work before the others are there

extern "C" void GOMP_parallel(void (*run)(void*), void* closure, unsigned, unsigned) {
  struct Task {
    void (*run)(void*);
    void* closure;
    void begin() { pthread_barrier_wait(&start), run(closure); }
  } task = {run, closure};
  pthread_t made[16];
  pthread_barrier_init(&start, 0, threads);
  for (int n = 1; n < threads; ++n)
    pthread_create(&made[n], 0, [](void* t) -> void* { ((Task*)t)->begin(); return 0; }, &task);
  task.begin();
  for (int n = 1; n < threads; ++n) pthread_join(made[n], 0);
  pthread_barrier_destroy(&start);
}

extern "C" int omp_get_max_threads() { return threads; }
extern "C" int omp_get_num_procs() { return threads; }

enum { TURNS = 4 };
typedef long long i64;
typedef int (*ByRows)(void**, i64 rows);
struct Case {
  const char* name;
  int (*call)(float** given, float** opened, i64 rows, i64* src, i64* dst, i64 nodes);
  i64 given[8], opened[8], rows, nodes;  // numbers of every tensor
};

static float* numbers(i64 count, unsigned seed) {
  float* made = (float*)aligned_alloc(64, (count * sizeof(float) + 64) / 64 * 64 + 64);
  for (i64 n = 0; n < count; ++n) made[n] = float((n * 2654435761u + seed) % 1000) / 500 - 1;
  return made;
}
static int check(const Case& c) {
  float *given[8] = {}, *alone[8] = {}, *together[8] = {};
  i64 *src = (i64*)malloc(c.rows * sizeof(i64)), *dst = (i64*)malloc(c.rows * sizeof(i64));
  for (i64 m = 0; m < c.rows; ++m) src[m] = m * 7 % c.nodes, dst[m] = m * 5 % c.nodes;
  for (int n = 0; n < 8; ++n) {
    if (c.given[n]) given[n] = numbers(c.given[n], n);
    if (c.opened[n]) alone[n] = numbers(c.opened[n], 0), together[n] = numbers(c.opened[n], 1);
  }
  threads = 1;
  int fault = c.call(given, alone, c.rows, src, dst, c.nodes);
  threads = 4;
  for (int turn = 0; turn < TURNS; ++turn) {
    fault |= c.call(given, together, c.rows, src, dst, c.nodes);
    for (int n = 0; n < 8; ++n)
      if (c.opened[n] && memcmp(alone[n], together[n], c.opened[n] * sizeof(float))) fault = -1;
  }
  printf("%s: %s\n", c.name, fault == -1 ? "differs with threads" : fault ? "fault" : "same");
  return fault;
}
