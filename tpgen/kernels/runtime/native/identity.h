// Whether Python's objects are made of the objects that they were made of: comparisons of words, in one call for all that
// is watched.  The caller keeps every object, and gives Python's own functions.  The GIL is held.

#define EXPORTED extern "C" __attribute__((visibility("default")))

struct Object;

// Functions of Python's, which are found by their names.
struct Python {
  Object* (*get)(Object* table, Object* name);  // borrowed, or null
  int (*next)(Object* table, i64* place, Object** name, Object** value);
  void* (*address)(Object* number);
  Object* (*truth)(long value);
};
static Python python;

// Names of dicts, each with the object that it stands for, or null: one dict's behind the other's.
struct Watched {
  i64 count;  // of words
  const i64 *const *places, *values;
  i64 tables;
  Object* const* dicts;
  const i64* const* versions;  // places of numbers that each change of a dict moves; null where Python has none
  i64* seen;                   // the number of each dict when its names were compared last
  const i64 *ends, *whole;     // where each dict's names end, and whether these are all of it
  Object *const *names, *const *objects;
  i64 told;  // whether Python tells of changes of these dicts
  i64 last;  // how many it had told of when names were compared last
};

static i64 changes;

EXPORTED void tpgen_use_python(void* get, void* next, void* address, void* truth) {
  python = {(decltype(Python::get))get, (decltype(Python::next))next, (decltype(Python::address))address,
            (decltype(Python::truth))truth};
}

// What Python calls when a watched dict changes.
EXPORTED int tpgen_dict_changes(int, Object*, Object*, Object*) {
  __atomic_fetch_add(&changes, 1, __ATOMIC_RELAXED);
  return 0;
}

static bool names_stand(const Watched& w, i64 table) {
  const i64 begin = table ? w.ends[table - 1] : 0, end = w.ends[table];
  if (!w.whole[table]) {
    for (i64 n = begin; n < end; ++n)
      if (python.get(w.dicts[table], w.names[n]) != w.objects[n]) return false;
    return true;
  }
  i64 n = begin, place = 0;
  for (Object *name, *value; python.next(w.dicts[table], &place, &name, &value); ++n)
    if (n == end || name != w.names[n] || value != w.objects[n]) return false;
  return n == end;
}

static bool stands(Watched& w) {
  for (i64 n = 0; n < w.count; ++n)
    if (*w.places[n] != w.values[n]) return false;
  const i64 now = __atomic_load_n(&changes, __ATOMIC_RELAXED);
  if (w.told && now == w.last) return true;
  for (i64 n = 0; n < w.tables; ++n) {
    const i64 version = w.versions ? *w.versions[n] : 0;
    if (w.versions && version == w.seen[n]) continue;
    if (!names_stand(w, n)) return false;
    w.seen[n] = version;
  }
  w.last = now;
  return true;
}

// A method of Python's without arguments: its self is the address of what is watched, as a number.
EXPORTED Object* tpgen_stands(Object* self, Object*) { return python.truth(stands(*(Watched*)python.address(self))); }
