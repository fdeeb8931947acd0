// The operators of a program without Python: kernels stand in files beside this library, a table says which does what.
// Needs: torch, product, form, and the tables `KERNELS` and `FORMS` with `FEATURES`, `TORCH` and `BUILT_WITH`.

extern "C" {
int snprintf(char*, unsigned long, const char*, ...);
unsigned long strlen(const char*);
int memcmp(const void*, const void*, unsigned long);
void* dlopen(const char*, int);
void* dlsym(void*, const char*);
char* dlerror();
int dladdr(const void*, void* found);
void* fopen(const char*, const char*);
u64 fread(void*, u64, u64, void*);
int fclose(void*);
int setenv(const char*, const char*, int);
void aoti_torch_check(bool, const char*, const char*, unsigned, const char*);
u64 aoti_torch_abi_version();
int torch_string_length(Handle text, u64* found);
int torch_string_c_str(Handle text, const char** found);
int torch_delete_string(Handle text);
bool aoti_torch_grad_mode_is_enabled();
int aoti_torch_is_defined(Handle tensor, bool* found);
int aoti_torch_new_tensor_handle(Handle tensor, Handle* made);
int torch_call_dispatcher(const char* name, const char* overload, u64* stack, u64 version);
}

enum { TEXT = 4096, NOW_AND_ALONE = 2 };
static char refusal[TEXT];  // why nothing is computed; empty where all is well

static void refuse(const char* what, const char* detail, const char* way_out) {
  if (!*refusal) snprintf(refusal, TEXT, "tpgen: %s%s; %s", what, detail, way_out);
}
[[noreturn]] static void fail(const char* message) {
  aoti_torch_check(false, "tpgen", "libtpgen", 0, message);
  __builtin_unreachable();
}

static const char* lacking_feature() {
#if defined(__x86_64__)
  __builtin_cpu_init();
#define NEEDS(name) if (!__builtin_cpu_supports(name)) return name;
  FEATURES
#endif
  return 0;
}
// the checksum of a file, CRC-32 as zlib's; one that no file has where it cannot be read
static i64 sum_of(const char* path) {
  void* file = fopen(path, "rb");
  if (!file) return -1;
  unsigned char bytes[TEXT];
  unsigned sum = ~0u;
  while (const u64 count = fread(bytes, 1, sizeof bytes, file))
    for (u64 n = 0; n < count; ++n) {
      sum ^= bytes[n];
      for (int bit = 0; bit < 8; ++bit) sum = sum >> 1 ^ (sum & 1 ? 0xEDB88320u : 0);
    }
  fclose(file);
  return ~sum;
}
// the function of a kernel's file, which stands in a folder beside this library
static void* load(const char* name, i64 sum) {
  struct { const char* file; void* base; const char* name; void* address; } here;
  char path[TEXT];
  if (!dladdr((const void*)&load, &here)) return 0;
  const char* end = here.file;
  for (const char* c = here.file; *c; ++c) if (*c == '/') end = c + 1;
  snprintf(path, TEXT, "%.*skernels/%s", (int)(end - here.file), here.file, name);
  if (sum_of(path) != sum) {  // a file that is cut off would end the process that loads it
    refuse("a kernel is missing or not what was deployed: ", name, "copy the whole folder again, or deploy anew");
    return 0;
  }
  void* library = dlopen(path, NOW_AND_ALONE);
  void* found = library ? dlsym(library, "tpgen_kernel") : 0;
  if (!found) refuse("a kernel cannot be loaded: ", dlerror(), "copy the whole folder again, or deploy anew");
  return found;
}
static bool same(const char* known, Handle given) {
  const char* text = 0;
  u64 length = 0;
  torch_string_c_str(given, &text);
  torch_string_length(given, &length);
  return strlen(known) == length && !memcmp(known, text, length);
}
static void open_kernels() {
  static char versions[64];
  snprintf(versions, sizeof versions, "%d.%d", (int)(aoti_torch_abi_version() >> 56),
           (int)(aoti_torch_abi_version() >> 48 & 255));
  if (aoti_torch_abi_version() >> 48 < TORCH >> 48)
    refuse("built with torch " BUILT_WITH ", and this is torch ", versions, "use that torch or a later one, or deploy anew");
  if (const char* lacking = lacking_feature())
    refuse("built for a processor with ", lacking, "deploy on the machine that it is to run on");
  for (const Entry& entry : KERNELS) {
    if (*refusal) return;
    entry.product->kernels[entry.edges][entry.dtype][entry.mask] = load(entry.file, entry.sum);
  }
  for (Form& f : FORMS)
    if (!*refusal) f.kernel = load(f.file, f.sum);
}

static const char* const FAULTS[] = {"", "out of memory for scratch space", "edge_src holds an index out of range",
                                     "edge_dst holds an index out of range"};

static void describe(const Tensor& x, char*& at, const char* end) {
  for (i64 d = 0; d < x.dim && at < end; ++d) at += snprintf(at, end - at, d ? ", %lld" : " (%lld", x.sizes[d]);
  if (at < end) at += snprintf(at, end - at, x.dim ? ")" : " none");
}
static void say(const Call& c, int fault, char* message) {
  char *at = message, *end = message + TEXT;
  if (fault != UNFIT) {
    snprintf(message, TEXT, "tpgen: %s", fault < 4 ? FAULTS[fault] : "a kernel stopped");
    return;
  }
  at += snprintf(at, TEXT, "tpgen: operands do not fit the product, or are of a dtype it was not deployed for: shapes");
  for (const Tensor& x : c.operands) describe(x, at, end);
  const i64* d = c.product.dims;
  if (at < end) snprintf(at, end - at, "; rows have %lld, %lld, %lld and %lld numbers", d[0], d[1], d[2], d[3]);
}

// The rules of differentiation are tpgen's, in Python.  Without them a call would be a constant to autograd, and what
// else depends on an operand would pass for the whole gradient: so a call that is to be differentiated is refused.
static const char VALUES_ALONE[] =
    "tpgen: this call is to be differentiated or transformed, and libtpgen.so computes values alone: take forces from the "
    "package model.pt2, which holds them, or differentiate tpgen.portable(network), or import tpgen before you load "
    "libtpgen.so; for values alone, call it under torch.no_grad(), in C++ torch::NoGradGuard";

// whether autograd records what is made of a tensor, backwards or forwards
static bool differentiated(const Tensor& x) {
  u64 parts[2] = {0, 0};  // a tensor and a level; then a view of the tensor, and its tangent, which may be undefined
  bool forwards = false;
  if (!x || aoti_torch_new_tensor_handle(x.handle, (Handle*)parts)) return false;
  if (torch_call_dispatcher("aten::_unpack_dual", "", parts, STABLE_SINCE)) return true;
  aoti_torch_is_defined((Handle)parts[1], &forwards);
  aoti_torch_delete_tensor_object((Handle)parts[1]);
  const bool backwards = torch_call_dispatcher("aten::is_leaf", "", parts, STABLE_SINCE) || !(parts[0] & 1);
  return backwards || forwards;
}
static bool differentiated(const Tensor* x, u64 count) {
  if (!aoti_torch_grad_mode_is_enabled()) return false;
  for (u64 n = 0; n < count; ++n) if (differentiated(x[n])) return true;
  return false;
}
enum Level { VALUES, TRANSFORMS };  // of the dispatcher: where calls are computed, and where torch.func takes them

// Compute a call, or throw what torch throws; the description is given up.
static void compute(Call& c, bool known, Level level, Handle description, char* message) {
  torch_delete_string(description);
  if (*refusal) snprintf(message, TEXT, "%s", refusal);
  else if (level == TRANSFORMS || differentiated(c.operands, 4)) snprintf(message, TEXT, "%s", VALUES_ALONE);
  else if (!known) snprintf(message, TEXT, "tpgen: a product that was not deployed; deploy the network that calls it, one network for each process");
  else if (const int fault = run(c)) say(c, fault, message);
}
static Product* product_of(Handle description) {
  for (const Entry& entry : KERNELS) if (same(entry.description, description)) return entry.product;
  return 0;
}

static const Product NONE = {};
template <Level level>
static void product_boxed(u64* stack, u64, u64) {
  char message[TEXT] = "";
  {
    const Product* p = product_of((Handle)stack[3]);
    Call c = {p ? *p : NONE, {(Handle)stack[0], (Handle)stack[1], (Handle)stack[2], (Handle)0}, optional(stack[4]),
              optional(stack[5]), OUT, (i64)stack[6], {}};
    compute(c, p, level, (Handle)stack[3], message);
    stack[0] = (u64)c.results[3].give();
  }
  if (*message) fail(message);
}
template <Level level>
static void gradients_boxed(u64* stack, u64, u64) {
  char message[TEXT] = "";
  {
    const Product* p = product_of((Handle)stack[4]);
    Call c = {p ? *p : NONE, {(Handle)stack[0], (Handle)stack[1], (Handle)stack[2], (Handle)stack[3]}, optional(stack[6]),
              optional(stack[7]), (i64)stack[5], 0, {}};
    compute(c, p, level, (Handle)stack[4], message);
    Handle list = 0;
    if (!*message) torch_new_list_reserve_size(4, &list);
    for (Tensor& x : c.results) if (list && x) torch_list_push_back(list, (u64)x.give());
    stack[0] = (u64)list;
  }
  if (*message) fail(message);
}

// Compute a call: each of its kernels opens some slots, in order.
static Handle compute(Handle description, Handle call, Level level, Arguments& a, char* message) {
  Handle list = 0;
  int fault = UNFIT;
  torch_new_list_reserve_size(4, &list);
  if (*refusal) snprintf(message, TEXT, "%s", refusal);
  else if (level == TRANSFORMS || differentiated(a.x, a.count)) snprintf(message, TEXT, "%s", VALUES_ALONE);
  else {
    const int dtype = position(a.x[0].dtype);
    bool known = false;
    for (const Form& f : FORMS) {
      if (f.dtype != dtype || f.count != (i64)a.count || !same(f.call, call) || !same(f.description, description)) continue;
      Tensor results[MOST_SLOTS];
      if (!known || !fault) fault = run(f, a, results);
      known = true;
      for (Tensor& r : results) if (!fault && r) torch_list_push_back(list, (u64)r.give());
    }
    if (!known) snprintf(message, TEXT, "tpgen: a call or a dtype that was not deployed; deploy the network that calls it");
    else if (fault) snprintf(message, TEXT, "tpgen: %s", fault == UNFIT ? "tensors do not fit the call"
                             : fault != 2 ? "a kernel stopped" : a.src ? FAULTS[2] : "index: an element is out of range");
  }
  if (!*message) return list;
  torch_delete_list(list);
  return 0;
}
// `tpgen::form`, or `tpgen::polynomial` as programs of 0.1 have it.
template <Level level, bool form>
static void form_boxed(u64* stack, u64, u64) {
  char message[TEXT] = "";
  {
    Arguments a(stack[0], stack[form ? 5 : 1], form ? stack[1] : 0, form ? stack[2] : 0);
    const Handle description = (Handle)stack[form ? 3 : 2], call = (Handle)stack[form ? 4 : 3];
    stack[0] = (u64)compute(description, call, level, a, message);
    torch_delete_string(description);
    torch_delete_string(call);
  }
  if (*message) fail(message);
}

typedef void (*Boxed)(u64* stack, u64, u64);
static int enter(const char* key, Boxed product, Boxed gradients, Boxed form, Boxed polynomial) {
  Handle library = 0;
  return aoti_torch_library_init_impl("tpgen", key, __FILE__, __LINE__, &library) ||
         torch_library_impl(library, "product", product, STABLE_SINCE) ||
         torch_library_impl(library, "gradients", gradients, STABLE_SINCE) ||
         torch_library_impl(library, "form", form, STABLE_SINCE) ||
         torch_library_impl(library, "polynomial", polynomial, STABLE_SINCE);
}
template <Level level>
static int enter(const char* key) {
  return enter(key, product_boxed<level>, gradients_boxed<level>, form_boxed<level, true>, form_boxed<level, false>);
}
static int registered = [] {
  setenv("AOTI_RUNTIME_CHECK_INPUTS", "1", 0);  // of packages: or operands that do not fit give wrong numbers
  open_kernels();
  Handle library = 0;
  return aoti_torch_library_init_fragment("tpgen", __FILE__, __LINE__, &library) ||
         aoti_torch_library_def(library, PRODUCT) || aoti_torch_library_def(library, GRADIENTS) ||
         aoti_torch_library_def(library, FORM) || aoti_torch_library_def(library, POLYNOMIAL) || enter<VALUES>("CPU") ||
         enter<TRANSFORMS>("FuncTorchDynamicLayerFrontMode");
}();
