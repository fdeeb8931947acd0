// Storage that is computed with as it is.  Needs: real = num, vec, loose.

static inline num widen(real x) { return x; }
static inline real narrow(num x) { return x; }
static inline vec fetch(const real* p) { return *(const loose*)p; }
static inline void put(real* p, vec v) { *(loose*)p = v; }
