// One end of the edges, in either integer dtype of torch's.  Needs: i64.

struct Ends {
  const void* at;
  bool narrow;  // int32, else int64
  inline i64 operator[](i64 e) const { return narrow ? ((const int*)at)[e] : ((const i64*)at)[e]; }
};
enum { CHECKED = 1, NARROW_SRC = 2, NARROW_DST = 4 };  // of a call
