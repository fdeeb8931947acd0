// Whether Python's names and functions stand for the objects that they stood for: comparisons of addresses, without a
// frame of Python's for each.  The caller holds the GIL and every object, and gives Python's own functions.

#define EXPORTED extern "C" __attribute__((visibility("default")))

struct Object;

// A borrowed reference, or null where a dict has no such name.
using Get = Object* (*)(Object* table, Object* name);
// A borrowed reference to a part of an object, or null.
using Part = Object* (*)(Object* whole);

// `none` stands for a name that is absent.
EXPORTED i64 tpgen_names_stand(
    Get get, Object* none, Object* const* tables, Object* const* names, Object* const* values, i64 count) {
  for (i64 n = 0; n < count; ++n) {
    Object* found = get(tables[n], names[n]);
    if ((found ? found : none) != values[n]) return 0;
  }
  return 1;
}

EXPORTED i64 tpgen_parts_stand(
    Part part, Object* none, Object* const* wholes, Object* const* values, i64 count) {
  for (i64 n = 0; n < count; ++n) {
    Object* found = part(wholes[n]);
    if ((found ? found : none) != values[n]) return 0;
  }
  return 1;
}
