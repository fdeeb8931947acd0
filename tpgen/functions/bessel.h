// Bessel functions times a polynomial cutoff, and their gradient.  Needs: real = num, vec, bits, numbers.

static const int SIGN = SINGLE ? 31 : 63, TERMS = SINGLE ? 6 : 10;  // where a sign is; of the series
// pi in three parts, of which all but the last have so few bits that their multiples are exact
static const num PI = SINGLE ? 0x1.92p1 : 0x1.921fb54p1;
static const num PI_NEXT = SINGLE ? 0x1.fb4p-11 : 0x1.10b46118p-29;
static const num PI_REST = SINGLE ? 0x1.4442dp-23 : 0x1.313198a2e037p-60;

static const num FAR = SINGLE ? 0x1p12 : 0x1p23;  // multiples of pi below it leave all digits

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
// Powers one by one, and beyond the end times zero: what overflows is no number, as it is in torch's operations.
static inline Envelope envelope(vec r, const Shape& k) {
  const vec x = r / k.cutoff, inside = r < k.end ? vec{} + 1 : vec{};
  const num p = k.power;
  vec before = vec{} + 1;  // x^(p - 1)
  for (int n = 1; n < (int)p; ++n) before *= x;
  const vec first = before * x, second = first * x, third = second * x;
  const vec value = 1 - (p + 1) * (p + 2) / 2 * first + p * (p + 2) * second - p * (p + 1) / 2 * third;
  const vec slope = before * (1 - x) * (1 - x) * (-p * (p + 1) * (p + 2) / 2 / k.cutoff);
  return {value * inside, slope * inside};
}

// Where waves are computed: where they are multiplied by zero anyhow, at the end.
static inline vec wave_place(vec r, const Shape& k) { return r > k.end ? k.end + vec{} : r; }

// the length from which on some argument of a wave is too large for the series
static inline num far_length(const real* w, const Shape& k) {
  num most = 0;
  for (i64 m = 0; m < (i64)k.functions; ++m) most = w[m] > most ? w[m] : -w[m] > most ? -w[m] : most;
  return FAR / most;
}
static inline bool any(bits found) {
  bool seen = false;
  UNROLL for (int m = 0; m < W; ++m) seen |= found[m] != 0;
  return seen;
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

static bool values(const real* r, const real* w, Shape k, real* rows, real* alone, i64 count) {
  const i64 N = k.functions;
  const num far = far_length(w, k);
  const bool asks = !(k.end <= far);  // no wave is computed beyond the end
  bool lost = false, *const noted = &lost;
  every(count, N, [=](i64 i, i64 n) {
    const vec given = take(r + i, n), v = given == 0 ? k.least + vec{} : given;
    const vec u = envelope(v, k).value, at = wave_place(v, k);
    if (asks && any(at > far)) __atomic_store_n(noted, true, __ATOMIC_RELAXED);
    for (i64 m = 0; m < N; ++m) give_column(rows + i * N + m, N, k.prefactor * (wave(w[m] * at).sine / at) * u, n);
    if (alone) give(alone + i, u, n);
  });
  return lost;
}

static bool slopes(const real* r, const real* w, Shape k, const real* g, const real* h, real* by_r, i64 count) {
  const i64 N = k.functions;
  const num far = far_length(w, k);
  const bool asks = !(k.end <= far);  // no wave is computed beyond the end
  bool lost = false, *const noted = &lost;
  every(count, N, [=](i64 i, i64 n) {
    const vec given = take(r + i, n), v = given == 0 ? k.least + vec{} : given, at = wave_place(v, k);
    const Envelope u = envelope(v, k);
    if (asks && any(at > far)) __atomic_store_n(noted, true, __ATOMIC_RELAXED);
    vec sum = {};
    if (g) {
      vec sines = {}, cosines = {};
      for (i64 m = 0; m < N; ++m) {
        const vec by = column(g + i * N + m, N, n);
        const Wave a = wave(w[m] * at);
        sines += by * a.sine, cosines += by * w[m] * a.cosine;
      }
      sum = k.prefactor * (u.value * cosines + (u.slope - u.value / at) * sines) / at;
      if (k.least > 0) sum *= given == 0 ? vec{} : vec{} + 1;  // where functions have their limit, they are even
    }
    if (h) sum += take(h + i, n) * u.slope;
    give(by_r + i, sum, n);
  });
  return lost;
}

// At lengths r, for frequencies w: rows of all functions, and the cutoff alone where there is room for it.  Or, where
// there is room for it, the gradient by r, for cotangents g and h of these, of which one may be missing.
// Returns 1 where some length is too large for the series.
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(
    const real* r, const real* w, const Shape* shape, const real* g, const real* h, real* rows, real* alone,
    real* by_r, i64 count) {
  return by_r ? slopes(r, w, *shape, g, h, by_r, count) : values(r, w, *shape, rows, alone, count);
}
