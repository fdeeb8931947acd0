// One call of a polynomial's kernel without Python: sizes that agree, room for the results, the kernel.  Needs: torch,
// product.

enum { MOST_SLOTS = 64 };

struct Given { i64 dim, channels, weights; };  // numbers of a channel; whether it has channels; elements instead of rows
struct Opened { i64 given, dim; };             // the tensor that says the shape, or none: then a flat row of so many
struct Polynomial {
  const char *description, *call;
  i64 dtype, count, opens;
  const Given* given;
  const Opened* opened;
  const char* file;
  i64 sum;  // of the file
  void* kernel;
  i64 limit;  // bytes of a result from which on others make room for it, 0: none
};
struct Sizes { i64 rows, elements, channels; };

typedef int (*OfRows)(void**, void**, void*, i64*, void*, void*, void*, void*, i64);

// What a call is given: the list, which is emptied, and the element of every row.
struct Arguments {
  Tensor x[MOST_SLOTS], index;
  u64 count;

  Arguments(u64 list, u64 elements) : index(optional(elements)), count(0) {
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
static bool fits(const Polynomial& p, const Tensor* x, const Tensor& index, Sizes& s) {
  s = {-1, -1, -1};
  for (i64 n = 0; n < p.count; ++n) {
    if (!x[n].dim || x[n].dim > MOST_AXES || position(x[n].dtype) != p.dtype) return false;
    i64 width = 1;
    for (i64 d = 1; d < x[n].dim; ++d) width *= x[n].sizes[d];
    if (!agree(p.given[n].weights ? s.elements : s.rows, x[n].sizes[0])) return false;
    if (p.given[n].channels ? width % p.given[n].dim || !agree(s.channels, width / p.given[n].dim)
                            : width != p.given[n].dim) return false;
  }
  if (s.elements < 0) s.elements = 1;
  if (s.channels < 0) s.channels = 1;
  return index ? fits_index(index, s.rows) && !is_narrow(index) : s.elements == 1 || s.elements == s.rows;
}
static int run(const Polynomial& p, Tensor* x, Tensor& index, Tensor* results) {
  Sizes s;
  if (!fits(p, x, index, s)) return UNFIT;
  void *from[MOST_SLOTS], *to[MOST_SLOTS];
  i64 counts[2] = {s.elements, s.channels};
  for (i64 n = 0; n < p.opens; ++n) {
    const i64 flat[2] = {s.rows, p.opened[n].dim * s.channels}, g = p.opened[n].given;
    results[n].take(g < 0 ? room(flat, 2, x[0].dtype, p.limit) : room(x[g].sizes, x[g].dim, x[0].dtype, p.limit));
    if (!results[n]) return UNFIT;
    to[n] = results[n].data();
  }
  for (i64 n = 0; n < p.count; ++n) {
    if (!make_dense(x[n])) return UNFIT;
    from[n] = x[n].data();
  }
  if (!s.channels || !make_dense(index)) return UNFIT;
  unsigned threads;
  torch_get_num_threads(&threads);
  return ((OfRows)p.kernel)(from, to, index.data(), counts, 0, 0, 0, 0, s.rows);
}
