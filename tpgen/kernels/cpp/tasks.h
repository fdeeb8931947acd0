// Rows as tasks: the rows of one element, or a part of them.  Needs: i64, sort_rows.

struct Tasks {
  i64 count;
  i64 *first, *order;     // rows by element; first[e] is where element e begins
  i64 *element, *begin;   // of every task: its element, and where in the order it begins
  // whether a task has all rows of its element
  bool is_whole(i64 b, i64 span) const { return begin[b] == first[element[b]] && first[element[b] + 1] <= begin[b] + span; }
};
static inline i64 most_tasks(i64 rows, i64 elements, i64 span) { return elements + (span ? rows / span : 0) + 1; }
static inline i64 tasks_size(i64 rows, i64 elements, i64 span) {
  return elements + 1 + rows + 2 * most_tasks(rows, elements, span);
}
// Tasks of ``span`` rows at most; with span 0 one for each element, with or without rows.  Without an index all rows are
// of one element, or each of its own.  ``room`` has as many numbers as they take.
static Tasks make_tasks(i64* room, const i64* index, i64 rows, i64 elements, i64 span) {
  i64 *const first = room, *const order = first + elements + 1, *const element = order + rows;
  Tasks t = {0, first, order, element, element + most_tasks(rows, elements, span)};
  if (index) sort_rows(index, rows, elements, first, order);
  else {
    for (i64 m = 0; m < rows; ++m) order[m] = m;
    for (i64 e = 0; e <= elements; ++e) first[e] = e * rows / (elements ? elements : 1);
  }
  for (i64 e = 0; e < elements; ++e)
    for (i64 q = first[e]; !span || q < first[e + 1]; q += span) {
      element[t.count] = e;
      t.begin[t.count++] = q;
      if (!span) break;
    }
  return t;
}
