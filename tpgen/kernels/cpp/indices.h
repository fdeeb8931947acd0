// How the rows of a call find those of an operand, in either integer dtype of torch's.  Needs: i64.

struct RowIndex {
  const void* at;  // null: no tensor says it
  i64 size, how;   // rows that it points into; flags
  inline i64 operator[](i64 e) const { return how & 2 ? ((const int*)at)[e] : ((const i64*)at)[e]; }
};
enum { CHECKED = 1, NARROW = 2 };  // of a call: it is checked; it is int32, else int64
