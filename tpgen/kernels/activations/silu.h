// The gradients of SiLU's gradient, in one pass.  Needs: real = num, vec, bits, numbers.

// what tells floats from doubles: bits of the fraction, the exponent of 1, and ln 2 in two parts, the first of few bits
static const bool SINGLE = sizeof(num) == 4;
static const int FRACTION = SINGLE ? 23 : 52, BIAS = SINGLE ? 127 : 1023;
static const num LARGEST = SINGLE ? 87 : 708, ROUNDING = SINGLE ? 0x1.8p23 : 0x1.8p52;  // to whole numbers, if added
static const num LN2 = SINGLE ? 0.693145751953125 : 6.93147180369123816490e-01;
static const num LN2_REST = SINGLE ? 1.42860682030941723e-06 : 1.90821492927058770002e-10;

// beyond these, where e to the x has no room, nothing changes any more; NaN stays NaN
static inline vec bounded(vec x) {
  x = x > LARGEST ? LARGEST + vec{} : x;
  return x < -LARGEST ? -LARGEST + vec{} : x;
}
// e to the x: 2^n e^r with r of at most ln 2 / 2, by its series
static inline vec exponential(vec x) {
  const vec shifted = x * (num)1.44269504088896340736 + ROUNDING, n = shifted - ROUNDING;
  const vec r = (x - n * LN2) - n * LN2_REST;
  vec sum = vec{} + 1;
  UNROLL for (int k = SINGLE ? 7 : 13; k; --k) sum = 1 + sum * r * ((num)1 / k);
  return sum * (vec)(((bits)shifted + BIAS) << FRACTION);
}

struct Sigmoid { vec s, rest; };  // s and 1 - s, both to their last digits
static inline Sigmoid sigmoid(vec x) {
  const vec e = exponential(-x), s = 1 / (1 + e);
  return {s, e * s};
}
static inline vec slope(vec x, Sigmoid a) { return a.s * (1 + x * a.rest); }
static inline vec bend(vec x, Sigmoid a) { return a.s * a.rest * (2 + x * (a.rest - a.s)); }

// At x, for a cotangent c of g f'(x): c f'(x) and c g f''(x).
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(
    const real* x, const real* g, const real* c, const void*, real* by_g, real* by_x, void*, void*, i64 count) {
  every(count, 1, [=](i64 i, i64 n) {
    const vec v = bounded(take(x + i, n)), by = take(c + i, n);
    const Sigmoid a = sigmoid(v);
    give(by_g + i, by * slope(v, a), n);
    give(by_x + i, by * take(g + i, n) * bend(v, a), n);
  });
  return 0;
}
