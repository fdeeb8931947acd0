// Rows of a polynomial as tasks: the rows of one element, or a part of them.  Needs: i64, posix_memalign, inside, sort_rows.

struct Tasks {
  i64 count;
  i64 *first, *order;     // rows by element; first[e] is where element e begins
  i64 *element, *begin;   // of every task: its element, and where in the order it begins
};
// Tasks of ``span`` rows at most; with span 0 one for each element, with or without rows.  Without an index all rows are
// of one element, or each of its own.  Memory is one block that starts at ``first``.
static int make_tasks(Tasks* t, const i64* index, i64 rows, i64 elements, i64 span) {
  const i64 most = elements + (span ? rows / span : 0) + 1;
  if (posix_memalign((void**)&t->first, 64, (elements + 1 + rows + 2 * most) * sizeof(i64))) return 1;
  t->order = t->first + elements + 1;
  t->element = t->order + rows;
  t->begin = t->element + most;
  if (index) sort_rows(index, rows, elements, t->first, t->order);
  else {
    for (i64 m = 0; m < rows; ++m) t->order[m] = m;
    for (i64 e = 0; e <= elements; ++e) t->first[e] = e * rows / (elements ? elements : 1);
  }
  t->count = 0;
  for (i64 e = 0; e < elements; ++e)
    for (i64 q = t->first[e]; !span || q < t->first[e + 1]; q += span) {
      t->element[t->count] = e;
      t->begin[t->count++] = q;
      if (!span) break;
    }
  return 0;
}
