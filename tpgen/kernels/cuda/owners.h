// Sums over the edges of each owner, in the order of its edges.  A block has a run of them; where owners lie across its
// ends, their parts are put aside, and a second kernel adds them in the order of the blocks.  Needs edges.h, and of the
// owners: `owner_of`, `owned` and OWNED, the numbers of one.

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
