// The operator that tpgen's own calls in this process go through, and the table of kernels that Python fills as they are
// built.  What does not fit has no result, and Python says why.  Needs: torch, product.

static const char* const SCHEMA =
    "run(Tensor x1, Tensor x2, Tensor w, int product, int mask, Tensor? g=None, Tensor? src=None, Tensor? dst=None,"
    " SymInt nodes=0) -> Tensor[]";
enum { MOST = 1 << 16 };
static Product* products[MOST];
static i64 known;

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
// Register the operator; 0, or that torch refused.
EXPORTED int tpgen_register() {
  Handle library = 0, cpu = 0;
  return aoti_torch_library_init_fragment("tpgen_native", __FILE__, __LINE__, &library) ||
         aoti_torch_library_def(library, SCHEMA) ||
         aoti_torch_library_init_impl("tpgen_native", "CPU", __FILE__, __LINE__, &cpu) ||
         torch_library_impl(cpu, "run", run_boxed, STABLE_SINCE);
}
