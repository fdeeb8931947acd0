// Where the ones of one-hot rows are.  Needs: i64.

// Writes the column of each row's one; returns how many rows are as they should be before one is not.
template <class T>
static i64 one_hot(const T* y, i64 rows, i64 columns, i64* place) {
  for (i64 n = 0; n < rows; ++n, y += columns) {
    i64 there = 0, ones = 0, at = 0;
    for (i64 m = 0; m < columns; ++m) {
      const bool one = y[m] == 1;
      there += y[m] != 0, ones += one, at += one ? m : 0;  // NaN is there, and no one
    }
    if (there != 1 || ones != 1) return n;
    place[n] = at;
  }
  return rows;
}

#define ONE_HOT(name, T)                                                                                        \
  extern "C" __attribute__((visibility("default"))) i64 name(const T* y, i64 rows, i64 columns, i64* place) { \
    return one_hot(y, rows, columns, place);                                                                    \
  }
ONE_HOT(tpgen_one_hot_float32, float)
ONE_HOT(tpgen_one_hot_float64, double)
