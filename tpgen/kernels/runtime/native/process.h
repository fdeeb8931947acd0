// The operators that tpgen's own calls in this process go through, and the tables of kernels that Python fills as they
// are built.  What does not fit has no result, and Python says why.  Compiled programs call the same by names that do not
// change from process to process, and there it is an error.  Needs: torch, form, product, gpu.

static const char* const SCHEMAS[] = {
    "run(Tensor x1, Tensor x2, Tensor w, int product, int mask, Tensor? g=None, Tensor? src=None, Tensor? dst=None,"
    " SymInt nodes=0) -> Tensor[]",
    "sorted(Tensor x1, Tensor x2, Tensor w, int product, int mask, Tensor? g, Tensor? src, Tensor? dst, SymInt nodes,"
    " Tensor? by_src, Tensor? by_dst, int stream=-1) -> Tensor[]",
    "form(Tensor[] tensors, Tensor? index, int call, Tensor? src=None, Tensor? dst=None) -> Tensor[]",
    "sorted_form(Tensor[] tensors, Tensor? index, int call, Tensor? first, Tensor? order) -> Tensor[]",
    "named_run(Tensor x1, Tensor x2, Tensor w, int name, int mask, Tensor? g=None, Tensor? src=None, Tensor? dst=None,"
    " SymInt nodes=0) -> Tensor[]",
    "named_form(Tensor[] tensors, Tensor? index, int name, Tensor? src=None, Tensor? dst=None) -> Tensor[]",
};
enum { MOST = 1 << 16 };
static Product* products[MOST];
static Form* forms[MOST];
static i64 known, known_forms;

#define EXPORTED extern "C" __attribute__((visibility("default")))
extern "C" void aoti_torch_check(bool, const char* function, const char* file, unsigned line, const char* message);

// Numbers by names, of products and of forms: places of a table that is at most half full.  One thread at a time writes.
enum { PLACES = 4 * MOST };
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
EXPORTED i64 tpgen_add_product(const i64* fields) {
  if (known == MOST) return -1;
  Product* made = new Product();
  for (int n = 0; n < 4; ++n) made->dims[n] = fields[n];
  made->weights = fields[4], made->check = fields[5], made->limit = fields[6];
  products[known] = made;
  __atomic_store_n(&known, known + 1, __ATOMIC_RELEASE);
  return known - 1;
}
EXPORTED void tpgen_set_kernel(i64 product, i64 edges, i64 dtype, i64 mask, void* kernel) {
  __atomic_store_n(&products[product]->kernels[edges][dtype][mask], kernel, __ATOMIC_RELEASE);
}
// The driver that launches on devices of a type, before the first launch is entered; -1: none.
EXPORTED void tpgen_use_driver(i64 type, void* stream_of, void* capturing, void* push, void* pop, void* launch) {
  driver = {type, (decltype(Driver::stream_of))stream_of, (decltype(Driver::capturing))capturing,
            (decltype(Driver::push))push, (decltype(Driver::pop))pop, (decltype(Driver::launch))launch};
}
// One thread at a time, as above.
EXPORTED void tpgen_set_launch(i64 product, i64 edges, i64 dtype, i64 mask, i64 device, const Launch* launch) {
  enter(products[product]->launches[edges][dtype][mask], device, *launch);
}
EXPORTED void tpgen_set_form_launch(i64 form, i64 device, const FormLaunch* launch) {
  enter(forms[form]->launches, device, *launch);
}
// The number of a new call of a form, -1 where there are too many of them, or of its tensors.  The fields: dtype, limit,
// whether edges are checked, how many tensors are given and opened, then what is known of each of these.
EXPORTED i64 tpgen_add_form(const i64* fields, void* kernel) {
  const i64 count = fields[3], opens = fields[4];
  if (known_forms == MOST || count > MOST_SLOTS || opens > MOST_SLOTS) return -1;
  Given* given = new Given[count];
  Opened* opened = new Opened[opens];
  const i64* at = fields + 5;
  for (i64 n = 0; n < count; ++n, at += 4) given[n] = {at[0], at[1], at[2], at[3]};
  for (i64 n = 0; n < opens; ++n, at += 4) opened[n] = {at[0], at[1], at[2], at[3]};
  forms[known_forms] = new Form{"", "", fields[0], count, opens, given, opened, "", 0, kernel, fields[1], fields[2], 0, 0};
  __atomic_store_n(&known_forms, known_forms + 1, __ATOMIC_RELEASE);
  return known_forms - 1;
}
// Who makes room for large results, before the first call.
EXPORTED void tpgen_make_large_by(void* function) { make_large = (Handle(*)(const i64*, i64, i64))function; }

static const char UNFIT_CALL[] =
    "tpgen: a call of a compiled program has no kernel in this process, or tensors of other shapes than its kernel takes, "
    "or an index out of range";

// A call by its number, or by its name, for which it is an error that nothing is done.  Where some tensor is on a GPU,
// all are, or it is left to Python.
enum Kind { BY_NUMBER, BY_NAME, SORTED };  // the last has edges that are checked and sorted
template <Kind kind, bool cpu = true>
static void run_boxed(u64* stack, u64, u64) {
  static const Product none = {};
  const i64 number = kind == BY_NAME ? number_of((i64)stack[3]) : (i64)stack[3];
  const bool there = number >= 0 && number < __atomic_load_n(&known, __ATOMIC_ACQUIRE);
  bool done;
  {
    Call c = {there ? *products[number] : none,
              {(Handle)stack[0], (Handle)stack[1], (Handle)stack[2], optional(stack[5])},
              optional(stack[6]),
              optional(stack[7]),
              (i64)stack[4],
              (i64)stack[8],
              {},
              {kind == SORTED ? optional(stack[9]) : 0, kind == SORTED ? optional(stack[10]) : 0},
              kind == SORTED ? (i64)stack[11] : ANY_STREAM};
    Handle list = 0;
    torch_new_list_reserve_size(4, &list);
    done = there && !(on_gpu(c.operands[0]) ? run_on_gpu(c, kind == SORTED) : cpu ? run(c) : UNFIT);
    for (Tensor& x : c.results) if (done && x) torch_list_push_back(list, (u64)x.give());
    stack[0] = (u64)list;
  }
  if (kind == BY_NAME) aoti_torch_check(done, "tpgen", "program", 0, UNFIT_CALL);
}
template <bool named, bool cpu = true>
static void form_boxed(u64* stack, u64, u64) {
  const i64 number = named ? number_of((i64)stack[2]) : (i64)stack[2];
  const bool there = number >= 0 && number < __atomic_load_n(&known_forms, __ATOMIC_ACQUIRE);
  bool done;
  {
    Arguments a(stack[0], stack[1], stack[3], stack[4]);
    Tensor results[MOST_SLOTS];
    Handle list = 0;
    torch_new_list_reserve_size(4, &list);
    done = there && a.count && a.count == (u64)forms[number]->count &&
           !(on_gpu(a.x[0]) ? run_on_gpu(*forms[number], a, results)
             : cpu && forms[number]->kernel ? run(*forms[number], a, results) : UNFIT);
    for (i64 n = 0; done && n < forms[number]->opens; ++n) torch_list_push_back(list, (u64)results[n].give());
    stack[0] = (u64)list;
  }
  if (named) aoti_torch_check(done, "tpgen", "program", 0, UNFIT_CALL);
}
// Register the operators; 0, or that torch refused.
EXPORTED int tpgen_register() {
  Handle library = 0, cpu = 0, gpu = 0;
  int failed = aoti_torch_library_init_fragment("tpgen_native", __FILE__, __LINE__, &library);
  for (const char* schema : SCHEMAS) failed = failed || aoti_torch_library_def(library, schema);
  return failed || aoti_torch_library_init_impl("tpgen_native", "CPU", __FILE__, __LINE__, &cpu) ||
         torch_library_impl(cpu, "run", run_boxed<BY_NUMBER>, STABLE_SINCE) ||
         torch_library_impl(cpu, "sorted", run_boxed<SORTED>, STABLE_SINCE) ||
         torch_library_impl(cpu, "sorted_form", form_boxed<false>, STABLE_SINCE) ||
         torch_library_impl(cpu, "form", form_boxed<false>, STABLE_SINCE) ||
         torch_library_impl(cpu, "named_run", run_boxed<BY_NAME>, STABLE_SINCE) ||
         torch_library_impl(cpu, "named_form", form_boxed<true>, STABLE_SINCE) ||
         aoti_torch_library_init_impl("tpgen_native", "CUDA", __FILE__, __LINE__, &gpu) ||
         torch_library_impl(gpu, "run", run_boxed<BY_NUMBER, false>, STABLE_SINCE) ||
         torch_library_impl(gpu, "sorted", run_boxed<SORTED, false>, STABLE_SINCE) ||
         torch_library_impl(gpu, "sorted_form", form_boxed<false, false>, STABLE_SINCE) ||
         torch_library_impl(gpu, "form", form_boxed<false, false>, STABLE_SINCE);
}
