// Rows of a polynomial as tasks, and numbers of channels to and from registers.  Needs device.h, struct Call, TILE, WARPS.

struct Task { i64 element, from, to; };  // rows, in the order of their elements

// Where the rows of an element begin; without an index all rows are of one element, or each of its own.
DEVICE i64 first_of(const Call& call, i64 e) { return call.first ? call.first[e] : e * (call.rows / call.elements); }
// Its first task.  Some tasks have no rows; how many there are follows from the number of rows alone.
DEVICE i64 task_of(const Call& call, i64 e) { return first_of(call, e) / call.span + e; }
DEVICE Task find_task(const Call& call, i64 t) {
  i64 low = 0, high = call.elements - 1;
  while (low < high) {
    const i64 middle = (low + high + 1) / 2;
    if (task_of(call, middle) <= t) low = middle; else high = middle - 1;
  }
  const i64 from = first_of(call, low) + (t - task_of(call, low)) * call.span, end = first_of(call, low + 1);
  return {low, from, from + call.span < end ? from + call.span : end};
}

// What a lane works on.  A warp has one row, or several of few channels.
struct Lane {
  int lane;
  bool one_row, alive;  // alive: the lane has a row and a channel
  i64 channels, c;
  num* tile;  // of the warp
};

// The numbers of a segment at this lane's channel, which stand side by side; a warp reads them as they stand.
template <int SIZE> DEVICE void get(const real* p, const Lane& l, num* v) {
  if (SIZE == 1 || !l.one_row) {
#pragma unroll
    for (int i = 0; i < SIZE; ++i) v[i] = l.alive ? widen(p[l.c * SIZE + i]) : 0;
    return;
  }
  const i64 start = (l.c - l.lane) * SIZE;
#pragma unroll
  for (int k = 0; k < SIZE; ++k) {
    const int m = k * 32 + l.lane;
    if (start + m < l.channels * SIZE) l.tile[m + (SIZE % 2 ? 0 : m / SIZE)] = widen(p[start + m]);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < SIZE; ++i) v[i] = l.alive ? l.tile[l.lane * (SIZE | 1) + i] : 0;
  __syncwarp();
}
template <int SIZE> DEVICE void set(real* p, const Lane& l, const num* v) {
  if (SIZE == 1 || !l.one_row) {
#pragma unroll
    for (int i = 0; i < SIZE; ++i)
      if (l.alive) p[l.c * SIZE + i] = narrow(v[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < SIZE; ++i) l.tile[l.lane * (SIZE | 1) + i] = v[i];
  __syncwarp();
  const i64 start = (l.c - l.lane) * SIZE;
#pragma unroll
  for (int k = 0; k < SIZE; ++k) {
    const int m = k * 32 + l.lane;
    if (start + m < l.channels * SIZE) p[start + m] = narrow(l.tile[m + (SIZE % 2 ? 0 : m / SIZE)]);
  }
  __syncwarp();
}
// The sum over the channels of a lane's row: ``width`` lanes, a power of two.
DEVICE num over_channels(num value, const Lane& l, int width) {
  if (!l.alive) value = 0;
  for (int mask = width / 2; mask; mask /= 2) value += __shfl_xor_sync(~0u, value, mask);
  return value;
}
