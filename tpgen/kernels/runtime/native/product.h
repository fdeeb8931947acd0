// One call of a product's kernels, its operands one by one: do they fit, room for the results, the kernel.
// Needs: torch, form.

struct Launches;  // of a kernel on GPUs

struct Product {
  i64 dims[4];           // row lengths of x1, x2, w, out
  i64 weights;           // what rows of weights count, a `Count`: rows or edges, pairs of edges, or all share them
  i64 check;             // whether edges out of range are refused
  i64 limit;             // bytes of a result from which on others make room for it, 0: none
  void* kernels[2][3][16];  // by rows or by edges, by dtype, by open slots
  Launches* launches[2][3][16];
};

enum { ANY_STREAM = -1 };
struct Call {
  const Product& product;
  Tensor operands[4];  // the last may be missing
  Tensor src, dst;
  i64 mask, nodes;
  Tensor results[4];
  // on a GPU: edges by src, by dst, where they do not stand so: where each owner's begin, and behind that the edges;
  // and the stream on which that is known, as long as no CUDA graph records it
  Tensor orders[2];
  i64 stream;
};
// Both ends of a gather are sums in different orders: a sweep for each.
struct Sweeps {
  i64 masks[2];
  int count;
  Sweeps(const Call& c) : masks{c.mask, OUT}, count(1) {
    if (c.src && c.mask & X1 && c.mask & OUT) masks[0] = c.mask & ~OUT, count = 2;
  }
};

static bool fits(const Call& c) {
  const Tensor &x1 = c.operands[0], &x2 = c.operands[1], &w = c.operands[2], &g = c.operands[3];
  const i64* dims = c.product.dims;
  if (x1.dim != 2 || x2.dim != 2 || position(x1.dtype) < 0 || c.mask < 1 || c.mask > 15) return false;
  if (x2.dtype != x1.dtype || w.dtype != x1.dtype || (g && g.dtype != x1.dtype)) return false;
  const i64 rows = x2.sizes[0];
  if (!x2.is(rows, dims[1]) || !x1.is(c.src ? x1.sizes[0] : rows, dims[0])) return false;
  const bool nothing = !dims[2] && w.dim <= 2 && !w.count() && !(c.mask & W);
  const bool paired = c.product.weights == PAIRS && c.src && w.dim == 2 && share(rows, w.sizes[0]);
  if (!nothing && (c.product.weights == SHARED ? !w.is(dims[2]) : !w.is(paired ? w.sizes[0] : rows, dims[2]))) return false;
  if (g && !g.is(c.src && g.dim ? g.sizes[0] : rows, dims[3])) return false;
  if (!g && c.mask != OUT) return false;
  return !c.src ? !c.dst : c.dst && fits_index(c.src, rows) && fits_index(c.dst, rows) && c.nodes >= 0;
}

// room for a result like an operand, or of rows of the product
static Handle room(const Product& p, const Tensor& like, i64 rows, int dtype) {
  const i64 own[2] = {rows, p.dims[3]};
  return like ? room(like.sizes, like.dim, dtype, p.limit) : room(own, 2, dtype, p.limit);
}
// the kernel that opens some slots, if it is there: one may be entered while others are called
static void* kernel_of(const Call& c, i64 mask) {
  return __atomic_load_n(&c.product.kernels[bool(c.src)][position(c.operands[0].dtype)][mask], __ATOMIC_ACQUIRE);
}
static int launch(const Call& c, i64 mask) {
  void* kernel = kernel_of(c, mask);
  void* p[8];
  for (int n = 0; n < 4; ++n) {
    p[n] = c.operands[n].data();
    p[4 + n] = mask >> n & 1 ? c.results[n].data() : 0;
  }
  const i64 sources = c.operands[0].sizes[0], nodes = c.operands[3] ? c.operands[3].sizes[0] : c.nodes;
  const i64 weights = c.product.weights == PAIRS ? c.operands[2].sizes[0] : 0;
  return start(kernel, p, c.operands[1].sizes[0], c.src, c.dst, sources, nodes, c.product.check, weights);
}

// Fill the results; `UNFIT` where operands do not fit or no kernel is at hand, else the fault of the kernel, 0 for none.
static int run(Call& c) {
  if (!fits(c)) return UNFIT;
  const Sweeps sweeps(c);
  for (int n = 0; n < sweeps.count; ++n)
    if (!kernel_of(c, sweeps.masks[n])) return UNFIT;
  const i64 rows = c.src ? c.nodes : c.operands[1].sizes[0];
  for (int n = 0; n < 4; ++n) {
    if (c.mask >> n & 1) c.results[n].take(room(c.product, c.operands[n], rows, c.operands[0].dtype));
    if (c.mask >> n & 1 && !c.results[n]) return UNFIT;
  }
  for (Tensor& x : c.operands) if (!make_dense(x)) return UNFIT;
  if (!make_dense(c.src) || !make_dense(c.dst)) return UNFIT;
  for (int n = 0; n < sweeps.count; ++n)
    if (const int fault = launch(c, sweeps.masks[n])) return fault;
  return 0;
}
