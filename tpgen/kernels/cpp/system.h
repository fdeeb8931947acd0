// What the kernels ask of the compiler and of the system.  Needs: i64.

// loops over the parts of an array in registers: unrolled, or the array would live in memory
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 64")
#endif
extern "C" int posix_memalign(void**, unsigned long, unsigned long);
extern "C" void free(void*);
#ifdef __linux__
extern "C" int madvise(void*, unsigned long, int);
#endif
// Fresh pages are zeroed by the system one fault at a time; large ones cost 500 times fewer faults.
static void expect_writes(const void* p, i64 bytes) {
#ifdef __linux__
  unsigned long long page = 1ull << 21, at = (unsigned long long)p;
  unsigned long long from = (at + page - 1) / page * page, to = (at + bytes) / page * page;
  if (bytes >= 4 * (i64)page && to > from) madvise((void*)from, to - from, 14);
#endif
}
// memory for as long as a scope lasts; null where there is none
template <class T> struct Room {
  T* at = 0;
  explicit Room(i64 n) { if (posix_memalign((void**)&at, 64, n * sizeof(T))) at = 0; }
  Room(const Room&) = delete;
  ~Room() { free(at); }
};
static inline i64 least(i64 a, i64 b) { return a < b ? a : b; }
