// Gradients of weights that two edges share: the edge that is computed first writes them, the other adds to them.
// The sum of two numbers is one in either order, whatever thread comes first.  Needs: i64, W, fetch, put, widen, narrow.

enum { TAKEN = 1, WRITTEN = 2 };
static inline bool is_first(char* state) { return !__atomic_fetch_or(state, TAKEN, __ATOMIC_RELAXED); }
static inline void wrote(char* state) { __atomic_fetch_or(state, WRITTEN, __ATOMIC_RELEASE); }
// who waits here has written all that others wait for
static inline void add_second(real* sum, const real* more, i64 n, const char* state) {
  while (!(__atomic_load_n(state, __ATOMIC_ACQUIRE) & WRITTEN)) {}
  i64 m = 0;
  for (; m + W <= n; m += W) put(sum + m, fetch(sum + m) + fetch(more + m));
  for (; m < n; ++m) sum[m] = narrow(widen(sum[m]) + widen(more[m]));
}
