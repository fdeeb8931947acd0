// What the warps of a kernel ask of memory; traffic.cpp says how it is counted.
#include <cstddef>

namespace traffic {
void begin(const void* shared, size_t bytes, unsigned threads);
void touch(void* place, const void* address, size_t bytes);  // the current thread, at a place of the code
void copy(const void* address, size_t bytes);                // by the engine, which is asked once
void met(unsigned first, unsigned end);                      // threads that stand at the same barrier now, or have ended
void end();
}  // namespace traffic
