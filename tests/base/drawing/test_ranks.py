"""Ranks of a graph: readers below what they read, nothing on one place, few crossings."""

from __future__ import annotations

import itertools
import random

from tpgen.base.drawing.graphs import lay_out_graph_in_ranks


def test_readers_stand_below_and_nodes_apart() -> None:
    rng = random.Random(0)
    reads = {n: rng.sample(range(n), min(n, rng.choice((0, 1, 2)))) for n in range(60)}
    places, lines = lay_out_graph_in_ranks(reads, inputs=[0])
    assert all(places[source][1] > places[node][1] for node in reads for source in reads[node])
    for rank in {y for _, y in places.values()}:
        row = sorted(x for x, y in places.values() if y == rank)
        assert all(b - a >= 1 - 1e-9 for a, b in itertools.pairwise(row))
    assert all(points[0] == places[source] and points[-1] == places[node] for (source, node), points in lines.items())
    assert all(a[1] - b[1] == 1 for points in lines.values() for a, b in itertools.pairwise(points))


def test_a_constant_stands_just_above_its_reader() -> None:
    places, _ = lay_out_graph_in_ranks(
        {"x": [], "a": ["x"], "b": ["a"], "constant": [], "c": ["b", "constant"]}, inputs=["x"]
    )
    assert places["constant"][1] == places["b"][1]


def test_two_chains_do_not_cross() -> None:
    reads = {"l0": [], "r0": [], "r1": ["r0"], "l1": ["l0"], "r2": ["r1"], "l2": ["l1"]}
    places, _ = lay_out_graph_in_ranks(reads)
    assert len({places[f"l{n}"][0] < places[f"r{n}"][0] for n in range(3)}) == 1
