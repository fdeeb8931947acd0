// The operators of a program without Python: kernels stand in files beside this library, a table says which does what.
// Needs: torch, form, and the tables `FORMS`, `ARGUMENTS` and `FEATURES` with `TORCH` and `BUILT_WITH`.

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
int prctl(int, ...);
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

static bool starts(const char* text, const char* word) { return !memcmp(text, word, strlen(word)); }
// whether a line has a word; that of the length of vectors on Arm is asked of the system
static bool has(const char* line, const char* word) {
  const u64 length = strlen(word);
#ifdef __linux__
  if (starts(word, "sve=")) {
    char found[32];
    snprintf(found, sizeof found, "sve=%d", prctl(51) & 0xFFFF);
    return !memcmp(found, word, length + 1);
  }
#endif
  for (const char* c = line; *c && *c != '\n'; ++c)
    if (*c == ' ' && starts(c + 1, word) && (unsigned char)c[1 + length] <= ' ') return true;
  return false;
}
// a feature that this processor lacks, where the system says what it has: on x86 and on Arm
static const char* lacking_feature() {
  static char text[1 << 14];  // the rest is zero
  void* file = fopen("/proc/cpuinfo", "rb");
  if (file) fread(text, 1, sizeof text / 2, file), fclose(file);
  const char* line = text;
  while (*line && !starts(line, "flags\t") && !starts(line, "Features\t"))
    for (bool more = true; more && *line;) more = *line++ != '\n';
  for (const char* const* f = FEATURES; *f && *line; ++f) if (!has(line, *f)) return *f;
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
// text of torch, which holds it
struct Text {
  const char* at;
  u64 length;
  explicit Text(u64 given) : at(0), length(0) {
    torch_string_c_str((Handle)given, &at);
    torch_string_length((Handle)given, &length);
  }
  Text(const char* at) : at(at), length(strlen(at)) {}
  bool is(const char* known) const { return strlen(known) == length && !memcmp(known, at, length); }
};
static void open_kernels() {
  static char versions[64];
  snprintf(versions, sizeof versions, "%d.%d", (int)(aoti_torch_abi_version() >> 56),
           (int)(aoti_torch_abi_version() >> 48 & 255));
  if (aoti_torch_abi_version() >> 48 < TORCH >> 48)
    refuse("built with torch " BUILT_WITH ", and this is torch ", versions, "use that torch or a later one, or deploy anew");
  if (const char* lacking = lacking_feature())
    refuse("built for a processor with ", lacking, "deploy on the machine that it is to run on");
  for (Form& f : FORMS)
    if (!*refusal) f.kernel = load(f.file, f.sum);
}

static void describe(const Tensor& x, char*& at, const char* end) {
  for (i64 d = 0; d < x.dim && at < end; ++d) at += snprintf(at, end - at, d ? ", %lld" : " (%lld", x.sizes[d]);
  if (at < end) at += snprintf(at, end - at, x.dim ? ")" : " none");
}
// the argument in which the index of a rule is given
static const char* argument_of(const char* names, int place) {
  for (; place > 0 && *names; --place)
    while (*names && *names++ != ' ') {}
  for (const Argument& known : ARGUMENTS) if (starts(names, known.rule)) return known.name;
  return names;
}
// why a kernel of a call was not run, or stopped
static void say(const Form& f, const Arguments& a, int fault, char* message) {
  char *at = message, *end = message + TEXT;
  if (fault == 1) snprintf(message, TEXT, "tpgen: a kernel stopped: out of memory for scratch space");
  else if (fault != UNFIT) snprintf(message, TEXT, "tpgen: %s holds an index out of range", argument_of(f.names, fault - 2));
  if (fault != UNFIT) return;
  at += snprintf(at, TEXT, "tpgen: tensors do not fit the call '%.60s': shapes", f.call);
  for (u64 n = 0; n < a.count; ++n) describe(a.x[n], at, end);
  if (at < end) at += snprintf(at, end - at, "; rows have");
  for (i64 n = 0; n < f.count && at < end; ++n) at += snprintf(at, end - at, " %lld", f.given[n].dim);
  if (at < end) snprintf(at, end - at, " numbers");
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

// Compute a call: each of its kernels opens some slots, in order.
static Handle compute(Text description, Text call, Text names, Level level, Arguments& a, List& indices, char* message) {
  Handle list = 0;
  bool known = false;
  torch_new_list_reserve_size(4, &list);
  if (*refusal) snprintf(message, TEXT, "%s", refusal);
  else if (level == TRANSFORMS || differentiated(a.x, a.count)) snprintf(message, TEXT, "%s", VALUES_ALONE);
  for (const Form& f : FORMS) {
    const bool counted = f.places ? f.count <= (i64)a.count : f.count == (i64)a.count;  // out alone does not read itself
    if (*message || !counted || f.dtype != position(a.x[0].dtype)) continue;
    if (!call.is(f.call) || !names.is(f.names) || !description.is(f.description)) continue;
    Tensor results[MOST_SLOTS];
    if (!known) take_indices(f, a, indices, indices.size);
    if (f.places && f.count < (i64)a.count) a.nodes = a.x[f.count].dim ? a.x[f.count].sizes[0] : 0;
    known = true;
    if (const int fault = run(f, a, results)) say(f, a, fault, message);
    for (Tensor& r : results) if (r && !*message) torch_list_push_back(list, (u64)r.give());
  }
  if (!*message && !known)
    snprintf(message, TEXT, "tpgen: a call or a dtype that was not deployed; deploy the network that calls it, one network for each process");
  if (!*message) return list;
  List made((u64)list);  // by kernels before the one that stopped
  return 0;
}
// `tpgen::form`: tensors, indices, description, call, names of rules, rows of out, and of the
// indices that are sorted.
template <Level level>
static void form_boxed(u64* stack, u64, u64) {
  static const int TEXTS[] = {2, 3, 4, 6};
  char message[TEXT] = "";
  {
    Tensor given[MOST_SLOTS];
    List tensors(stack[0]), indices((u64)optional(stack[1]));  // packages of AOTInductor give none for an empty one
    Arguments a(given, (i64)stack[5]);
    while (tensors.has_more() && a.count < MOST_SLOTS) given[a.count++].take(tensors.take());
    stack[0] = (u64)compute(Text(stack[2]), Text(stack[3]), Text(stack[4]), level, a, indices, message);
    for (int n : TEXTS) torch_delete_string((Handle)stack[n]);
  }
  if (*message) fail(message);
}

static int enter(const char* key, void (*form)(u64* stack, u64, u64)) {
  Handle library = 0;
  return aoti_torch_library_init_impl("tpgen", key, __FILE__, __LINE__, &library) ||
         torch_library_impl(library, "form", form, STABLE_SINCE);
}
static int registered = [] {
  setenv("AOTI_RUNTIME_CHECK_INPUTS", "1", 0);  // of packages: or operands that do not fit give wrong numbers
  open_kernels();
  Handle library = 0;
  return aoti_torch_library_init_fragment("tpgen", __FILE__, __LINE__, &library) ||
         aoti_torch_library_def(library, FORM) || enter("CPU", form_boxed<VALUES>) ||
         enter("FuncTorchDynamicLayerFrontMode", form_boxed<TRANSFORMS>);
}();
