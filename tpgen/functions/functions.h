// Activations of vectors, with two derivatives.  Needs: num, vec, bits, numbers.

// what tells floats from doubles: bits of the fraction, the exponent of 1, and ln 2 in two parts, the first of few bits
static const int FRACTION = SINGLE ? 23 : 52, BIAS = SINGLE ? 127 : 1023;
static const num LARGEST = SINGLE ? 87 : 708;
static const num LN2 = SINGLE ? 0.693145751953125 : 6.93147180369123816490e-01;
static const num LN2_REST = SINGLE ? 1.42860682030941723e-06 : 1.90821492927058770002e-10;

// beyond these, where e to the x has no room, nothing changes any more; NaN stays NaN
static inline vec above(vec x) { return x < -LARGEST ? -LARGEST + vec{} : x; }
static inline vec bounded(vec x) { return above(x > LARGEST ? LARGEST + vec{} : x); }

// e to the x = power (1 + more): 2^n e^r with r of at most ln 2 / 2, by its series, without the 1 that small x are lost in
struct Power { vec power, more; };
static inline Power powered(vec x) {
  const vec shifted = x * (num)1.44269504088896340736 + ROUNDING, n = shifted - ROUNDING;
  const vec r = (x - n * LN2) - n * LN2_REST;
  vec sum = vec{} + 1;
  UNROLL for (int k = SINGLE ? 7 : 13; k > 1; --k) sum = 1 + sum * r * ((num)1 / k);
  return {(vec)(((bits)shifted + BIAS) << FRACTION), sum * r};
}

// Each is made of its x and gives f, f' and f''.
struct Identity {
  vec x;
  Identity(vec x) : x(x) {}
  vec value() const { return x; }
  vec slope() const { return vec{} + 1; }
  vec bend() const { return vec{}; }
};
struct Sigmoid {
  vec s, rest;  // s and 1 - s, both to their last digits
  Sigmoid(vec x) {
    const Power e = powered(bounded(-x));
    const vec fall = e.power + e.power * e.more;
    s = 1 / (1 + fall), rest = fall * s;
  }
  vec value() const { return s; }
  vec slope() const { return s * rest; }
  vec bend() const { return s * rest * (rest - s); }
};
struct Silu {
  vec low, x;  // large ones as they are for f, and bounded where a factor makes up for them
  Sigmoid of;
  // infinity times a factor that is zero is no number; v - v is zero for all others
  Silu(vec v) : low(v < -LARGEST ? -LARGEST + (v - v) : v), x(bounded(v) + (v - v)), of(v) {}
  vec value() const { return low * of.s; }
  vec slope() const { return of.s * (1 + x * of.rest); }
  vec bend() const { return of.s * of.rest * (2 + x * (of.rest - of.s)); }
};
struct Tanh {
  vec t;
  Tanh(vec x) {
    const Power e = powered(bounded(2 * x));
    const vec rise = e.power * e.more + (e.power - 1);  // e to the 2x, less 1
    t = rise / (rise + 2);
  }
  vec value() const { return t; }
  vec slope() const { return 1 - t * t; }
  vec bend() const { return -2 * t * (1 - t * t); }
};
struct Abs {
  vec x;
  Abs(vec x) : x(x) {}
  vec value() const { return (x < 0 ? -x : x) + 0; }  // of -0 too
  vec slope() const { return x > 0 ? vec{} + 1 : x < 0 ? vec{} - 1 : vec{}; }
  vec bend() const { return vec{}; }
};
struct Relu {
  vec x;
  Relu(vec x) : x(x) {}
  vec value() const { return x < 0 ? vec{} : x; }
  vec slope() const { return x <= 0 ? vec{} : vec{} + 1; }
  vec bend() const { return vec{}; }
};

// Times what may be no number: zero is a factor of it, or the choice of no part at all, as in torch's operations.
template <class F> static inline vec by_slope(const F& f, vec v) { return f.slope() * v; }
template <class F> static inline vec by_bend(const F& f, vec v) { return f.bend() * v; }
static inline vec by_slope(const Relu& f, vec v) { return f.x <= 0 ? vec{} : v; }
static inline vec by_bend(const Relu&, vec) { return vec{}; }
static inline vec by_bend(const Abs&, vec) { return vec{}; }
static inline vec by_bend(const Identity&, vec) { return vec{}; }
