// One call of a kernel on a GPU, by the CUDA driver's functions, which Python has found.  What is not usual is left to
// Python, and so is every fault.  Needs: torch, form.

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
static Device device_of(const Tensor& x) {
  int index = -1;
  aoti_torch_get_device_index(x.handle, &index);
  return {(int)driver.type, index > 0 ? index : 0};
}
static bool is_at(const Tensor& x, Device device) { return !x || (on_gpu(x) && device_of(x).index == device.index); }

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
static const void* launch_of(const Form& f, Device device) {
  return device.index < DEVICES ? __atomic_load_n(&f.launches[device.index], __ATOMIC_ACQUIRE) : 0;
}

// -- a call of a product ---------------------------------------------------------------------------------------------

// Kernels on torch's current stream.  A stream says its context; the default one needs one that is current.
struct Queue {
  void* stream;
  bool pushed, failed;
  Queue(Device device, void* context) : stream(0), pushed(false), failed(driver.stream_of(device.index, &stream)) {
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
static bool make_ready(Tensor& x, Device device) {
  return !x || (x.dense() && (u64)x.data() % ALIGNED == 0) || copy(x, device);
}
// room for so many parts of sums, in numbers of so many bytes
static Handle scratch(i64 bytes, i64 count, i64 numbers, Device device) {
  const i64 sizes[2] = {count, numbers};
  return empty(sizes, 2, bytes == 8 ? aoti_torch_dtype_float64() : aoti_torch_dtype_float32(), device);
}
// An order: where the rows of each owner begin, and which they are.
struct ByOwner {
  i64 owners;
  void *first, *rows;
  ByOwner(const Tensor& order, i64 owners) : owners(owners), first(order.data()), rows(0) {
    if (first) rows = (i64*)first + owners + 1;
  }
};
static int launch(const Launch& l, const Form& f, const Arguments& a, const Sizes& s, Tensor* results, Device device) {
  const ByOwner by[] = {{a.orders[0], s.found(0)}, {a.orders[1], s.found(1)}};  // of src and dst
  KernelCall call = {{}, {}, s.rows(), 0, 0, place_in(a.index[0]), place_in(a.index[1]), 0, 0};
  if (f.rules && l.by >= 0) call.order = by[l.by != 0].rows, call.owners = by[l.by != 0].owners;  // its owners together
  for (int n = 0, k = 0; n < 4; ++n) {
    call.given[n] = n < f.count ? place_in(a.x[n]) : 0;
    call.opened[n] = f.places >> n & 1 ? results[k++].data() : 0;  // none of no numbers
  }
  const i64 steps = parts(call.rows, l.rows), most = steps < l.at_once ? steps : l.at_once, blocks = most > 1 ? most : 1;
  const i64 edges[2] = {call.rows, l.collected};
  const bool sums = l.weights && call.opened[2], joins = l.owned && blocks > 1, collects = l.collected && call.opened[0];
  Tensor summed(sums ? scratch(l.number, blocks, l.weights, device) : 0);
  Tensor ends(joins ? scratch(l.number, 2 * blocks, l.owned, device) : 0);
  Tensor each(collects ? empty(edges, 2, a.x[0].dtype, device) : 0);
  if ((sums && !summed) || (joins && !ends) || (collects && !each)) return UNFIT;
  call.sums = summed.data(), call.ends = ends.data();
  int count = (int)blocks;
  void *from = place_in(each), *to = call.opened[0], *first = by[0].first, *order = by[0].rows;
  if (collects) call.opened[0] = from;
  void *kernel[] = {&call}, *join[] = {&call, &count}, *sum[] = {&call.sums, &call.opened[2], &count};
  void* collect[] = {&from, &first, &order, &to};
  Queue queue(device, l.context);
  queue.start(l.kernel, blocks, l.threads, l.shared, kernel);
  if (joins) queue.start(l.join, blocks * parts(l.owned, l.threads), l.threads, 0, join);
  if (collects) queue.start(l.collect, by[0].owners * parts(l.collected, l.threads), l.threads, 0, collect);
  if (sums) queue.start(l.sum, parts(l.weights, LANES), l.sum_threads, l.sum_shared, sum);
  return queue.failed ? UNFIT : 0;
}
static bool fits_dense(const Tensor& index, i64 count) {
  return fits_index(index, count) && !is_narrow(index) && index.dense();
}
// Whether what is known to a stream is so here: it is torch's current one, and no CUDA graph records it.  The default
// stream cannot be recorded.
static bool is_known(i64 stream, Device device) {
  if (stream == ANY_STREAM) return true;
  void* found = 0;
  int recorded = 0;
  if (driver.stream_of(device.index, &found) || (i64)found != stream) return false;
  return !found || (!driver.capturing(found, &recorded) && !recorded);
}
// Whether edges are checked and in int64, with the orders that a kernel takes.
static bool is_ready(const Launch& l, const Form& f, const Arguments& a, const Sizes& s, Device device) {
  if (f.rules != 0 && f.rules != 2) return false;  // both ends of edges
  for (i64 n = 0; n < f.rules; ++n) {
    if (!a.checked || !fits_dense(a.index[n], s.rows())) return false;
    if (a.orders[n] && !fits_dense(a.orders[n], s.found(n) + 1 + s.rows())) return false;
  }
  return (!l.collected || a.orders[0]) && is_known(a.stream, device);
}

// -- a call of a polynomial ------------------------------------------------------------------------------------------

// Shares of rows and channels among blocks, as `PolynomialLaunches` of kernels/cuda/launch.py has them.
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
// Whether rows have elements and are ordered by them, or neither.
static bool is_ready(const FormLaunch&, const Form&, const Arguments& a, const Sizes& s, Device device) {
  const i64 rows = s.rows(), elements = s.found(0);
  if (!rows || !s.channels || bool(a.index[0]) != bool(a.orders[0])) return false;
  return (!a.index[0] || fits_dense(a.orders[0], elements + 1 + rows)) && is_known(a.stream, device);
}
static int launch(const FormLaunch& l, const Form& f, const Arguments& a, const Sizes& s, Tensor* results, Device device) {
  const i64 rows = s.rows(), elements = s.found(0);
  void* call[3 * MOST_SLOTS + 8];  // `struct Call` of the text
  void** at = call;
  for (i64 n = 0; n < f.count; ++n) *at++ = a.x[n].data();
  for (i64 n = 0; n < f.opens; ++n) *at++ = results[n].data();
  const Geometry g(l, rows, elements, s.channels);
  const Tensors room(l.summed + 1);
  i64 widest = 0;
  for (i64 n = 0; n <= l.summed; *at++ = room[n++].data()) {
    const i64 dim = n ? l.dims[n - 1] : 0;
    room[n].hold(n ? scratch(l.number, g.chunks * rows, dim, device) : scratch(l.number, g.tasks * l.added, s.channels, device));
    if (!room[n]) return UNFIT;
    widest = dim > widest ? dim : widest;
  }
  const ByOwner by(a.orders[0], elements);
  *at++ = by.first, *at++ = by.rows;
  const i64 counts[] = {rows, elements, s.channels, g.width, g.span};
  for (const i64 count : counts) *at++ = (void*)count;
  void* arguments[] = {call};
  Queue queue(device, l.context);
  queue.start(l.rows, g.tasks * g.chunks, l.threads, l.shared, arguments);
  if (l.weights) queue.start(l.weights, elements * parts(s.channels, LANES), l.threads, l.weights_shared, arguments);
  if (l.channels) queue.start(l.channels, parts(rows * widest, l.threads), l.threads, 0, arguments);
  return queue.failed ? UNFIT : 0;
}

// -- any call --------------------------------------------------------------------------------------------------------

static bool is_at(const Arguments& a, Device device) {
  for (u64 n = 0; n < a.count; ++n) if (!is_at(a.x[n], device)) return false;
  for (int n = 0; n < MOST_RULES; ++n) if (!is_at(a.index[n], device) || !is_at(a.orders[n], device)) return false;
  return true;
}
template <class One>
static int run_on_gpu(const One* l, const Form& f, Arguments& a, Tensor* results, Device device) {
  Sizes s;
  if (!l || !fits(f, a, s) || !is_at(a, device) || !is_ready(*l, f, a, s, device)) return UNFIT;
  for (i64 n = 0; n < f.count; ++n) if (!make_ready(a.x[n], device)) return UNFIT;
  return make_results(f, a, s, results, device) ? launch(*l, f, a, s, results, device) : UNFIT;
}
// Fill the results, as `run` does on a CPU.
static int run_on_gpu(const Form& f, Arguments& a, Tensor* results) {
  const Device device = device_of(a.x[0]);
  const void* l = launch_of(f, device);
  return f.places ? run_on_gpu((const Launch*)l, f, a, results, device) : run_on_gpu((const FormLaunch*)l, f, a, results, device);
}
