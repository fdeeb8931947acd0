// One call of a form's kernel without Python: sizes that agree, room for the results, the kernel.
// Needs: torch, memory.

enum { UNFIT = -1 };  // beside the faults of kernels

// How the rows of a call find those of an operand, as a kernel takes it: cpp/indices.h.
struct RowIndex { const void* at; i64 size, how; };
enum { CHECKED = 1, NARROW = 2 };
typedef int (*Kernel)(const void* const* given, void* const* opened, const RowIndex* indices, i64 rows, i64 channels);

static const int KNOWN[] = {aoti_torch_dtype_float32(), aoti_torch_dtype_float64(), aoti_torch_dtype_bfloat16()};
static int position(int dtype) {
  for (int n = 0; n < 3; ++n) if (KNOWN[n] == dtype) return n;
  return -1;
}
static const i64 BYTES[] = {4, 8, 2};

static bool is_narrow(const Tensor& index) { return index.dtype == aoti_torch_dtype_int32(); }
static bool fits_index(const Tensor& index, i64 rows, bool narrow = true) {
  return index.is(rows) && (index.dtype == aoti_torch_dtype_int64() || (narrow && is_narrow(index)));
}

enum { MOST_AXES = 8 };
// a dense tensor without values; no handle where there is no room
struct Device { int type, index; };
static const Device CPU = {aoti_torch_device_type_cpu(), 0};
static Handle empty(const i64* sizes, i64 dim, int dtype, Device device = CPU) {
  i64 steps[MOST_AXES], count = 1;
  if (dim > MOST_AXES) return 0;
  for (i64 d = dim - 1; d >= 0; count *= sizes[d--]) steps[d] = count > 0 ? count : 1;
  const int known = position(dtype);
  Handle made = known < 0 || device.type != CPU.type ? 0 : used_pages(sizes, steps, dim, dtype, count * BYTES[known]);
  if (made) return made;
  return aoti_torch_empty_strided(dim, sizes, steps, dtype, device.type, device.index, &made) ? 0 : made;
}
static bool copy(Tensor& x, Device device) {
  Handle made = empty(x.sizes, x.dim, x.dtype, device);
  if (!made) return false;
  const bool copied = !aoti_torch_copy_(made, x.handle, 0);
  x.take(made);
  return copied;
}
static bool make_dense(Tensor& x) { return !x || x.dense() || copy(x, CPU); }

// whether rows are at most two to each of weights, which those of pairs are
static bool share(i64 rows, i64 weights) { return weights <= rows && rows <= 2 * weights; }

// -- a call ----------------------------------------------------------------------------------------------------------

enum { MOST_SLOTS = 64, MOST_RULES = 4, DEVICES = 64, ANY_STREAM = -1 };
enum Count { ROWS, SHARED, FOUND };          // what the first axis of a tensor counts; from FOUND on rows that a rule finds
enum Way { INDEXED, GROUPED, PAIRED, WAYS };  // what says the row: an index; one that may be missing; its own number

struct Given { i64 dim, channels, count, flat; };    // numbers of a channel; whether it has channels; whether rows are flat
struct Opened { i64 given, dim, channels, count; };  // the tensor that says the shape, or none: then flat rows
struct Rule { i64 way, narrow, check; };             // whether its index may be int32, and is checked
struct Form {
  const char *description, *call, *names;  // the last: of its rules
  i64 dtype, count, opens, rules;
  const Given* given;
  const Opened* opened;
  const Rule* rule;
  const char* file;
  i64 sum;  // of the file
  void* kernel;
  i64 places;  // operands that a product opens, as bits: kernels on GPUs take each in its place; 0: as they come
  const void* launches[DEVICES];  // its kernels on GPUs
};
struct Sizes {
  i64 counts[FOUND + MOST_RULES], channels;
  i64 rows() const { return counts[ROWS]; }
  i64 found(int rule) const { return counts[FOUND + rule]; }
};

// What a call is given: tensors, for which the caller has room, and the index of each rule that has one.
struct Arguments {
  Tensor* x;
  Tensor index[MOST_RULES];
  u64 count;
  i64 nodes;  // rows of out, where an index finds them and no tensor says so
  // On a GPU: where each owner's rows begin, and which they are, in one tensor.  Rows that somebody has checked have one
  // for an index, where they do not stand in its order.
  Tensor orders[MOST_RULES];
  bool checked;
  i64 stream;  // on which all that is known, as long as no CUDA graph records it

  Arguments(Tensor* x, i64 nodes) : x(x), count(0), nodes(nodes), checked(false), stream(ANY_STREAM) {}
};

// A list of torch, which is emptied: deleting it lets go of nothing in it.
struct List {
  Handle list;
  u64 size, next;
  explicit List(u64 given) : list((Handle)given), size(0), next(0) { if (list) torch_list_size(list, &size); }
  List(const List&) = delete;
  ~List() {
    for (; next < size;) Tensor left(take());
    if (list) torch_delete_list(list);
  }
  bool has_more() const { return next < size; }
  Handle take() {
    u64 item = 0;
    return torch_list_get_item(list, next++, &item) ? 0 : (Handle)item;
  }
};
// the indices of a call's rules, as far as there are any
static void take_indices(const Form& f, Arguments& a, List& from, u64 count) {
  for (i64 n = 0; n < f.rules; ++n)
    if (f.rule[n].way != PAIRED && count) a.index[n].take(from.take()), --count;
}

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
// whether rows find those of an operand by a rule
static bool fits(const Rule& rule, const Tensor& index, i64 rows, i64& size, i64 nodes) {
  if (rule.way == PAIRED) return size < 0 ? !(size = 0) : share(rows, size);
  if (size < 0) size = rule.way == GROUPED ? 1 : nodes;
  if (index) return fits_index(index, rows, rule.narrow) && size >= 0;
  return rule.way == GROUPED && (size == 1 || size == rows);
}
static bool fits(const Form& f, const Arguments& a, Sizes& s) {
  const int dtype = a.x[0].dtype;
  for (i64& count : s.counts) count = -1;
  s.channels = -1;
  if ((i64)a.count < f.count || position(dtype) != f.dtype) return false;
  for (i64 n = 0; n < f.count; ++n) {
    const Tensor& x = a.x[n];
    if (x.dtype != dtype || !(f.given[n].flat ? fits_flat(f.given[n], x, s) : fits(f.given[n], x, s))) return false;
  }
  if (s.channels < 0) s.channels = 1;
  if (s.rows() < 0) return false;
  for (i64 n = 0; n < f.rules; ++n)
    if (!fits(f.rule[n], a.index[n], s.rows(), s.counts[FOUND + n], a.nodes)) return false;
  return true;
}
// room for what a call opens: like a tensor that it is given, or flat rows
static bool make_results(const Form& f, const Arguments& a, const Sizes& s, Tensor* results, Device device) {
  for (i64 n = 0; n < f.opens; ++n) {
    const Opened& o = f.opened[n];
    const Tensor& like = a.x[o.given < 0 ? 0 : o.given];
    const i64 flat[2] = {s.counts[o.count], o.dim * (o.channels ? s.channels : 1)};
    results[n].hold(empty(o.given < 0 ? flat : like.sizes, o.given < 0 ? 2 : like.dim, like.dtype, device));
    if (!results[n]) return false;
  }
  return true;
}
// Fill the results; `UNFIT` where tensors do not fit or no kernel is at hand, else the fault of the kernel, 0 for none.
static int run(const Form& f, Arguments& a, Tensor* results) {
  Sizes s;
  void* kernel = __atomic_load_n(&f.kernel, __ATOMIC_ACQUIRE);
  if (!kernel || !fits(f, a, s) || !make_results(f, a, s, results, CPU)) return UNFIT;
  void *from[MOST_SLOTS], *to[MOST_SLOTS];
  RowIndex indices[MOST_RULES];
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
  for (i64 n = 0; n < f.rules; ++n) {
    if (!make_dense(a.index[n])) return UNFIT;
    const bool narrow = a.index[n] && is_narrow(a.index[n]);
    indices[n] = {a.index[n].data(), s.found(n), (f.rule[n].check ? CHECKED : 0) | (narrow ? NARROW : 0)};
  }
  unsigned threads;
  torch_get_num_threads(&threads);  // a thread learns torch's setting when it first asks
  return ((Kernel)kernel)(from, to, indices, s.rows(), s.channels);
}
