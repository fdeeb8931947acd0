// The row of the node at hand, which stays while its edges come.  Needs copies.h and edges.h, and of the nodes:
// `owner_of`, `held` and HELD, the numbers of a row.

struct Run { i64 node; unsigned parity; u64* barrier; };

// A row that all wait for.
DEVICE void fetch_now(void* to, const void* from, int bytes, u64* barrier, unsigned parity) {
  fetch_begin(barrier, bytes);
  fetch(to, from, bytes, barrier);
#if COPIES == 2
  barrier_wait(barrier, parity);
#else
#if COPIES == 1
  async_commit();
  async_wait<0>();
#endif
  __syncthreads();
#endif
}
// The next rows of a step that are of one node, and its row, once all have read the one before.
DEVICE void next_piece(const Call& call, Step& s, Run& run, const Ends* ends) {
  const i64 node = owner_of(ends[s.from]);
  for (s.to = s.from + 1; s.to < s.rows && owner_of(ends[s.to]) == node;) ++s.to;
  if (node == run.node) return;
  __syncthreads();
  fetch_now((real*)held(s), held(call) + node * HELD, HELD * sizeof(real), run.barrier, run.parity);
  run.node = node;
  run.parity ^= 1;
}
