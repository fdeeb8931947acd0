// The operators that tpgen's own calls in this process go through, and the tables of kernels that Python fills as they
// are built.  What does not fit has no result, and Python says why.  Needs: torch, product, polynomial.

static const char* const SCHEMAS[] = {
    "run(Tensor x1, Tensor x2, Tensor w, int product, int mask, Tensor? g=None, Tensor? src=None, Tensor? dst=None,"
    " SymInt nodes=0) -> Tensor[]",
    "polynomial(Tensor[] tensors, Tensor? index, int call) -> Tensor[]",
};
enum { MOST = 1 << 16 };
static Product* products[MOST];
static Polynomial* polynomials[MOST];
static i64 known, known_polynomials;

#define EXPORTED extern "C" __attribute__((visibility("default")))

// The number of a new product, -1 where there are too many.  One thread at a time: Python holds a lock.
EXPORTED i64 tpgen_add_product(const i64* fields) {
  if (known == MOST) return -1;
  Product* made = new Product();
  for (int n = 0; n < 4; ++n) made->dims[n] = fields[n];
  made->shared = fields[4], made->check = fields[5], made->limit = fields[6];
  products[known] = made;
  __atomic_store_n(&known, known + 1, __ATOMIC_RELEASE);
  return known - 1;
}
EXPORTED void tpgen_set_kernel(i64 product, i64 edges, i64 dtype, i64 mask, void* kernel) {
  __atomic_store_n(&products[product]->kernels[edges][dtype][mask], kernel, __ATOMIC_RELEASE);
}
// The number of a new call of a polynomial, -1 where there are too many of them, or of its tensors.  The fields: dtype,
// limit, how many tensors are given and opened, then what is known of each of these.
EXPORTED i64 tpgen_add_polynomial(const i64* fields, void* kernel) {
  const i64 count = fields[2], opens = fields[3];
  if (known_polynomials == MOST || count > MOST_SLOTS || opens > MOST_SLOTS) return -1;
  Given* given = new Given[count];
  Opened* opened = new Opened[opens];
  const i64* at = fields + 4;
  for (i64 n = 0; n < count; ++n, at += 3) given[n] = {at[0], at[1], at[2]};
  for (i64 n = 0; n < opens; ++n, at += 2) opened[n] = {at[0], at[1]};
  polynomials[known_polynomials] = new Polynomial{"", "", fields[0], count, opens, given, opened, "", 0, kernel, fields[1]};
  __atomic_store_n(&known_polynomials, known_polynomials + 1, __ATOMIC_RELEASE);
  return known_polynomials - 1;
}
// Who makes room for large results, before the first call.
EXPORTED void tpgen_make_large_by(void* function) { make_large = (Handle(*)(const i64*, i64, i64))function; }

static void run_boxed(u64* stack, u64, u64) {
  static const Product none = {};
  const i64 number = (i64)stack[3];
  const bool there = number >= 0 && number < __atomic_load_n(&known, __ATOMIC_ACQUIRE);
  Call c = {there ? *products[number] : none,
            {(Handle)stack[0], (Handle)stack[1], (Handle)stack[2], optional(stack[5])},
            optional(stack[6]),
            optional(stack[7]),
            (i64)stack[4],
            (i64)stack[8],
            {}};
  Handle list = 0;
  torch_new_list_reserve_size(4, &list);
  if (there && !run(c))
    for (Tensor& x : c.results) if (x) torch_list_push_back(list, (u64)x.give());
  stack[0] = (u64)list;
}
static void polynomial_boxed(u64* stack, u64, u64) {
  const i64 number = (i64)stack[2];
  const bool there = number >= 0 && number < __atomic_load_n(&known_polynomials, __ATOMIC_ACQUIRE);
  Arguments a(stack[0], stack[1]);
  Tensor results[MOST_SLOTS];
  Handle list = 0;
  torch_new_list_reserve_size(4, &list);
  if (there && a.count == (u64)polynomials[number]->count && !run(*polynomials[number], a.x, a.index, results))
    for (i64 n = 0; n < polynomials[number]->opens; ++n) torch_list_push_back(list, (u64)results[n].give());
  stack[0] = (u64)list;
}
// Register the operators; 0, or that torch refused.
EXPORTED int tpgen_register() {
  Handle library = 0, cpu = 0;
  return aoti_torch_library_init_fragment("tpgen_native", __FILE__, __LINE__, &library) ||
         aoti_torch_library_def(library, SCHEMAS[0]) || aoti_torch_library_def(library, SCHEMAS[1]) ||
         aoti_torch_library_init_impl("tpgen_native", "CPU", __FILE__, __LINE__, &cpu) ||
         torch_library_impl(cpu, "run", run_boxed, STABLE_SINCE) ||
         torch_library_impl(cpu, "polynomial", polynomial_boxed, STABLE_SINCE);
}
