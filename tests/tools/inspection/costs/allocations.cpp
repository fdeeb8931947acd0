// Counts what a process has allocated: loaded before all else, it stands in the place of the system's functions.
#include <errno.h>
#include <malloc.h>
#include <stddef.h>

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

static long now, peak;

static void* counted(void* p) {
  if (!p) return p;
  const long held = __atomic_add_fetch(&now, (long)malloc_usable_size(p), __ATOMIC_RELAXED);
  long known = __atomic_load_n(&peak, __ATOMIC_RELAXED);
  while (held > known && !__atomic_compare_exchange_n(&peak, &known, held, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
  return p;
}
void free(void* p) {
  if (p) __atomic_sub_fetch(&now, (long)malloc_usable_size(p), __ATOMIC_RELAXED);
  __libc_free(p);
}
void* malloc(size_t n) { return counted(__libc_malloc(n)); }
void* calloc(size_t n, size_t of) { return counted(__libc_calloc(n, of)); }
void* memalign(size_t to, size_t n) { return counted(__libc_memalign(to, n)); }
void* aligned_alloc(size_t to, size_t n) { return memalign(to, n); }
int posix_memalign(void** at, size_t to, size_t n) { return (*at = memalign(to, n)) ? 0 : ENOMEM; }
void* realloc(void* p, size_t n) {
  const long before = p ? (long)malloc_usable_size(p) : 0;
  void* made = __libc_realloc(p, n);
  if (made || !n) __atomic_sub_fetch(&now, before, __ATOMIC_RELAXED);
  return counted(made);
}
long allocated_now() { return now; }
long allocated_peak() { return peak; }
void allocated_reset() { peak = now; }
}
