"""C++ that transposes items in memory into vectors over items and back.

A *tile* is W items, a *tail* the fewer last items of a segment.
"""

from __future__ import annotations

from itertools import pairwise
from math import gcd

Lane = tuple[int, int] | None  # of a vector; None where any number will do


def lane_list(lanes: list[int]) -> str:
    return ", ".join(map(str, lanes))


def shuffle_statements(wanted_lanes: list[Lane], source: str, target: str) -> list[str]:
    """C++ statements that fill vector ``target`` with lanes (vector, lane) of ``source``."""
    lanes = len(wanted_lanes)
    vectors = list(dict.fromkeys(w[0] for w in wanted_lanes if w))
    if len(vectors) == 1 and all(w is None or w[1] == n for n, w in enumerate(wanted_lanes)):
        return [f"{target} = {source}[{vectors[0]}];"]
    first, second = vectors[0], vectors[min(1, len(vectors) - 1)]
    places = [
        w[1] + lanes * (w[0] == second and second != first) if w and w[0] in (first, second) else -1
        for w in wanted_lanes
    ]
    statements = [f"{target} = __builtin_shufflevector({source}[{first}], {source}[{second}], {lane_list(places)});"]
    done = {first, second}
    for vector in vectors[2:]:
        places = [
            -1 if not w else n if w[0] in done else lanes + w[1] if w[0] == vector else -1
            for n, w in enumerate(wanted_lanes)
        ]
        done.add(vector)
        statements.append(f"{target} = __builtin_shufflevector({target}, {source}[{vector}], {lane_list(places)});")
    return statements


def _shuffles_of_transpose_and_inverse(lanes: int, width: int, items: int) -> tuple[list[list[str]], list[list[str]]]:
    # shuffles from vectors of memory to vectors over items, zero behind the last item, and the inverse
    numbers = width * items
    zero = (numbers // lanes, lanes - 1)  # a lane of memory that holds none
    gathered = [[divmod(n * width + d, lanes) if n < items else zero for n in range(lanes)] for d in range(width)]
    places = [divmod(n, width)[::-1] if n < numbers else None for n in range(numbers + lanes - 1)]
    joined = [places[begin : begin + lanes] for begin in range(0, numbers, lanes)]
    split = [shuffle_statements(list(wanted), "m", f"v[{d}]") for d, wanted in enumerate(gathered)]
    return split, [shuffle_statements(list(wanted), "v", f"m[{m}]") for m, wanted in enumerate(joined)]


def tile_transposes_text(lanes: int, width: int) -> str:
    """C++ that transposes ``W`` items of ``width`` numbers into ``width`` vectors, and back."""
    if rotations_are_shorter(lanes, width):
        split, join = [split_items_by_rotations(lanes, width)], [join_items_by_rotations(lanes, width)]
    else:
        split, join = _shuffles_of_transpose_and_inverse(lanes, width, lanes)
    fetches = " ".join(f"m[{d}] = fetch(p + {d} * W);" for d in range(width))
    puts = " ".join(f"put(p + {d} * W, m[{d}]);" for d in range(width))
    return _transpose_struct_source(f"Tile<{width}>", width, fetches, split, join, puts)


def rotations_are_shorter(lanes: int, width: int) -> bool:
    """Whether transposing by rotations takes fewer shuffles than filling every vector by itself.

    >>> [[d for d in range(1, 16) if rotations_are_shorter(lanes, d)] for lanes in (16, 4)]
    [[5, 7, 9, 11, 13, 15], []]
    """
    return gcd(lanes, width) == 1 and 1 + _count_rotation_rounds(width) <= min(lanes, width) - 1


# Transposes of wide tiles as rotations: few shuffles, most of which only blend.
#
# ``W`` items of ``D`` numbers are vectors ``m[j]`` in memory: lane e holds component ``d = (W j + e) mod D``.  If D and
# W have no common factor, one permutation of each ``v[d]`` puts all items into the lanes of memory.  Then, with
# ``t[k] = v[W k mod D]``, lane e of ``m[j]`` is that of ``t[j + s(e)]`` for ``s(e) = e / W mod D``: a rotation by every
# binary digit of s(e), a round of D blends for each digit, with the same lanes in all blends.


def split_items_by_rotations(lanes: int, width: int) -> list[str]:
    """C++ statements that split items in memory ``m`` into vectors of components ``v``."""
    rounds = ["m", *_names_of_intermediate_arrays(width), f"t[{_count_rotation_rounds(width) - 1}]"]
    turned = [
        f"v[{d}] = {_shuffle_expression(f'{rounds[-1]}[{k}]', '', [(c * width + d) % lanes for c in range(lanes)])};"
        for k, d in enumerate(_component_order_after_rotation(lanes, width))
    ]
    return [_declare_arrays_of_rounds(width), *_statements_of_rotation_rounds(lanes, width, -1, rounds), *turned]


def join_items_by_rotations(lanes: int, width: int) -> list[str]:
    """C++ statements that join vectors of components ``v`` to items in memory ``m``."""
    inverse = pow(width, -1, lanes)
    rounds = [f"t[{_count_rotation_rounds(width) - 1}]", *_names_of_intermediate_arrays(width), "m"]
    turned = [
        f"{rounds[0]}[{k}] = {_shuffle_expression(f'v[{d}]', '', [(e - d) * inverse % lanes for e in range(lanes)])};"
        for k, d in enumerate(_component_order_after_rotation(lanes, width))
    ]
    return [_declare_arrays_of_rounds(width), *turned, *_statements_of_rotation_rounds(lanes, width, 1, rounds)]


def _count_rotation_rounds(width: int) -> int:
    return (width - 1).bit_length()


def _declare_arrays_of_rounds(width: int) -> str:
    return f"vec t[{_count_rotation_rounds(width)}][{width}];"


def _names_of_intermediate_arrays(width: int) -> list[str]:
    # arrays of vectors between the first round and the last
    return [f"t[{n}]" for n in range(_count_rotation_rounds(width) - 1)]


def _component_order_after_rotation(lanes: int, width: int) -> list[int]:
    return [lanes * k % width for k in range(width)]


def _statements_of_rotation_rounds(lanes: int, vector_count: int, sign: int, array_names: list[str]) -> list[str]:
    # vector j takes some lanes of the vector 1, 2, 4 ... places on
    shifts = [e * pow(lanes, -1, vector_count) % vector_count for e in range(lanes)]
    # of the second vector where a digit is set
    digits = [[e + lanes * (shift >> n & 1) for e, shift in enumerate(shifts)] for n in range(len(array_names) - 1)]
    return [
        f"{new}[{j}] = {_shuffle_expression(f'{old}[{j}]', f'{old}[{(j + sign * 2**n) % vector_count}]', digits[n])};"
        for n, (old, new) in enumerate(pairwise(array_names))
        for j in range(vector_count)
    ]


def _shuffle_expression(first: str, second: str, lanes: list[int]) -> str:
    return f"__builtin_shufflevector({first}, {second or first}, {lane_list(lanes)})"


def _transpose_struct_source(
    name: str,
    vector_count: int,
    fetch_statements: str,
    split_statements: list[list[str]],
    join_statements: list[list[str]],
    put_statements: str,
) -> str:
    def join_lines(parts: list[list[str]]) -> str:
        return "\n    ".join(line for part in parts for line in part)

    return f"""
template <> struct {name} {{
  static inline __attribute__((always_inline)) void fetch_items(const real* p, vec* v) {{
    vec m[{vector_count}];
    {fetch_statements}
    {join_lines(split_statements)}
  }}
  static inline __attribute__((always_inline)) void put_items(real* p, const vec* v) {{
    vec m[{vector_count}];
    {join_lines(join_statements)}
    {put_statements}
  }}
}};"""


def partial_tile_transposes_text(lanes: int, dtype: str, tail_shapes: set[tuple[int, int]]) -> str:
    """C++ that transposes last, partial tiles of shapes (width, items), and accesses partial vectors."""
    parts = sorted({width * items % lanes for width, items in tail_shapes} - {0})
    attributes = "__attribute__((vector_size({0} * sizeof(real)), aligned(sizeof(real)), may_alias))"
    sizes = [2**n for n in range(1, lanes.bit_length())] if parts else []
    pieces = [f"typedef real piece{size} {attributes.format(size)};" for size in sizes]
    texts = [
        *pieces,
        *(_partial_vector_load_and_store_source(lanes, dtype, n) for n in parts),
        *(_partial_tile_transpose_struct_source(lanes, *t) for t in sorted(tail_shapes)),
    ]
    return "\n".join(text.strip("\n") for text in texts)


def _partial_vector_load_and_store_source(lanes: int, dtype: str, count: int) -> str:
    # read and write the first ``count`` numbers of a vector
    widened = "(vec)(__builtin_convertvector(whole, bits) << 16)" if dtype == "bfloat16" else "whole"
    return f"""
static inline vec fetch_{count}(const real* p) {{
  const piece{lanes} whole = {_expression_that_reads_partial_vector(0, count, lanes)};
  return {widened};
}}
static inline void put_{count}(real* p, vec v) {{
  piece{lanes} whole; put((real*)&whole, v);
  {" ".join(_statements_that_store_partial_vector("whole", 0, count, lanes))}
}}"""


def _expression_that_reads_partial_vector(offset: int, count: int, vector_size: int) -> str:
    # an expression of ``vector_size`` numbers: ``count`` from a place in memory, zeros behind them
    if count == vector_size:
        return f"*(const piece{vector_size}*)(p + {offset})"
    if count == 0:
        return f"piece{vector_size}{{}}"
    if vector_size == 2:
        return f"piece2{{p[{offset}], 0}}"
    half = vector_size // 2
    low, high = (
        _expression_that_reads_partial_vector(offset, min(count, half), half),
        _expression_that_reads_partial_vector(offset + half, max(0, count - half), half),
    )
    return f"__builtin_shufflevector({low}, {high}, {lane_list(list(range(vector_size)))})"


def _statements_that_store_partial_vector(value: str, offset: int, count: int, vector_size: int) -> list[str]:
    # statements that write the first ``count`` of the ``vector_size`` numbers of a value
    if count == 0:
        return []
    if count == vector_size:
        return [f"*(piece{vector_size}*)(p + {offset}) = {value};"]
    if vector_size == 2:
        return [f"p[{offset}] = {value}[0];"]
    half = vector_size // 2
    low, high = (f"__builtin_shufflevector({value}, {value}, {lane_list(list(range(n, n + half)))})" for n in (0, half))
    return _statements_that_store_partial_vector(
        low, offset, min(count, half), half
    ) + _statements_that_store_partial_vector(high, offset + half, max(0, count - half), half)


def _partial_tile_transpose_struct_source(lanes: int, width: int, items: int) -> str:
    # ``items`` items of ``width`` numbers <-> ``width`` vectors whose other lanes are zero
    whole, part = divmod(width * items, lanes)
    split, join = _shuffles_of_transpose_and_inverse(lanes, width, items)
    fetches = [f"m[{n}] = fetch(p + {n} * W);" for n in range(whole)]
    fetches.append(f"m[{whole}] = fetch_{part}(p + {whole} * W);" if part else f"m[{whole}] = vec{{}};")
    puts = [f"put(p + {n} * W, m[{n}]);" for n in range(whole)] + [f"put_{part}(p + {whole} * W, m[{whole}]);"] * (
        part > 0
    )
    return _transpose_struct_source(
        f"Tail<{width}, {items}>", whole + 1, " ".join(fetches), split, join, " ".join(puts)
    )
