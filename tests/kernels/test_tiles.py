"""Transposes in registers, their statements run on arrays: every width, for vectors of every length."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tpgen.kernels.cpp.tiles import (
    join_items_by_rotations,
    rotations_are_shorter,
    split_items_by_rotations,
    tile_transposes_text,
)

SHUFFLE = re.compile(r"(\w+(?:\[\d+\])+) = __builtin_shufflevector\(([^,]+), ([^,]+), ([^)]+)\);")
MOVE = re.compile(r"(\w+(?:\[\d+\])+) = (\w+(?:\[\d+\])+);")
Vectors = dict[str, np.ndarray]


def run(statements: str, known: Vectors) -> Vectors:
    for line in re.findall(r"[^;]+;", statements):
        if found := SHUFFLE.search(line):
            name, first, second, lanes = found.groups()
            order = [int(lane) for lane in lanes.split(",")]
            both = np.concatenate([known[first], known[second]])
            known[name] = np.array([both[lane] if lane >= 0 else np.nan for lane in order])
        elif found := MOVE.search(line):
            known[found[1]] = known[found[2]]
    return known


@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
@pytest.mark.parametrize("width", range(1, 18))
def test_items_become_vectors_and_back(lanes: int, width: int) -> None:
    numbers = np.arange(float(lanes * width))
    memory = {f"m[{j}]": vector for j, vector in enumerate(numbers.reshape(width, lanes))}
    vectors = {f"v[{d}]": vector for d, vector in enumerate(numbers.reshape(lanes, width).T)}
    fetched, put = tile_transposes_text(lanes, width).split("put_items")
    for text, given, wanted in ((fetched, memory, vectors), (put, vectors, memory)):
        found = run(text, dict(given))
        for name, vector in wanted.items():
            np.testing.assert_array_equal(found[name], vector, name)


@pytest.mark.parametrize("lanes, width", [(4, 3), (8, 5), (16, 13), (4, 9)])
def test_rotations_hold_where_they_are_not_taken_too(lanes: int, width: int) -> None:
    numbers = np.arange(float(lanes * width))
    memory = {f"m[{j}]": vector for j, vector in enumerate(numbers.reshape(width, lanes))}
    vectors = run("".join(split_items_by_rotations(lanes, width)), dict(memory))
    assert [list(vectors[f"v[{d}]"]) for d in range(width)] == numbers.reshape(lanes, width).T.tolist()
    again = run(
        "".join(join_items_by_rotations(lanes, width)), {name: vectors[name] for name in vectors if name[0] == "v"}
    )
    assert all((again[name] == memory[name]).all() for name in memory)


def test_even_widths_have_no_rotation() -> None:
    assert not any(rotations_are_shorter(lanes, width) for lanes in (4, 8, 16) for width in (2, 4, 6, 8, 12))
