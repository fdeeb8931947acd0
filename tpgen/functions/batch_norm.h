// Batch norms of rows of irreps in training, and their gradients.  Needs: real, num, vec, in_blocks, take, give, least.

enum { ROWS = 64, PARTS = 64 };  // rows that a core's first cache holds; parts of all rows, as Python knows them too

// Rows hold copies of irreps.  For each column: its copy, and its number among scalars, or -1.  For each copy: what its
// squared norm is divided by.
struct Norm {
  i64 columns, copies;
  const i64 *copy, *scalar, *divisor;
  explicit Norm(const i64* table)
      : columns(table[0]), copies(table[1]), copy(table + 2), scalar(copy + columns), divisor(scalar + columns) {}
};

// Call f(part, from, to) for the parts of all rows.  Parts do not depend on threads, so sums of theirs do not either.
template <class F> static void in_parts(i64 rows, i64 columns, F f) {
  const i64 parts = least((rows + ROWS - 1) / ROWS, (i64)PARTS);
  in_blocks(parts, 1, rows * columns / parts, [=](i64 at, i64 end) {
    for (i64 part = at; part < end; ++part) f(part, rows * part / parts, rows * (part + 1) / parts);
  });
}

// Call f(slot, column, lanes) for vectors of columns.  The last one overlaps that before; columns below its slot are done.
template <class F> static inline void each_vector(i64 columns, F f) {
  for (i64 slot = 0; slot < columns; slot += W) {
    const i64 column = columns < W ? 0 : least(slot, columns - W);
    f(slot, column, columns - column);
  }
}
template <class F> static inline void each_column(i64 columns, F f) {  // f(column, its place in slots)
  each_vector(columns, [=](i64 slot, i64 column, i64 lanes) {
    for (i64 k = slot - column; k < least(lanes, (i64)W); ++k) f(column + k, slot + k);
  });
}
static inline void add(num* sum, vec v) { put(sum, fetch(sum) + v); }

// Add the mean of n rows and their squared distances from it to those of `before` rows.
static inline void merge(double* mean, double* squares, i64 before, double m, double q, i64 n) {
  const double apart = m - *mean, share = n / (double)(before + n);
  *mean += apart * share;
  *squares += q + apart * apart * share * before;
}

// means of scalars, 0 for others, and squared distances from them; m and q have room for slots
static void moments_of(Norm norm, const real* x, i64 from, i64 to, double* mean, double* squares, num* m, num* q) {
  const i64 columns = norm.columns;
  for (i64 c = 0; c < columns; ++c) mean[c] = squares[c] = 0;
  for (i64 at = from; at < to; at += ROWS) {
    const i64 end = least(at + ROWS, to), n = end - at;
    each_vector(columns, [=](i64 slot, i64, i64) { put(m + slot, vec{}), put(q + slot, vec{}); });
    for (i64 r = at; r < end; ++r)
      each_vector(columns, [=](i64 slot, i64 c, i64 lanes) { add(m + slot, take(x + r * columns + c, lanes)); });
    each_vector(columns, [=](i64 slot, i64 c, i64 lanes) {
      for (i64 k = 0; k < least(lanes, (i64)W); ++k) m[slot + k] = norm.scalar[c + k] < 0 ? 0 : m[slot + k] / n;
    });
    for (i64 r = at; r < end; ++r)
      each_vector(columns, [=](i64 slot, i64 c, i64 lanes) {
        const vec y = take(x + r * columns + c, lanes) - fetch(m + slot);
        add(q + slot, y * y);
      });
    each_column(columns, [=](i64 c, i64 k) { merge(mean + c, squares + c, at - from, m[k], q[k], n); });
  }
}

// sums of g, and of g (x - mean); t and s have room for slots
static void slopes_of(
    i64 columns, const real* x, const real* g, const num* mean, i64 from, i64 to, double* total, double* slope, num* t, num* s) {
  for (i64 c = 0; c < columns; ++c) total[c] = slope[c] = 0;
  for (i64 at = from; at < to; at += ROWS) {
    each_vector(columns, [=](i64 slot, i64, i64) { put(t + slot, vec{}), put(s + slot, vec{}); });
    for (i64 r = at; r < least(at + ROWS, to); ++r)
      each_vector(columns, [=](i64 slot, i64 c, i64 lanes) {
        const vec h = take(g + r * columns + c, lanes), y = take(x + r * columns + c, lanes) - take(mean + c, lanes);
        add(t + slot, h), add(s + slot, h * y);
      });
    each_column(columns, [=](i64 c, i64 k) { total[c] += t[k], slope[c] += s[k]; });
  }
}

// out = (x - mean) scale + shift, or with g: g scale + (x - mean) back + shift
static void write_rows(
    i64 columns, i64 rows, const real* x, const real* g, const num* mean, const num* scale, const num* back, const num* shift, real* out) {
  in_blocks(rows, 1 + BLOCK / (columns + 1), columns, [=](i64 at, i64 end) {
    for (i64 r = at; r < end; ++r)
      each_vector(columns, [=](i64, i64 c, i64 lanes) {
        const i64 at = r * columns + c;
        const vec y = take(x + at, lanes) - take(mean + c, lanes), a = take(scale + c, lanes), b = take(shift + c, lanes);
        give(out + at, g ? take(g + at, lanes) * a + (y * take(back + c, lanes) + b) : y * a + b, lanes);
      });
  });
}

// Without g: rows of their norm, with means, variances and their inverse roots in moments.  With g: gradients by rows,
// weight and bias, of these moments.  `room` has four numbers for each slot of each part, and once more.
extern "C" __attribute__((visibility("default"))) int tpgen_kernel(
    const real* x, const real* g, const num* weight, const num* bias, const i64* table, const num* epsilon, num* moments,
    real* out, num* by_weight, num* by_bias, double* room, i64 rows) {
  const Norm norm(table);
  const i64 columns = norm.columns, slots = columns + W, parts = least((rows + ROWS - 1) / ROWS, (i64)PARTS);
  num *const mean = moments, *const variance = mean + columns, *const inverse = variance + norm.copies;
  in_parts(rows, columns, [=](i64 part, i64 from, i64 to) {
    double *const one = room + part * 4 * slots, *const two = one + slots;
    num *const m = (num*)(two + slots), *const q = m + slots;
    if (g) slopes_of(columns, x, g, mean, from, to, one, two, m, q);
    else moments_of(norm, x, from, to, one, two, m, q);
  });
  double *const first = room, *const second = room + slots;  // sums of all parts
  for (i64 part = 1; part < parts; ++part) {
    const double *const one = room + part * 4 * slots, *const two = one + slots;
    const i64 from = rows * part / parts, n = rows * (part + 1) / parts - from;
    for (i64 c = 0; c < columns; ++c)
      if (g) first[c] += one[c], second[c] += two[c];
      else merge(first + c, second + c, from, one[c], two[c], n);
  }
  double* const of_copy = room + parts * 4 * slots;
  num *const scale = (num*)(of_copy + slots), *const back = scale + slots, *const shift = back + slots;
  for (i64 k = 0; k < norm.copies; ++k) of_copy[k] = 0;
  for (i64 c = 0; c < columns; ++c) of_copy[norm.copy[c]] += second[c];
  for (i64 k = 0; k < norm.copies; ++k) {
    if (g) by_weight[k] = of_copy[k] * inverse[k];
    else {
      variance[k] = of_copy[k] / ((double)norm.divisor[k] * rows);
      inverse[k] = 1 / __builtin_sqrt((double)variance[k] + *epsilon);
    }
  }
  for (i64 c = 0; c < columns; ++c) {
    const i64 k = norm.copy[c], scalar = norm.scalar[c];
    scale[c] = inverse[k] * weight[k];
    shift[c] = 0;
    if (g) {
      const double cube = (double)inverse[k] * inverse[k] * inverse[k];
      back[c] = -weight[k] * of_copy[k] * cube / ((double)norm.divisor[k] * rows);
      if (scalar >= 0) by_bias[scalar] = first[c], shift[c] = -first[c] * scale[c] / rows;
    } else {
      mean[c] = first[c];
      if (scalar >= 0) shift[c] = bias[scalar];
    }
  }
  write_rows(columns, rows, x, g, mean, scale, back, shift, out);
  return 0;
}
