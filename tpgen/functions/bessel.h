// Bessel functions times a polynomial cutoff, and their gradient.  Needs: real = num, vec, bits, numbers.

static const int SIGN = SINGLE ? 31 : 63, TERMS = SINGLE ? 6 : 10;  // where a sign is; of the series
// pi in three parts, of which all but the last have so few bits that their multiples are exact
static const num PI = SINGLE ? 0x1.92p1 : 0x1.921fb54p1;
static const num PI_NEXT = SINGLE ? 0x1.fb4p-11 : 0x1.10b46118p-29;
static const num PI_REST = SINGLE ? 0x1.4442dp-23 : 0x1.313198a2e037p-60;

struct Wave { vec sine, cosine; };
// of y, by the series at the nearest multiple of pi; an odd one turns both signs
static inline Wave wave(vec y) {
  const vec shifted = y * (num)0.318309886183790671538 + ROUNDING, n = shifted - ROUNDING;
  const vec z = ((y - n * PI) - n * PI_NEXT) - n * PI_REST, square = z * z;
  vec sine = vec{} + 1, cosine = vec{} + 1;
  UNROLL for (int k = TERMS; k; --k) {
    sine = 1 - sine * square * ((num)1 / (2 * k * (2 * k + 1)));
    cosine = 1 - cosine * square * ((num)1 / (2 * k * (2 * k - 1)));
  }
  const bits turn = (bits)shifted << SIGN;
  return {(vec)((bits)(z * sine) ^ turn), (vec)((bits)cosine ^ turn)};
}

// What is the same for all lengths.  From `end` on all is zero: the cutoff, or infinity.  `least` stands for a length of
// zero, where functions are to have their limit; else it is zero, and they are no numbers.
struct Shape { num prefactor, cutoff, power, end, least, functions; };

struct Envelope { vec value, slope; };  // slope: by the length
static inline Envelope envelope(vec r, const Shape& k) {
  const vec x = r / k.cutoff;
  const num p = k.power;
  vec before = vec{} + 1;  // x^(p - 1)
  for (int n = 1; n < (int)p; ++n) before *= x;
  const vec value = 1 - before * x * ((p + 1) * (p + 2) / 2 - x * (p * (p + 2) - x * (p * (p + 1) / 2)));
  const vec slope = before * (1 - x) * (1 - x) * (-p * (p + 1) * (p + 2) / 2 / k.cutoff);
  return {value, slope};
}

// numbers of one function, which stand a row apart
static inline vec column(const real* p, i64 stride, i64 n) {
  vec v = {};
  for (i64 m = 0; m < least(n, W); ++m) v[m] = p[m * stride];
  return v;
}
static inline void give_column(real* p, i64 stride, vec v, i64 n) {
  for (i64 m = 0; m < least(n, W); ++m) p[m * stride] = v[m];
}

static void values(const real* r, const real* w, Shape k, real* rows, real* alone, i64 count) {
  const i64 N = k.functions;
  every(count, N, [=](i64 i, i64 n) {
    const vec given = take(r + i, n), v = given == 0 ? k.least + vec{} : given;
    const vec u = given >= k.end ? vec{} : envelope(v, k).value;
    for (i64 m = 0; m < N; ++m) {
      const vec found = k.prefactor * (wave(w[m] * v).sine / v) * u;
      give_column(rows + i * N + m, N, given >= k.end ? vec{} : found, n);
    }
    if (alone) give(alone + i, u, n);
  });
}

static void slopes(const real* r, const real* w, Shape k, const real* g, const real* h, real* by_r, i64 count) {
  const i64 N = k.functions;
  every(count, N, [=](i64 i, i64 n) {
    const vec given = take(r + i, n), v = given == 0 ? k.least + vec{} : given;
    const Envelope u = envelope(v, k);
    vec sum = {};
    if (g) {
      vec sines = {}, cosines = {};
      for (i64 m = 0; m < N; ++m) {
        const vec by = column(g + i * N + m, N, n);
        const Wave a = wave(w[m] * v);
        sines += by * a.sine, cosines += by * w[m] * a.cosine;
      }
      sum = k.prefactor * (u.value * cosines + (u.slope - u.value / v) * sines) / v;
      if (k.least > 0) sum = given == 0 ? vec{} : sum;  // where functions have their limit, they are even
    }
    if (h) sum += take(h + i, n) * u.slope;
    give(by_r + i, given >= k.end ? vec{} : sum, n);
  });
}

// At lengths r, for frequencies w: rows of all functions, and the cutoff alone where there is room for it.  Or, where
// there is room for it, the gradient by r, for cotangents g and h of these, of which one may be missing.
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(
    const real* r, const real* w, const Shape* shape, const real* g, const real* h, real* rows, real* alone,
    real* by_r, i64 count) {
  if (by_r) slopes(r, w, *shape, g, h, by_r, count);
  else values(r, w, *shape, rows, alone, count);
  return 0;
}
