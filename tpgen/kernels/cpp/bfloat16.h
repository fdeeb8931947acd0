// Storage in bfloat16, the upper half of a float; rounding is to nearest, ties to even, and NaN stays NaN.
// Needs: real (16 bits), num = float, vec, bits, W.

typedef real halves __attribute__((vector_size(2 * W), aligned(2), may_alias));
static inline num widen(real x) { union { unsigned int u; num f; } b = {(unsigned int)x << 16}; return b.f; }
static inline real narrow(num x) {
  union { num f; unsigned int u; } b = {x};
  return x != x ? (b.u >> 16) | 64 : (b.u + 0x7fff + ((b.u >> 16) & 1)) >> 16;
}
static inline vec fetch(const real* p) { return (vec)(__builtin_convertvector(*(const halves*)p, bits) << 16); }
static inline void put(real* p, vec v) {
  bits u = (bits)v, nan = (bits)(v != v);
  u = (nan & ((u >> 16) | 64)) | (~nan & ((u + 0x7fff + ((u >> 16) & 1)) >> 16));
  *(halves*)p = __builtin_convertvector(u, halves);
}
