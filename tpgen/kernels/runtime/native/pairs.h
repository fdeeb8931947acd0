// The pairs among the edges of a graph: two edges that join the same two nodes in both directions, with vectors that are
// exact negatives of each other and rows of the same bytes.  Needs: i64, system.

typedef unsigned long long u64;

// What both edges of a pair have in common: the ends in order, and the vector from the lower to the higher.
template <class T>
struct Edge {
  i64 low, high;
  T v[3];
  int way;  // 1 and -1 for the two directions; 0 for an edge from a node to itself of no length, which has no other
};

template <class T>
static Edge<T> edge(i64 from, i64 to, const T* v) {
  int way = from < to ? 1 : from > to ? -1 : 0;
  for (int n = 0; n < 3 && way == 0; ++n) way = v[n] > 0 ? 1 : v[n] < 0 ? -1 : 0;
  Edge<T> e = {from < to ? from : to, from < to ? to : from, {0, 0, 0}, way};
  for (int n = 0; n < 3; ++n) e.v[n] = v[n] == 0 ? T(0) : way * v[n];  // a negative zero is a zero
  return e;
}

template <class T>
static u64 mixed(const Edge<T>& e) {
  u64 h = 0;
  const u64 odd = 0x9e3779b97f4a7c15ull;
  u64 parts[5] = {(u64)e.low, (u64)e.high};
  for (int n = 0; n < 3; ++n) __builtin_memcpy(&parts[2 + n], &e.v[n], sizeof(T));
  for (u64 part : parts) h = (h ^ part) * odd, h ^= h >> 29;
  return h;
}

template <class T>
static bool opposite(const Edge<T>& a, const Edge<T>& b) {
  return a.way == -b.way && a.low == b.low && a.high == b.high && a.v[0] == b.v[0] && a.v[1] == b.v[1] &&
         a.v[2] == b.v[2];
}

enum { MOST = 64 };  // places looked at for one edge: of more that are alike, some stay alone

// Finds for every edge its `other`, -1 where there is none.  Each edge is in one pair at most, with the first that fits.
template <class T>
static bool match(const i64* from, const i64* to, const T* v, const char* rows, i64 bytes, i64 edges, i64* other) {
  u64 places = 64;
  while (places < 2 * (u64)edges) places *= 2;
  const Room<i64> table(places);
  if (!table.at) return false;
  for (u64 n = 0; n < places; ++n) table.at[n] = -1;
  for (i64 e = 0; e < edges; ++e) {
    const Edge<T> own = edge(from[e], to[e], v + 3 * e);
    other[e] = -1;
    u64 at = mixed(own);
    for (int tried = 0; own.way && tried < MOST; ++tried, ++at) {
      i64& there = table.at[at & (places - 1)];
      if (there < 0) {
        there = e;
        break;
      }
      const i64 d = there;
      if (other[d] >= 0 || !opposite(own, edge(from[d], to[d], v + 3 * d))) continue;
      if (__builtin_memcmp(rows + bytes * e, rows + bytes * d, bytes)) continue;
      other[e] = d, other[d] = e;
      break;
    }
  }
  return true;
}

// Numbers the pairs, then the edges without.  `order` holds an edge of each number and then the others of the pairs,
// `place` where an edge stands in it, `number` the number of an edge.
// Returns how many pairs there are, -1 where there is no memory.
template <class T>
static i64 pairs(const i64* from, const i64* to, const T* v, const char* rows, i64 bytes, i64 edges, i64* order,
                 i64* place, i64* number) {
  if (!match(from, to, v, rows, bytes, edges, number)) return -1;  // until they are numbered: the other edges
  i64 found = 0, last = 0;
  for (i64 e = 0; e < edges; ++e) found += number[e] > e;
  for (i64 e = 0, at = found; e < edges; ++e) {
    const i64 other = number[e];
    if (other < 0) order[at++] = e;
    if (other > e) order[last] = e, order[edges - found + last++] = other;
  }
  for (i64 n = 0; n < edges; ++n) place[order[n]] = n, number[order[n]] = n < edges - found ? n : n - (edges - found);
  return found;
}

#define PAIRS(name, T)                                                                                       \
  extern "C" __attribute__((visibility("default"))) i64 name(const i64* from, const i64* to, const T* v,     \
                                                             const char* rows, i64 bytes, i64 edges,         \
                                                             i64* order, i64* place, i64* number) {          \
    return pairs(from, to, v, rows, bytes, edges, order, place, number);                                     \
  }
PAIRS(tpgen_pairs_float32, float)
PAIRS(tpgen_pairs_float64, double)
