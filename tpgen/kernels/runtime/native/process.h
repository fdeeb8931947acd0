// The operators that tpgen's own calls in this process go through, and the tables of kernels that Python fills as they
// are built.  What does not fit has no result, and Python says why.  Compiled programs call the same by names that do not
// change from process to process, and there it is an error.  Needs: torch, form, gpu.

// Tensors, then the index of each rule that has one, then orders of some of these, as bits say: -1 where nobody has
// sorted them.
#define FORM_SCHEMA(name) \
  name "(Tensor[] tensors, int call, SymInt nodes=0, int sorted=-1, int stream=-1) -> Tensor[]"
// The first for calls of three tensors and two indices at most: torch takes half a microsecond for lists.
static const char* const SCHEMAS[] = {
    "form.few(Tensor x, Tensor y, Tensor z, int call, SymInt nodes=0, Tensor? one=None, Tensor? other=None) -> Tensor[]",
    FORM_SCHEMA("form"), FORM_SCHEMA("form.named")};

enum { MOST = 1 << 16 };
static Form* forms[MOST];
static i64 known_forms;

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
  const void* made = forms[form]->places ? (void*)new Launch(*(const Launch*)launch) : new FormLaunch(*(const FormLaunch*)launch);
  __atomic_store_n(&forms[form]->launches[device], made, __ATOMIC_RELEASE);
}
// The number of a new call of a form, -1 where there are too many of them, or of its tensors.  The fields: dtype,
// places, how many tensors are given and opened, and how many rules there are; then what is known of each of these.
EXPORTED i64 tpgen_add_form(const i64* fields) {
  const i64 count = fields[2], opens = fields[3], rules = fields[4];
  if (known_forms == MOST || count > MOST_SLOTS || opens > MOST_SLOTS || rules > MOST_RULES) return -1;
  Given* given = new Given[count];
  Opened* opened = new Opened[opens];
  Rule* rule = new Rule[rules];
  const i64* at = fields + 5;
  for (i64 n = 0; n < count; ++n, at += 4) given[n] = {at[0], at[1], at[2], at[3]};
  for (i64 n = 0; n < opens; ++n, at += 4) opened[n] = {at[0], at[1], at[2], at[3]};
  for (i64 n = 0; n < rules; ++n, at += 3) rule[n] = {at[0], at[1], at[2]};
  forms[known_forms] = new Form{"", "", "", fields[0], count, opens, rules, given, opened, rule, "", 0, 0, fields[1], {}};
  __atomic_store_n(&known_forms, known_forms + 1, __ATOMIC_RELEASE);
  return known_forms - 1;
}
// An empty tensor on the CPU, for functions in Python; the dtype by its position.
EXPORTED Handle tpgen_empty(const i64* sizes, i64 dim, i64 dtype) {
  return empty(sizes, dim, KNOWN[dtype]);
}
EXPORTED i64 tpgen_memory_kept() {
  const Guard guard;
  return kept();
}
EXPORTED void tpgen_memory_release() {
  const Guard guard;
  trim(0);
}
// Keep at most so many bytes from now on; returns the limit that was.
EXPORTED i64 tpgen_memory_limit(i64 bytes) {
  const Guard guard;
  const i64 before = arena.limit;
  arena.limit = bytes;
  return before;
}
// A forked process has none of the threads that held the lock.
EXPORTED void tpgen_memory_after_fork() { __atomic_clear(&arena.locked, __ATOMIC_RELEASE); }

static const char UNFIT_CALL[] =
    "tpgen: a call of a compiled program has no kernel in this process, or tensors of other shapes than its kernel takes, "
    "or an index out of range";

// A call by its number, or by its name, for which it is an error that nothing is done.
enum Kind { BY_NUMBER, BY_NAME };
enum { FEW = 3 };

// Where some tensor is on a GPU, all are, or it is left to Python.
template <bool cpu>
static bool done(const Form& f, Arguments& a, Tensor* results) {
  return !(on_gpu(a.x[0]) ? run_on_gpu(f, a, results) : cpu ? run(f, a, results) : UNFIT);
}
static bool read(const Form& f, Arguments& a, List& given, i64 sorted, i64 stream) {
  const i64 orders = sorted < 0 ? 0 : __builtin_popcountll(sorted), indices = (i64)given.size - f.count - orders;
  if (!f.count || indices < 0 || indices > f.rules) return false;
  for (; (i64)a.count < f.count; ++a.count) a.x[a.count].take(given.take());
  take_indices(f, a, given, indices);
  for (i64 n = 0; n < MOST_RULES && orders; ++n) if (sorted >> n & 1) a.orders[n].take(given.take());
  a.checked = sorted >= 0, a.stream = stream;
  return !given.has_more();
}
static Handle listed(Tensor* results, i64 count) {
  Handle list = 0;
  torch_new_list_reserve_size(count, &list);
  for (i64 n = 0; n < count; ++n) torch_list_push_back(list, (u64)results[n].give());
  return list;
}
static const Form* form_at(i64 number) {
  return number < 0 || number >= __atomic_load_n(&known_forms, __ATOMIC_ACQUIRE) ? 0 : forms[number];
}
template <bool cpu = true>
static void few_boxed(u64* stack, u64, u64) {
  const Form* f = form_at((i64)stack[3]);
  Tensor x[FEW] = {(Handle)stack[0], (Handle)stack[1], (Handle)stack[2]}, results[FEW];
  Arguments a(x, (i64)stack[4]);
  a.count = FEW;
  for (int n = 0; n < 2; ++n) a.index[n].take(optional(stack[5 + n]));
  const bool made = f && f->count == FEW && f->opens <= FEW && done<cpu>(*f, a, results);
  stack[0] = (u64)listed(results, made ? f->opens : 0);
}
template <Kind kind, bool cpu = true>
static void form_boxed(u64* stack, u64, u64) {
  const i64 number = kind == BY_NAME ? number_of((i64)stack[1]) : (i64)stack[1];
  bool made = false;
  {
    List given(stack[0]);
    const Form* f = form_at(number);
    const Tensors x(f ? f->count : 0), results(f ? f->opens : 0);
    Arguments a(x, (i64)stack[2]);
    made = f && read(*f, a, given, (i64)stack[3], (i64)stack[4]) && done<cpu>(*f, a, results);
    stack[0] = (u64)listed(results, made ? f->opens : 0);
  }
  if (kind == BY_NAME) aoti_torch_check(made, "tpgen", "program", 0, UNFIT_CALL);
}
// Register the operators; 0, or that torch refused.
EXPORTED int tpgen_register() {
  Handle library = 0, cpu = 0, gpu = 0;
  int failed = aoti_torch_library_init_fragment("tpgen_native", __FILE__, __LINE__, &library);
  for (const char* schema : SCHEMAS) failed = failed || aoti_torch_library_def(library, schema);
  return failed || aoti_torch_library_init_impl("tpgen_native", "CPU", __FILE__, __LINE__, &cpu) ||
         torch_library_impl(cpu, "form.few", few_boxed<>, STABLE_SINCE) ||
         torch_library_impl(cpu, "form", form_boxed<BY_NUMBER>, STABLE_SINCE) ||
         torch_library_impl(cpu, "form.named", form_boxed<BY_NAME>, STABLE_SINCE) ||
         aoti_torch_library_init_impl("tpgen_native", "CUDA", __FILE__, __LINE__, &gpu) ||
         torch_library_impl(gpu, "form.few", few_boxed<false>, STABLE_SINCE) ||
         torch_library_impl(gpu, "form", form_boxed<BY_NUMBER, false>, STABLE_SINCE);
}
