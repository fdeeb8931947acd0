// bfloat16: storage only, computed with as float, rounded to the nearest.

union wide { float value; unsigned bits; };
DEVICE num widen(real x) {
  wide made;
  made.bits = (unsigned)x << 16;
  return made.value;
}
DEVICE real narrow(num x) {
  wide given;
  given.value = x;
  if (x != x) return given.bits >> 16 | 64;
  return (given.bits + 0x7fff + (given.bits >> 16 & 1)) >> 16;
}
