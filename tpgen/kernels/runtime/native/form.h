// One call of a form's kernel without Python: sizes that agree, room for the results, the kernel.
// Needs: torch.

enum { X1 = 1, X2 = 2, W = 4, OUT = 8 };
enum { UNFIT = -1 };  // beside the faults of kernels
// what a kernel must know of a call with edges, as in cpp/edges.h; rows of weights stand above
enum { CHECKED = 1, NARROW_SRC = 2, NARROW_DST = 4, WEIGHTS = 3 };

typedef int (*ByRows)(const void*, const void*, const void*, const void*, void*, void*, void*, void*, i64);
typedef int (*ByEdges)(const void*, const void*, const void*, const void*, void*, void*, void*, void*, i64,
                       const void*, const void*, i64, i64, i64);

static int position(int dtype) {
  static const int known[] = {aoti_torch_dtype_float32(), aoti_torch_dtype_float64(), aoti_torch_dtype_bfloat16()};
  for (int n = 0; n < 3; ++n) if (known[n] == dtype) return n;
  return -1;
}
static const i64 BYTES[] = {4, 8, 2};

static bool is_narrow(const Tensor& index) { return index.dtype == aoti_torch_dtype_int32(); }
static bool fits_index(const Tensor& index, i64 edges) {
  return index.is(edges) && (index.dtype == aoti_torch_dtype_int64() || is_narrow(index));
}

enum { MOST_AXES = 8 };
// a dense tensor without values; no handle where there is no room
struct Place { int type, index; };  // a device
static const Place CPU = {aoti_torch_device_type_cpu(), 0};
static Handle empty(const i64* sizes, i64 dim, int dtype, Place place = CPU) {
  i64 steps[MOST_AXES], count = 1;
  if (dim > MOST_AXES) return 0;
  for (i64 d = dim - 1; d >= 0; count *= sizes[d--]) steps[d] = count > 0 ? count : 1;
  Handle made = 0;
  return aoti_torch_empty_strided(dim, sizes, steps, dtype, place.type, place.index, &made) ? 0 : made;
}
// who makes room for large results, the dtype by its position; nobody: they are left to others
static Handle (*make_large)(const i64* sizes, i64 dim, i64 dtype);
static bool copy(Tensor& x, Place place) {
  Handle made = empty(x.sizes, x.dim, x.dtype, place);
  if (!made) return false;
  const bool copied = !aoti_torch_copy_(made, x.handle, 0);
  x.take(made);
  return copied;
}
static bool make_dense(Tensor& x) { return !x || x.dense() || copy(x, CPU); }

// whether edges are at most two to each row of weights, which those of pairs are
static bool share(i64 rows, i64 weights) { return weights <= rows && rows <= 2 * weights; }
// a kernel by the addresses that it takes, of rows or of edges, with rows of weights where two edges share one
static int start(void* kernel, void* const* p, i64 rows, const Tensor& src, const Tensor& dst, i64 sources, i64 nodes, i64 check,
                 i64 weights) {
  unsigned threads;
  torch_get_num_threads(&threads);  // a thread learns torch's setting when it first asks
  if (!src) return ((ByRows)kernel)(p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], rows);
  const i64 how = (check ? CHECKED : 0) | (is_narrow(src) ? NARROW_SRC : 0) | (is_narrow(dst) ? NARROW_DST : 0) | weights << WEIGHTS;
  return ((ByEdges)kernel)(p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], rows, src.data(), dst.data(), sources, nodes, how);
}

// -- a call ----------------------------------------------------------------------------------------------------------

enum { MOST_SLOTS = 64, DEVICES = 64, ANY_STREAM = -1 };
enum Count { ROWS, SHARED, SOURCES, DESTINATIONS, ELEMENTS, PAIRS, COUNTS };  // what the first axis of a tensor counts

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
  i64 mask;   // slots that a product's kernel opens, which takes tensors one by one; 0: of one that takes arrays of them
  const void* launches[DEVICES];  // its kernels on GPUs
};
struct Sizes { i64 counts[COUNTS], channels; };

// What a call is given: tensors, for which the caller has room, the ends of edges, and the element of every row.
struct Arguments {
  Tensor* x;
  Tensor index, src, dst;
  u64 count;
  i64 nodes;  // rows of out, where no tensor says so; -1: not known
  // On a GPU: where each owner's rows begin, and which they are, in one tensor.  Edges that somebody has checked have one
  // for src and one for dst, where they do not stand so; rows with elements have the first.
  Tensor orders[2];
  bool checked;
  i64 stream;  // on which all that is known, as long as no CUDA graph records it

  // a product's operands, the last of which may be missing: then it says how many rows out has
  Arguments(Tensor* x, u64 count, u64 from, u64 to, i64 nodes)
      : x(x), src(optional(from)), dst(optional(to)), count(count), nodes(nodes), checked(false), stream(ANY_STREAM) {
    if (count == 4 && x[3].dim) this->nodes = x[3].sizes[0];
  }
  // a list, which is emptied, as deleting it lets go of nothing in it: into the room that there is
  Arguments(Tensor* x, u64 room, u64 list, u64 elements, u64 from, u64 to)
      : x(x), index(optional(elements)), src(optional(from)), dst(optional(to)), count(0), nodes(-1), checked(false),
        stream(ANY_STREAM) {
    u64 item = 0;
    torch_list_size((Handle)list, &count);
    for (u64 n = 0; n < count; ++n) {
      if (torch_list_get_item((Handle)list, n, &item)) continue;
      n < room ? x[n].take((Handle)item) : (void)Tensor((Handle)item);
    }
    torch_delete_list((Handle)list);
  }
};

static bool agree(i64& known, i64 size) {
  if (known < 0) known = size;
  return known == size;
}
// a row on one axis, or a vector that all rows share; weights without numbers may have any rows
static bool fits_flat(const Given& g, const Tensor& x, Sizes& s) {
  if (g.count == SHARED) return x.is(g.dim) || (!g.dim && x.dim <= 2 && !x.count());
  return x.dim == 2 && x.sizes[1] == g.dim && agree(s.counts[g.count], x.sizes[0]);
}
// a row on any axes, of whole channels
static bool fits(const Given& g, const Tensor& x, Sizes& s) {
  i64 width = 1;
  if (!x.dim || x.dim > MOST_AXES) return false;
  for (i64 d = 1; d < x.dim; ++d) width *= x.sizes[d];
  if (!agree(s.counts[g.count], x.sizes[0])) return false;
  return g.channels ? width % g.dim == 0 && agree(s.channels, width / g.dim) : width == g.dim;
}
static bool fits(const Form& f, const Arguments& a, Sizes& s) {
  const int dtype = a.x[0].dtype;
  s = {{-1, -1, -1, -1, -1, -1}, -1};
  if ((i64)a.count < f.count || position(dtype) != f.dtype) return false;
  for (i64 n = 0; n < f.count; ++n) {
    const Tensor& x = a.x[n];
    if (x.dtype != dtype || !(f.given[n].flat ? fits_flat(f.given[n], x, s) : fits(f.given[n], x, s))) return false;
  }
  const i64 rows = s.counts[ROWS];
  if (s.counts[ELEMENTS] < 0) s.counts[ELEMENTS] = 1;
  if (s.channels < 0) s.channels = 1;
  if (s.counts[DESTINATIONS] < 0) s.counts[DESTINATIONS] = a.nodes;
  if (rows < 0 || bool(a.src) != bool(a.dst)) return false;
  if (a.src && (!fits_index(a.src, rows) || !fits_index(a.dst, rows) || s.counts[SOURCES] < 0 || s.counts[DESTINATIONS] < 0))
    return false;
  if (s.counts[PAIRS] < 0) s.counts[PAIRS] = 0;
  else if (!share(rows, s.counts[PAIRS])) return false;
  if (a.index) return fits_index(a.index, rows) && !is_narrow(a.index);
  return s.counts[ELEMENTS] == 1 || s.counts[ELEMENTS] == rows;
}
// room for a result; large ones from so many bytes on, where there is a limit
static Handle room(const Form& f, const i64* sizes, i64 dim, int dtype, i64 limit, Place place) {
  i64 size = BYTES[f.dtype];
  for (i64 d = 0; d < dim; ++d) size *= sizes[d];
  if (!limit || size < limit) return empty(sizes, dim, dtype, place);
  return make_large ? make_large(sizes, dim, f.dtype) : 0;
}
// room for what a call opens: like a tensor that it is given, or flat rows
static bool make_results(const Form& f, const Arguments& a, const Sizes& s, Tensor* results, i64 limit, Place place) {
  for (i64 n = 0; n < f.opens; ++n) {
    const Opened& o = f.opened[n];
    const Tensor& like = a.x[o.given < 0 ? 0 : o.given];
    const i64 flat[2] = {s.counts[o.count], o.dim * (o.channels ? s.channels : 1)};
    results[n].hold(room(f, o.given < 0 ? flat : like.sizes, o.given < 0 ? 2 : like.dim, like.dtype, limit, place));
    if (!results[n]) return false;
  }
  return true;
}
// Fill the results; `UNFIT` where tensors do not fit or no kernel is at hand, else the fault of the kernel, 0 for none.
static int run(const Form& f, Arguments& a, Tensor* results) {
  Sizes s;
  void* kernel = __atomic_load_n(&f.kernel, __ATOMIC_ACQUIRE);
  if (!kernel || !fits(f, a, s) || !make_results(f, a, s, results, f.limit, CPU)) return UNFIT;
  void *from[MOST_SLOTS], *to[MOST_SLOTS];
  i64 counts[2] = {s.counts[ELEMENTS], s.channels};
  for (i64 n = 0; n < f.opens; ++n) to[n] = results[n].data();
  for (i64 n = 0; n < f.count; ++n) {
    if (!make_dense(a.x[n])) return UNFIT;
    from[n] = a.x[n].data();
  }
  if (!s.channels) {  // results have no numbers, or are sums over none
    for (i64 n = 0; n < f.opens; ++n) {
      results[n].take(results[n].give());
      __builtin_memset(to[n], 0, results[n].count() * BYTES[f.dtype]);
    }
    return 0;
  }
  if (!make_dense(a.index) || !make_dense(a.src) || !make_dense(a.dst)) return UNFIT;
  void* p[8] = {from, to, a.index.data(), counts, 0, 0, 0, 0};
  for (int n = 0, k = 0; f.mask && n < 4; ++n) {
    p[n] = n < f.count ? from[n] : 0;
    p[4 + n] = f.mask >> n & 1 ? to[k++] : 0;
  }
  return start(kernel, p, s.counts[ROWS], a.src, a.dst, s.counts[SOURCES], s.counts[DESTINATIONS], f.check, s.counts[PAIRS]);
}
