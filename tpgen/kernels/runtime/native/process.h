// The operators that tpgen's own calls in this process go through, and the tables of kernels that Python fills as they
// are built.  What does not fit has no result, and Python says why.  Compiled programs call the same by names that do not
// change from process to process, and there it is an error.  Needs: torch, form, gpu.

static const char* const SCHEMAS[] = {
    "run(Tensor x1, Tensor x2, Tensor w, int product, int mask, Tensor? g=None, Tensor? src=None, Tensor? dst=None,"
    " SymInt nodes=0) -> Tensor[]",
    "sorted(Tensor x1, Tensor x2, Tensor w, int product, int mask, Tensor? g, Tensor? src, Tensor? dst, SymInt nodes,"
    " Tensor? by_src, Tensor? by_dst, int stream=-1) -> Tensor[]",
    "form(Tensor[] tensors, Tensor? index, int call, Tensor? src=None, Tensor? dst=None) -> Tensor[]",
    "sorted_form(Tensor[] tensors, Tensor? index, int call, Tensor order, int stream=-1) -> Tensor[]",
    "named_form(Tensor[] tensors, Tensor? index, int name, Tensor? src=None, Tensor? dst=None, SymInt nodes=0)"
    " -> Tensor[]",
};
// A product's calls without levels, by rows or by edges, by dtype, by open slots.
struct Product { const Form* calls[2][3][16]; };

enum { MOST = 1 << 16 };
static Product* products[MOST];
static Form* forms[MOST];
static i64 known, known_forms;

#define EXPORTED extern "C" __attribute__((visibility("default")))
extern "C" void aoti_torch_check(bool, const char* function, const char* file, unsigned line, const char* message);

// Numbers of calls by names: places of a table that is at most half full.  One thread at a time writes.
enum { PLACES = 2 * MOST };
static i64 names[PLACES], numbers[PLACES];  // a number is one more than it says: 0 where nothing is

static i64 place_of(i64 name) {
  u64 at = (u64)name * 0x9e3779b97f4a7c15ull >> 40;
  while (__atomic_load_n(&numbers[at % PLACES], __ATOMIC_ACQUIRE) && names[at % PLACES] != name) ++at;
  return at % PLACES;
}
static i64 number_of(i64 name) { return numbers[place_of(name)] - 1; }
EXPORTED void tpgen_name(i64 name, i64 number) {
  const i64 at = place_of(name);
  names[at] = name;
  __atomic_store_n(&numbers[at], number + 1, __ATOMIC_RELEASE);
}

// The number of a new product, -1 where there are too many.  One thread at a time: Python holds a lock.
EXPORTED i64 tpgen_add_product() {
  if (known == MOST) return -1;
  products[known] = new Product();
  __atomic_store_n(&known, known + 1, __ATOMIC_RELEASE);
  return known - 1;
}
EXPORTED void tpgen_set_call(i64 product, i64 edges, i64 dtype, i64 form) {
  __atomic_store_n(&products[product]->calls[edges][dtype][forms[form]->mask], forms[form], __ATOMIC_RELEASE);
}
EXPORTED void tpgen_set_kernel(i64 form, void* kernel) {
  __atomic_store_n(&forms[form]->kernel, kernel, __ATOMIC_RELEASE);
}
// The driver that launches on devices of a type, before the first launch is entered; -1: none.
EXPORTED void tpgen_use_driver(i64 type, void* stream_of, void* capturing, void* push, void* pop, void* launch) {
  driver = {type, (decltype(Driver::stream_of))stream_of, (decltype(Driver::capturing))capturing,
            (decltype(Driver::push))push, (decltype(Driver::pop))pop, (decltype(Driver::launch))launch};
}
// Enter the kernels of a call as they are launched on a device.
EXPORTED void tpgen_set_launch(i64 form, i64 device, const void* launch) {
  if (device >= DEVICES) return;
  const void* made = forms[form]->mask ? (void*)new Launch(*(const Launch*)launch) : new FormLaunch(*(const FormLaunch*)launch);
  __atomic_store_n(&forms[form]->launches[device], made, __ATOMIC_RELEASE);
}
// The number of a new call of a form, -1 where there are too many of them, or of its tensors.  The fields: dtype, limit,
// whether edges are checked, the mask, how many tensors are given and opened, then what is known of each of these.
EXPORTED i64 tpgen_add_form(const i64* fields) {
  const i64 count = fields[4], opens = fields[5];
  if (known_forms == MOST || count > MOST_SLOTS || opens > MOST_SLOTS) return -1;
  Given* given = new Given[count];
  Opened* opened = new Opened[opens];
  const i64* at = fields + 6;
  for (i64 n = 0; n < count; ++n, at += 4) given[n] = {at[0], at[1], at[2], at[3]};
  for (i64 n = 0; n < opens; ++n, at += 4) opened[n] = {at[0], at[1], at[2], at[3]};
  forms[known_forms] = new Form{"", "", fields[0], count, opens, given, opened, "", 0, 0, fields[1], fields[2], fields[3], {}};
  __atomic_store_n(&known_forms, known_forms + 1, __ATOMIC_RELEASE);
  return known_forms - 1;
}
// Who makes room for large results, before the first call.
EXPORTED void tpgen_make_large_by(void* function) { make_large = (Handle(*)(const i64*, i64, i64))function; }

static const char UNFIT_CALL[] =
    "tpgen: a call of a compiled program has no kernel in this process, or tensors of other shapes than its kernel takes, "
    "or an index out of range";

// A call by its number, or by its name, for which it is an error that nothing is done; one that is sorted has edges that
// are checked, or elements, with their order.
enum Kind { BY_NUMBER, BY_NAME, SORTED };

static i64 find(Kind kind, u64 given, const i64& count) {
  const i64 number = kind == BY_NAME ? number_of((i64)given) : (i64)given;
  return number < __atomic_load_n(&count, __ATOMIC_ACQUIRE) ? number : -1;
}
static void sort(Arguments& a, Handle by_src, Handle by_dst, u64 stream) {
  a.orders[0].take(by_src), a.orders[1].take(by_dst), a.checked = true, a.stream = (i64)stream;
}
// Where some tensor is on a GPU, all are, or it is left to Python.
template <bool cpu>
static bool done(const Form* f, Arguments& a, Tensor* results) {
  return f && !(on_gpu(a.x[0]) ? run_on_gpu(*f, a, results) : cpu ? run(*f, a, results) : UNFIT);
}
static Handle listed(Tensor* results, int count) {
  Handle list = 0;
  torch_new_list_reserve_size(count, &list);
  for (int n = 0; n < count; ++n) torch_list_push_back(list, (u64)results[n].give());
  return list;
}
// the call that opens some slots, if it is there: one may be entered while others are made
static const Form* call_of(const Product& p, const Arguments& a, i64 mask) {
  const int dtype = position(a.x[0].dtype);
  return dtype < 0 || mask < 1 || mask > 15 ? 0 : __atomic_load_n(&p.calls[bool(a.src)][dtype][mask], __ATOMIC_ACQUIRE);
}
template <Kind kind, bool cpu = true>
static void run_boxed(u64* stack, u64, u64) {
  static const Product none = {};
  const i64 mask = (i64)stack[4], nodes = (i64)stack[8], number = nodes < 0 ? -1 : find(kind, stack[3], known);
  int count = 0;
  {
    Tensor x[4] = {(Handle)stack[0], (Handle)stack[1], (Handle)stack[2], optional(stack[5])}, results[4];
    Arguments a(x, x[3] ? 4 : 3, stack[6], stack[7], nodes);
    if (kind == SORTED) sort(a, optional(stack[9]), optional(stack[10]), stack[11]);
    const Product& product = number < 0 ? none : *products[number];
    const i64 apart = a.src && mask & X1 ? mask & OUT : 0;  // both ends of a gather are sums in different orders
    const Form *first = call_of(product, a, mask & ~apart), *last = apart ? call_of(product, a, apart) : 0;
    if ((last || !apart) && done<cpu>(first, a, results) && (!apart || done<cpu>(last, a, results + first->opens)))
      count = first->opens + (apart ? 1 : 0);
    stack[0] = (u64)listed(results, count);
  }
}
template <Kind kind, bool cpu = true>
static void form_boxed(u64* stack, u64, u64) {
  const i64 number = find(kind, stack[2], known_forms);
  int count = 0;
  {
    const Form* f = number < 0 ? 0 : forms[number];
    const i64 given = f ? f->count : 0;
    const Tensors x(given), results(f ? f->opens : 0);
    Arguments a(x, given, stack[0], stack[1], kind == SORTED ? 0 : stack[3], kind == SORTED ? 0 : stack[4]);
    if (kind == SORTED) sort(a, (Handle)stack[3], 0, stack[4]);
    if (kind == BY_NAME) a.nodes = (i64)stack[5];
    if (given && a.count == (u64)given && done<cpu>(f, a, results)) count = f->opens;
    stack[0] = (u64)listed(results, count);
  }
  if (kind == BY_NAME) aoti_torch_check(count, "tpgen", "program", 0, UNFIT_CALL);
}
// Register the operators; 0, or that torch refused.
EXPORTED int tpgen_register() {
  Handle library = 0, cpu = 0, gpu = 0;
  int failed = aoti_torch_library_init_fragment("tpgen_native", __FILE__, __LINE__, &library);
  for (const char* schema : SCHEMAS) failed = failed || aoti_torch_library_def(library, schema);
  return failed || aoti_torch_library_init_impl("tpgen_native", "CPU", __FILE__, __LINE__, &cpu) ||
         torch_library_impl(cpu, "run", run_boxed<BY_NUMBER>, STABLE_SINCE) ||
         torch_library_impl(cpu, "sorted", run_boxed<SORTED>, STABLE_SINCE) ||
         torch_library_impl(cpu, "sorted_form", form_boxed<SORTED>, STABLE_SINCE) ||
         torch_library_impl(cpu, "form", form_boxed<BY_NUMBER>, STABLE_SINCE) ||
         torch_library_impl(cpu, "named_form", form_boxed<BY_NAME>, STABLE_SINCE) ||
         aoti_torch_library_init_impl("tpgen_native", "CUDA", __FILE__, __LINE__, &gpu) ||
         torch_library_impl(gpu, "run", run_boxed<BY_NUMBER, false>, STABLE_SINCE) ||
         torch_library_impl(gpu, "sorted", run_boxed<SORTED, false>, STABLE_SINCE) ||
         torch_library_impl(gpu, "sorted_form", form_boxed<SORTED, false>, STABLE_SINCE) ||
         torch_library_impl(gpu, "form", form_boxed<BY_NUMBER, false>, STABLE_SINCE);
}
