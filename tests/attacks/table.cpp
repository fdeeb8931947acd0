// The runtime's table of kernels under ThreadSanitizer: Python enters kernels while threads call.  What it asks of torch
// stands here, as little as it needs.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace fake {
struct Values { long long dim, sizes[2], strides[2]; int dtype; float* data; int owned; };
struct List { int count; void* items[4]; };
static void (*run)(unsigned long long*, unsigned long long, unsigned long long);
static Values* tensor(long long rows, long long width, float value) {
  Values* made = new Values{2, {rows, width}, {width, 1}, 6, (float*)malloc(rows * width * sizeof(float)), 1};
  for (long long n = 0; n < rows * width; ++n) made->data[n] = value;
  return made;
}
}
extern "C" {
typedef fake::Values* T;
int aoti_torch_library_init_fragment(const char*, const char*, unsigned, void** made) { *made = 0; return 0; }
int aoti_torch_library_init_impl(const char*, const char*, const char*, unsigned, void** made) { *made = 0; return 0; }
int aoti_torch_library_def(void*, const char*) { return 0; }
int torch_library_impl(void*, const char* name, void (*run)(unsigned long long*, unsigned long long, unsigned long long),
                       unsigned long long) {
  if (!strcmp(name, "form.few") && !fake::run) fake::run = run;  // that of CPUs, which is the first
  return 0;
}
int aoti_torch_get_dim(void* x, long long* found) { *found = T(x)->dim; return 0; }
int aoti_torch_get_sizes(void* x, long long** found) { *found = T(x)->sizes; return 0; }
int aoti_torch_get_strides(void* x, long long** found) { *found = T(x)->strides; return 0; }
int aoti_torch_get_dtype(void* x, int* found) { *found = T(x)->dtype; return 0; }
int aoti_torch_get_data_ptr(void* x, void** found) { *found = T(x)->data; return 0; }
int aoti_torch_empty_strided(long long, const long long* sizes, const long long*, int, int, int, void** made) {
  *made = fake::tensor(sizes[0], sizes[1], 0);
  return 0;
}
int aoti_torch_copy_(void*, void*, int) { return 1; }
int aoti_torch_get_device_type(void*, int* found) { *found = 0; return 0; }
int aoti_torch_get_device_index(void*, int* found) { *found = -1; return 0; }
int aoti_torch_delete_tensor_object(void* x) { free(T(x)->data); delete T(x); return 0; }
int torch_new_list_reserve_size(unsigned long long, void** made) { *made = new fake::List{0, {}}; return 0; }
int torch_list_push_back(void* list, unsigned long long item) {
  fake::List* l = (fake::List*)list;
  l->items[l->count++] = (void*)item;
  return 0;
}
int torch_list_size(void*, unsigned long long*) { return 1; }
int torch_list_get_item(void*, unsigned long long, unsigned long long*) { return 1; }
int torch_delete_list(void*) { return 0; }
int torch_get_num_threads(unsigned* found) { *found = 1; return 0; }
int aoti_torch_dtype_float32() { return 6; }
int aoti_torch_dtype_float64() { return 7; }
int aoti_torch_dtype_bfloat16() { return 15; }
int aoti_torch_dtype_int64() { return 4; }
int aoti_torch_dtype_int32() { return 3; }
int aoti_torch_device_type_cpu() { return 0; }
int aoti_torch_layout_strided() { return 0; }
void aoti_torch_check(bool right, const char*, const char*, unsigned, const char*) { if (!right) abort(); }
long long tpgen_add_form(const long long* fields);
void tpgen_set_kernel(long long form, void* kernel);
int tpgen_register();
}

enum { FORMS = 200, ROWS = 3 };
static int calls;
// x1 + x2 + w, so that a result tells what it was made of
static int kernel(const float* const* given, float* const* opened, const void*, long long rows, long long) {
  for (long long n = 0; n < rows * 2; ++n) opened[0][n] = given[0][n] + given[1][n] + given[2][n % 2];
  return 0;
}
static void* call(void* wrong) {
  for (int turn = 0; turn < 20; ++turn)
    for (unsigned long long form = 0; form < FORMS; ++form) {
      fake::Values* w = new fake::Values{1, {2, 0}, {1, 1}, 6, (float*)calloc(2, sizeof(float)), 1};
      unsigned long long stack[7] = {(unsigned long long)fake::tensor(ROWS, 2, turn),
                                     (unsigned long long)fake::tensor(ROWS, 2, 1), (unsigned long long)w, form};
      fake::run(stack, 0, 0);
      fake::List* made = (fake::List*)stack[0];
      __atomic_fetch_add(&calls, made->count, __ATOMIC_RELAXED);
      for (int n = 0; n < made->count; ++n) {
        if (T(made->items[n])->data[0] != turn + 1) __atomic_store_n((int*)wrong, 1, __ATOMIC_RELAXED);
        aoti_torch_delete_tensor_object(made->items[n]);
      }
      delete made;
    }
  return 0;
}
int main() {
  int wrong = tpgen_register();
  pthread_t made[4];
  for (pthread_t& thread : made) pthread_create(&thread, 0, call, &wrong);
  for (int n = 0; n < FORMS; ++n) {
    // x1 and x2 by rows and w shared, two numbers each, -> out
    const long long fields[] = {0, 8, 3, 1, 0, 2, 0, 0, 1, 2, 0, 0, 1, 2, 0, 1, 1, -1, 2, 0, 0};
    tpgen_set_kernel(tpgen_add_form(fields), (void*)kernel);
  }
  for (pthread_t thread : made) pthread_join(thread, 0);
  puts(wrong ? "wrong" : calls ? "nothing found" : "nothing called");
  return wrong;
}
