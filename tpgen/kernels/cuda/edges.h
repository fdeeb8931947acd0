// The edges of steps to come.  A thread looks for the same row of every step, so long before it is fetched that nobody
// waits: its edge two steps before, what the edge joins one step before.  Needs Call, and how many rows and stages.

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
