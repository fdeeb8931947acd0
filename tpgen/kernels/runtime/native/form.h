// One call of a form's kernel without Python, its tensors as a list: sizes that agree, room for the results, the kernel.
// Needs: torch, product.

enum { MOST_SLOTS = 64 };
struct FormLaunches;  // of its kernels on GPUs
enum Count { ROWS, SHARED, SOURCES, DESTINATIONS, ELEMENTS, COUNTS };  // what the first axis of a tensor counts

struct Given { i64 dim, channels, count, flat; };    // numbers of a channel; whether it has channels; whether rows are flat
struct Opened { i64 given, dim, channels, count; };  // the tensor that says the shape, or none: then flat rows
struct Form {
  const char *description, *call;
  i64 dtype, count, opens;
  const Given* given;
  const Opened* opened;
  const char* file;
  i64 sum;  // of the file
  void* kernel;
  i64 limit;  // bytes of a result from which on others make room for it, 0: none
  i64 check;  // whether edges out of range are refused
  FormLaunches* launches;
};
struct Sizes { i64 counts[COUNTS], channels; };

typedef int (*OfRows)(void**, void**, void*, i64*, void*, void*, void*, void*, i64);
typedef int (*OfEdges)(void**, void**, void*, i64*, void*, void*, void*, void*, i64, const void*, const void*, i64, i64, i64);

// What a call is given: the list, which is emptied, the ends of edges, and the element of every row.
struct Arguments {
  Tensor x[MOST_SLOTS], index, src, dst;
  u64 count;

  Arguments(u64 list, u64 elements, u64 from, u64 to)
      : index(optional(elements)), src(optional(from)), dst(optional(to)), count(0) {
    u64 item = 0;
    torch_list_size((Handle)list, &count);
    for (u64 n = 0; n < count && n < MOST_SLOTS; ++n)
      if (!torch_list_get_item((Handle)list, n, &item)) x[n].take((Handle)item);
    torch_delete_list((Handle)list);
  }
};

static bool agree(i64& known, i64 size) {
  if (known < 0) known = size;
  return known == size;
}
// a row on one axis, or a vector that all rows share
static bool fits_flat(const Given& g, const Tensor& x, Sizes& s) {
  if (g.count == SHARED) return x.is(g.dim);
  return x.dim == 2 && x.sizes[1] == g.dim && agree(s.counts[g.count], x.sizes[0]);
}
// a row on any axes, of whole channels
static bool fits(const Given& g, const Tensor& x, Sizes& s) {
  i64 width = 1;
  for (i64 d = 1; d < x.dim; ++d) width *= x.sizes[d];
  if (!agree(s.counts[g.count], x.sizes[0])) return false;
  return g.channels ? width % g.dim == 0 && agree(s.channels, width / g.dim) : width == g.dim;
}
static bool fits(const Form& f, const Arguments& a, Sizes& s) {
  s = {{-1, -1, -1, -1, -1}, -1};
  for (i64 n = 0; n < f.count; ++n) {
    const Tensor& x = a.x[n];
    if (!x.dim || x.dim > MOST_AXES || position(x.dtype) != f.dtype) return false;
    if (!(f.given[n].flat ? fits_flat(f.given[n], x, s) : fits(f.given[n], x, s))) return false;
  }
  const i64 rows = s.counts[ROWS];
  if (s.counts[ELEMENTS] < 0) s.counts[ELEMENTS] = 1;
  if (s.channels < 0) s.channels = 1;
  if (rows < 0 || bool(a.src) != bool(a.dst)) return false;
  if (a.src && (!fits_index(a.src, rows) || !fits_index(a.dst, rows) || s.counts[SOURCES] < 0 || s.counts[DESTINATIONS] < 0))
    return false;
  if (a.index) return fits_index(a.index, rows) && !is_narrow(a.index);
  return s.counts[ELEMENTS] == 1 || s.counts[ELEMENTS] == rows;
}
static int run(const Form& f, Arguments& a, Tensor* results) {
  Sizes s;
  if (!fits(f, a, s)) return UNFIT;
  void *from[MOST_SLOTS], *to[MOST_SLOTS];
  i64 counts[2] = {s.counts[ELEMENTS], s.channels};
  for (i64 n = 0; n < f.opens; ++n) {
    const Opened& o = f.opened[n];
    const int dtype = a.x[0].dtype;
    const i64 flat[2] = {s.counts[o.count], o.dim * (o.channels ? s.channels : 1)};
    results[n].take(o.given < 0 ? room(flat, 2, dtype, f.limit)
                                : room(a.x[o.given].sizes, a.x[o.given].dim, dtype, f.limit));
    if (!results[n]) return UNFIT;
    to[n] = results[n].data();
  }
  for (i64 n = 0; n < f.count; ++n) {
    if (!make_dense(a.x[n])) return UNFIT;
    from[n] = a.x[n].data();
  }
  if (!s.channels || !make_dense(a.index) || !make_dense(a.src) || !make_dense(a.dst)) return UNFIT;
  unsigned threads;
  torch_get_num_threads(&threads);
  const i64 rows = s.counts[ROWS];
  if (!a.src) return ((OfRows)f.kernel)(from, to, a.index.data(), counts, 0, 0, 0, 0, rows);
  const i64 how = (f.check ? CHECKED : 0) | (is_narrow(a.src) ? NARROW_SRC : 0) | (is_narrow(a.dst) ? NARROW_DST : 0);
  return ((OfEdges)f.kernel)(from, to, a.index.data(), counts, 0, 0, 0, 0, rows, a.src.data(), a.dst.data(),
                             s.counts[SOURCES], s.counts[DESTINATIONS], how);
}
