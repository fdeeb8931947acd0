// One call of a kernel on a GPU, by the CUDA driver's functions, which Python has found.  What is not usual is left to
// Python, and so is every fault.  Needs: torch, form, product.

struct Driver {
  i64 type;  // of the devices that it is for; -1: there is no driver
  int (*stream_of)(int device, void** found);
  int (*capturing)(void* stream, int* found);
  int (*push)(void* context);
  int (*pop)(void** context);
  int (*launch)(void* kernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared, void* stream,
                void** arguments, void** more);
};
static Driver driver = {-1, 0, 0, 0, 0, 0};

static bool on_gpu(const Tensor& x) {
  int type = -1;
  return driver.type >= 0 && x && !aoti_torch_get_device_type(x.handle, &type) && type == driver.type;
}
static Place place_of(const Tensor& x) {
  int index = -1;
  aoti_torch_get_device_index(x.handle, &index);
  return {(int)driver.type, index > 0 ? index : 0};
}
static bool is_at(const Tensor& x, Place place) { return !x || (on_gpu(x) && place_of(x).index == place.index); }

// -- what is known of kernels ----------------------------------------------------------------------------------------

// A product's kernels on one device, as kernels/cuda/product_kernel.py has them: that of the rows, and those that may
// follow it, each with what it reads of the one before.
struct Launch {
  void *context, *kernel, *sum, *join, *collect;
  i64 at_once, rows, threads, shared;    // blocks that run at once; rows of a step; of a block
  i64 number;                            // bytes of a number that is computed with
  i64 weights, sum_threads, sum_shared;  // weights whose gradients blocks add up, 0: none
  i64 by, owned;                         // the slot in whose order edges come, -1: none; its numbers, 0: not summed
  i64 collected;                         // numbers of x1 whose gradients come edge by edge and are added up, 0: none
};
// The kernels of a polynomial's call, as kernels/cuda/polynomial_kernel.py has them.
struct FormLaunch {
  void *context, *rows, *weights, *channels;     // the last two may be missing
  i64 at_once, threads, shared, weights_shared;  // blocks that run at once; of a block
  i64 number, added, most_rounds;                // bytes of a number; numbers of a task's sums; of the rows of a warp
  i64 summed, dims[MOST_SLOTS];                  // operands that are summed over channels, and their numbers
};
enum { DEVICES = 64 };
struct Launches { const Launch* on[DEVICES]; };
struct FormLaunches { const FormLaunch* on[DEVICES]; };

// Enter a kernel on a device.  One thread at a time; others may look for it.
template <class All, class One>
static void enter(All*& kernel, i64 device, const One& launch) {
  if (device >= DEVICES) return;
  All* there = kernel ? kernel : new All();
  __atomic_store_n(&there->on[device], new One(launch), __ATOMIC_RELEASE);
  __atomic_store_n(&kernel, there, __ATOMIC_RELEASE);
}
template <class All>
static auto find(All* const& kernel, Place place) {
  All* there = __atomic_load_n(&kernel, __ATOMIC_ACQUIRE);
  return there && place.index < DEVICES ? __atomic_load_n(&there->on[place.index], __ATOMIC_ACQUIRE) : nullptr;
}
static const Launch* launch_of(const Call& c, i64 mask, Place place) {
  return find(c.product.launches[bool(c.src)][position(c.operands[0].dtype)][mask], place);
}

// -- a call of a product ---------------------------------------------------------------------------------------------

// Kernels on torch's current stream.  A stream says its context; the default one needs one that is current.
struct Queue {
  void* stream;
  bool pushed, failed;
  Queue(Place place, void* context) : stream(0), pushed(false), failed(driver.stream_of(place.index, &stream)) {
    if (!failed && !stream) pushed = !(failed = driver.push(context));
  }
  Queue(const Queue&) = delete;
  ~Queue() {
    void* popped;
    if (pushed) driver.pop(&popped);
  }
  void start(void* kernel, i64 blocks, i64 threads, i64 shared, void** arguments) {
    failed = failed || driver.launch(kernel, blocks, 1, 1, threads, 1, 1, shared, stream, arguments, 0);
  }
};
// `struct Call` of a kernel's text; null where there are no numbers
struct KernelCall {
  void *given[4], *opened[4];
  i64 rows, owners;
  void *order, *src, *dst, *sums, *ends;
};
enum { ALIGNED = 16, LANES = 32 };
static i64 parts(i64 count, i64 size) { return (count + size - 1) / size; }
static void* place_in(const Tensor& x) { return x && x.count() ? x.data() : 0; }
// rows side by side, where copies of whole ones can find them: a slice of another tensor may begin anywhere
static bool make_ready(Tensor& x, Place place) {
  if (!x || (x.dense() && (u64)x.data() % ALIGNED == 0)) return true;
  Handle made = empty(x.sizes, x.dim, x.dtype, place);
  if (!made) return false;
  const bool copied = !aoti_torch_copy_(made, x.handle, 0);
  x.take(made);
  return copied;
}
// room for so many parts of sums, in numbers of so many bytes
static Handle scratch(i64 bytes, i64 count, i64 numbers, Place place) {
  const i64 sizes[2] = {count, numbers};
  return empty(sizes, 2, bytes == 8 ? aoti_torch_dtype_float64() : aoti_torch_dtype_float32(), place);
}
// rows of x1 or of out
static i64 owners_of(const Call& c, i64 slot) {
  return slot ? (c.operands[3] ? c.operands[3].sizes[0] : c.nodes) : c.operands[0].sizes[0];
}
// An order: where the edges of each owner begin, and which they are.
struct ByOwner {
  i64 owners;
  void *first, *edges;
  ByOwner(const Call& c, i64 slot) : owners(owners_of(c, slot)), first(c.orders[slot != 0].data()), edges(0) {
    if (first) edges = (i64*)first + owners + 1;
  }
};
// The edges of a kernel's owners together; as they stand where no order is given.
static void gather(const Call& c, const Launch& l, KernelCall& call) {
  call.src = place_in(c.src), call.dst = place_in(c.dst);
  if (!c.src || l.by < 0) return;
  const ByOwner by(c, l.by);
  call.order = by.edges, call.owners = by.owners;
}
static int launch(const Call& c, i64 mask, const Launch& l, Place place) {
  KernelCall call = {{}, {}, c.operands[1].sizes[0], 0, 0, 0, 0, 0, 0};
  gather(c, l, call);
  for (int n = 0; n < 4; ++n) {
    call.given[n] = place_in(c.operands[n]);
    call.opened[n] = mask >> n & 1 ? place_in(c.results[n]) : 0;
  }
  const i64 steps = parts(call.rows, l.rows), most = steps < l.at_once ? steps : l.at_once, blocks = most > 1 ? most : 1;
  const i64 edges[2] = {call.rows, l.collected};
  const bool sums = l.weights && call.opened[2], joins = l.owned && blocks > 1, collects = l.collected && call.opened[0];
  Tensor summed(sums ? scratch(l.number, blocks, l.weights, place) : 0);
  Tensor ends(joins ? scratch(l.number, 2 * blocks, l.owned, place) : 0);
  Tensor each(collects ? empty(edges, 2, c.operands[0].dtype, place) : 0);
  if ((sums && !summed) || (joins && !ends) || (collects && !each)) return UNFIT;
  call.sums = summed.data(), call.ends = ends.data();
  int count = (int)blocks;
  ByOwner by(c, 0);
  void *from = place_in(each), *to = call.opened[0];
  if (collects) call.opened[0] = from;
  void *kernel[] = {&call}, *join[] = {&call, &count}, *sum[] = {&call.sums, &call.opened[2], &count};
  void* collect[] = {&from, &by.first, &by.edges, &to};
  Queue queue(place, l.context);
  queue.start(l.kernel, blocks, l.threads, l.shared, kernel);
  if (joins) queue.start(l.join, blocks * parts(l.owned, l.threads), l.threads, 0, join);
  if (collects) queue.start(l.collect, by.owners * parts(l.collected, l.threads), l.threads, 0, collect);
  if (sums) queue.start(l.sum, parts(l.weights, LANES), l.sum_threads, l.sum_shared, sum);
  return queue.failed ? UNFIT : 0;
}
static bool fits_order(const Call& c, i64 slot) {
  const Tensor& by = c.orders[slot != 0];
  return !by || (fits_index(by, owners_of(c, slot) + 1 + c.operands[1].sizes[0]) && !is_narrow(by) && by.dense());
}
static bool fits_end(const Tensor& x) { return !x || (!is_narrow(x) && x.dense()); }
// Whether a stream is torch's current one, and no CUDA graph records it; the default stream cannot be recorded.
static bool is_current(i64 stream, Place place) {
  void* found = 0;
  int recorded = 0;
  if (driver.stream_of(place.index, &found) || (i64)found != stream) return false;
  return !found || (!driver.capturing(found, &recorded) && !recorded);
}
// Whether all of a call is on one device; edges are int64 there, and sorted.
static bool fits_on_gpu(const Call& c, Place place) {
  for (const Tensor& x : c.operands) if (!is_at(x, place)) return false;
  const Tensor* const edges[] = {&c.src, &c.dst, &c.orders[0], &c.orders[1]};
  for (const Tensor* x : edges) if (!is_at(*x, place)) return false;
  if (!fits_end(c.src) || !fits_end(c.dst) || !fits_order(c, 0) || !fits_order(c, 3)) return false;
  return c.stream == ANY_STREAM || is_current(c.stream, place);
}
// Whether a kernel is there for a sweep, and the order by which it collects.
static bool is_ready(const Call& c, i64 mask, Place place) {
  const Launch* l = launch_of(c, mask, place);
  return l && (!l->collected || c.orders[0]);
}
// Fill the results, as `run` does on a CPU; edges that somebody has checked.
static int run_on_gpu(Call& c, bool checked) {
  if (!fits(c) || (c.src && !checked)) return UNFIT;
  const Place place = place_of(c.operands[0]);
  if (!fits_on_gpu(c, place)) return UNFIT;
  const Sweeps sweeps(c);
  for (int n = 0; n < sweeps.count; ++n)
    if (!is_ready(c, sweeps.masks[n], place)) return UNFIT;
  const i64 own[2] = {c.src ? c.nodes : c.operands[1].sizes[0], c.product.dims[3]};
  for (int n = 0; n < 4; ++n) {
    if (!(c.mask >> n & 1)) continue;
    const Tensor& like = c.operands[n];
    c.results[n].take(like ? empty(like.sizes, like.dim, like.dtype, place) : empty(own, 2, c.operands[0].dtype, place));
    if (!c.results[n]) return UNFIT;
  }
  for (Tensor& x : c.operands) if (!make_ready(x, place)) return UNFIT;
  for (int n = 0; n < sweeps.count; ++n)
    if (launch(c, sweeps.masks[n], *launch_of(c, sweeps.masks[n], place), place)) return UNFIT;
  return 0;
}

// -- a call of a polynomial ------------------------------------------------------------------------------------------

// Shares of rows and channels among blocks, as `Geometry` of kernels/cuda/polynomials/launch.py has them.
struct Geometry {
  i64 width, chunks, span, tasks;
  Geometry(const FormLaunch& l, i64 rows, i64 elements, i64 channels) : width(1) {
    while (width < channels && width < LANES) width *= 2;
    chunks = parts(channels, width);
    const i64 together = l.threads / width, fewest = rows / (together * l.most_rounds) + elements + 1;
    const i64 full = parts(fewest * chunks, l.at_once) * l.at_once / chunks - elements;
    const i64 rounds = parts(rows, together * full);
    span = together * (rounds < 1 ? 1 : rounds);
    tasks = rows / span + elements;
  }
};
// the rows by element, where they have one each
struct Order {
  Tensor first, order;
  explicit Order(Arguments& a) : first(a.src.give()), order(a.dst.give()) {}
  bool fits(const Arguments& a, i64 rows, i64 elements) const {
    if (!a.index) return !first && !order;
    const int number = aoti_torch_dtype_int64();
    return first && order && first.is(elements + 1) && order.is(rows) && first.dense() && order.dense() &&
           first.dtype == number && order.dtype == number;
  }
};
static bool is_at(const Arguments& a, const Order& o, Place place) {
  for (u64 n = 0; n < a.count; ++n) if (!is_at(a.x[n], place)) return false;
  return is_at(a.index, place) && is_at(o.first, place) && is_at(o.order, place);
}
// Fill the results; rows have no edges, but the order by element where `sorted_form` is given one in their place.
static int run_on_gpu(const Form& f, Arguments& a, Tensor* results) {
  const Place place = place_of(a.x[0]);
  const FormLaunch* l = find(f.launches, place);
  const Order by(a);
  Sizes s;
  if (!l || !fits(f, a, s) || !is_at(a, by, place)) return UNFIT;
  const i64 rows = s.counts[ROWS], elements = s.counts[ELEMENTS];
  if (!rows || !s.channels || !by.fits(a, rows, elements)) return UNFIT;
  void* call[3 * MOST_SLOTS + 8];  // `struct Call` of the text
  void** at = call;
  for (i64 n = 0; n < f.count; *at++ = a.x[n++].data()) if (!make_ready(a.x[n], place)) return UNFIT;
  for (i64 n = 0; n < f.opens; *at++ = results[n++].data()) {
    const Opened& o = f.opened[n];
    const i64 flat[2] = {s.counts[o.count], o.dim * (o.channels ? s.channels : 1)};
    const Tensor& like = a.x[o.given < 0 ? 0 : o.given];
    results[n].take(o.given < 0 ? empty(flat, 2, like.dtype, place) : empty(like.sizes, like.dim, like.dtype, place));
    if (!results[n]) return UNFIT;
  }
  const Geometry g(*l, rows, elements, s.channels);
  Tensor room[MOST_SLOTS + 1];
  i64 widest = 0;
  for (i64 n = 0; n <= l->summed; *at++ = room[n++].data()) {
    const i64 dim = n ? l->dims[n - 1] : 0;
    room[n].take(n ? scratch(l->number, g.chunks * rows, dim, place) : scratch(l->number, g.tasks * l->added, s.channels, place));
    if (!room[n]) return UNFIT;
    widest = dim > widest ? dim : widest;
  }
  *at++ = by.first.data(), *at++ = by.order.data();
  const i64 counts[] = {rows, elements, s.channels, g.width, g.span};
  for (const i64 count : counts) *at++ = (void*)count;
  void* arguments[] = {call};
  Queue queue(place, l->context);
  queue.start(l->rows, g.tasks * g.chunks, l->threads, l->shared, arguments);
  if (l->weights) queue.start(l->weights, elements * parts(s.channels, LANES), l->threads, l->weights_shared, arguments);
  if (l->channels) queue.start(l->channels, parts(rows * widest, l->threads), l->threads, 0, arguments);
  return queue.failed ? UNFIT : 0;
}
