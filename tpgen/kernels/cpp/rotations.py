"""Transposes of wide tiles as rotations: few shuffles, most of which only blend.

``W`` items of ``D`` numbers lie in memory as vectors ``m[j]``, whose lane e is component ``d = (W j + e) mod D`` of an
item.  Where D and W have no common factor, one permutation of each ``v[d]`` brings all of its items to the lanes that
they have in memory.  What is left moves between vectors and keeps its lane: with the permuted vectors in the order
``t[k] = v[W k mod D]``, lane e of ``m[j]`` is that of ``t[j + s(e)]``, where ``s(e) = e / W mod D``.  That is a
rotation by every binary digit of s(e): a round of D blends for each digit, the same lanes in all of them.
"""

from __future__ import annotations

from itertools import pairwise
from math import gcd


def order(lanes: list[int]) -> str:
    return ", ".join(map(str, lanes))


def rotates(lanes: int, width: int) -> bool:
    """Whether that is fewer shuffles than to put every vector together from all that it has numbers of.

    >>> [d for d in range(1, 16) if rotates(16, d)], [d for d in range(1, 16) if rotates(4, d)]
    ([5, 7, 9, 11, 13, 15], [])
    """
    return gcd(lanes, width) == 1 and 1 + _rounds(width) <= min(lanes, width) - 1


def split(lanes: int, width: int) -> list[str]:
    """Statements that make ``v`` of ``m``: the rotations back, then the permutations."""
    rounds = ["m", *_between(width), f"t[{_rounds(width) - 1}]"]
    turned = [
        f"v[{d}] = {_shuffled(f'{rounds[-1]}[{k}]', '', [(c * width + d) % lanes for c in range(lanes)])};"
        for k, d in enumerate(_components(lanes, width))
    ]
    return [_declared(width), *_rotate(lanes, width, -1, rounds), *turned]


def join(lanes: int, width: int) -> list[str]:
    """Statements that make ``m`` of ``v``: the permutations, then the rotations."""
    inverse = pow(width, -1, lanes)
    rounds = [f"t[{_rounds(width) - 1}]", *_between(width), "m"]
    turned = [
        f"{rounds[0]}[{k}] = {_shuffled(f'v[{d}]', '', [(e - d) * inverse % lanes for e in range(lanes)])};"
        for k, d in enumerate(_components(lanes, width))
    ]
    return [_declared(width), *turned, *_rotate(lanes, width, 1, rounds)]


def _rounds(width: int) -> int:
    return (width - 1).bit_length()


def _declared(width: int) -> str:
    return f"vec t[{_rounds(width)}][{width}];"


def _between(width: int) -> list[str]:
    """Arrays of vectors between the first round and the last."""
    return [f"t[{n}]" for n in range(_rounds(width) - 1)]


def _components(lanes: int, width: int) -> list[int]:
    return [lanes * k % width for k in range(width)]


def _rotate(lanes: int, width: int, sign: int, rounds: list[str]) -> list[str]:
    """Rounds of blends: vector j takes some lanes of the one that is 1, 2, 4 ... places on."""
    shifts = [e * pow(lanes, -1, width) % width for e in range(lanes)]
    # of the second vector where a digit is set
    digits = [[e + lanes * (shift >> n & 1) for e, shift in enumerate(shifts)] for n in range(len(rounds) - 1)]
    return [
        f"{new}[{j}] = {_shuffled(f'{old}[{j}]', f'{old}[{(j + sign * 2**n) % width}]', digits[n])};"
        for n, (old, new) in enumerate(pairwise(rounds))
        for j in range(width)
    ]


def _shuffled(first: str, second: str, lanes: list[int]) -> str:
    return f"__builtin_shufflevector({first}, {second or first}, {order(lanes)})"
