// What the next path will read and write, asked for while this one runs.  Needs: real, UNROLL.
// The rows of a group lie far apart in memory, and a path takes too little of each for the processor to see it coming.

template <int N> static inline void will_read(const real* p) {
  UNROLL for (int m = 0; m < N; m += 64 / (int)sizeof(real)) __builtin_prefetch(p + m, 0, 2);
}
template <int N> static inline void will_write(const real* p) {
  UNROLL for (int m = 0; m < N; m += 64 / (int)sizeof(real)) __builtin_prefetch(p + m, 1, 2);
}
