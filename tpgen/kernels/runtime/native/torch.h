// libtorch's stable C functions, declared here so that no header of torch is needed: a source builds in a fifth of a
// second, against any torch that exports them. All but the check return 0, or say that something failed.

typedef long long i64;
typedef unsigned long long u64;
typedef void* Handle;  // a tensor, library, list or string of torch

extern "C" {
int aoti_torch_library_init_fragment(const char* space, const char* file, unsigned line, Handle* made);
int aoti_torch_library_init_impl(const char* space, const char* key, const char* file, unsigned line, Handle* made);
int aoti_torch_library_def(Handle library, const char* schema);
int torch_library_impl(Handle library, const char* name, void (*run)(u64* stack, u64, u64), u64 version);
int aoti_torch_get_dim(Handle tensor, i64* found);
int aoti_torch_get_sizes(Handle tensor, i64** found);
int aoti_torch_get_strides(Handle tensor, i64** found);
int aoti_torch_get_dtype(Handle tensor, int* found);
int aoti_torch_get_data_ptr(Handle tensor, void** found);
int aoti_torch_get_device_type(Handle tensor, int* found);
int aoti_torch_get_device_index(Handle tensor, int* found);
int aoti_torch_empty_strided(i64 dim, const i64* sizes, const i64* strides, int dtype, int device, int, Handle* made);
int aoti_torch_copy_(Handle to, Handle from, int);
int aoti_torch_delete_tensor_object(Handle tensor);
int torch_new_list_reserve_size(u64 size, Handle* made);
int torch_list_push_back(Handle list, u64 item);
int torch_list_size(Handle list, u64* found);
int torch_list_get_item(Handle list, u64 place, u64* found);
int torch_delete_list(Handle list);
int torch_get_num_threads(unsigned* found);
int aoti_torch_dtype_float32();
int aoti_torch_dtype_float64();
int aoti_torch_dtype_bfloat16();
int aoti_torch_dtype_int64();
int aoti_torch_dtype_int32();
int aoti_torch_device_type_cpu();
}

enum : u64 { STABLE_SINCE = 2ull << 56 | 10ull << 48 };  // the torch whose conventions of the stack are used

// A tensor that is owned here, and what is asked of it again and again.
struct Tensor {
  Handle handle;
  i64 dim;
  i64 *sizes, *strides;
  int dtype;

  Tensor(Handle given = 0) : handle(0), dim(0), sizes(0), strides(0), dtype(-1) { take(given); }
  Tensor(const Tensor&) = delete;
  ~Tensor() { take(0); }
  void take(Handle given) {
    if (handle) aoti_torch_delete_tensor_object(handle);
    handle = given;
    if (!handle) return;
    aoti_torch_get_dim(handle, &dim);
    aoti_torch_get_sizes(handle, &sizes);
    aoti_torch_get_strides(handle, &strides);
    aoti_torch_get_dtype(handle, &dtype);
  }
  // one that has just been made, of which nobody asks more than where it stands
  void hold(Handle made) { handle = made; }
  Handle give() {
    Handle given = handle;
    handle = 0;
    return given;
  }
  explicit operator bool() const { return handle; }
  bool is(i64 n) const { return dim == 1 && sizes[0] == n; }
  bool is(i64 rows, i64 n) const { return dim == 2 && sizes[0] == rows && sizes[1] == n; }
  i64 count() const {
    i64 n = 1;
    for (i64 d = 0; d < dim; ++d) n *= sizes[d];
    return n;
  }
  bool dense() const {
    i64 step = 1;
    for (i64 d = dim - 1; d >= 0; step *= sizes[d--])
      if (sizes[d] != 1 && strides[d] != step) return !count();
    return true;
  }
  void* data() const {
    void* found = 0;
    if (handle) aoti_torch_get_data_ptr(handle, &found);
    return found;
  }
};

// As many tensors as a call has: room for the most that it may have takes as long to make as the call.
struct Tensors {
  Tensor* const at;
  explicit Tensors(i64 count) : at(new Tensor[count]) {}
  Tensors(const Tensors&) = delete;
  ~Tensors() { delete[] at; }
  operator Tensor*() const { return at; }
};

// of an argument that may be missing
static Handle optional(u64 given) {
  if (!given) return 0;
  const u64 value = *(u64*)given;
  delete (u64*)given;
  return (Handle)value;
}
