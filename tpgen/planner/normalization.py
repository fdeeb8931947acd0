"""Path coefficients, with all normalisations (source: https://arxiv.org/abs/2207.09453)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod, sqrt


@dataclass(frozen=True)
class PathScale:
    """Numbers that determine one path's coefficient."""

    i_out: int
    dims: tuple[int, int, int]  # 2l+1 of in1, in2, out
    fan_in: int  # number of summed multiplicity terms
    variance_in: float  # in1_var * in2_var of the segments it reads
    variance_out: float
    path_weight: float


@dataclass(frozen=True)
class Factors:
    """Factors of a path's coefficient sqrt(irrep / path * variance * weight)."""

    irrep: float
    path: float
    variance_out: float
    path_weight: float

    @property
    def coefficient(self) -> float:
        alpha = self.irrep / self.path if self.path > 0.0 else self.irrep
        return sqrt(alpha * self.variance_out * self.path_weight)


IRREP_NORMALIZATIONS: dict[str, Callable[[tuple[int, int, int]], float]] = {
    # every component of the output has variance 1
    "component": lambda dims: dims[2],
    # the output has norm 1 where both inputs have norm 1
    "norm": lambda dims: dims[0] * dims[1],
    "none": lambda dims: 1,
}


# Each takes the paths into one output segment and returns n_p for each of them.
PATH_NORMALIZATIONS: dict[str, Callable[[Sequence[PathScale]], list[float]]] = {
    # every summed element of an output counts alike, whichever path it comes from
    "element": lambda siblings: [sum(s.variance_in * s.fan_in for s in siblings)] * len(siblings),
    # every path into an output counts alike, however many elements it sums
    "path": lambda siblings: [s.variance_in * s.fan_in * len(siblings) for s in siblings],
    "none": lambda siblings: [1.0] * len(siblings),
}


def find_path_factors(paths: Sequence[PathScale], irrep_normalization: str, path_normalization: str) -> list[Factors]:
    """Factors of every path, in order."""
    by_output: dict[int, list[int]] = {}
    for index, path in enumerate(paths):
        by_output.setdefault(path.i_out, []).append(index)
    scale: dict[int, float] = {}
    for siblings in by_output.values():
        numbers = PATH_NORMALIZATIONS[path_normalization]([paths[index] for index in siblings])
        scale.update(zip(siblings, numbers, strict=True))
    irrep = IRREP_NORMALIZATIONS[irrep_normalization]
    return [Factors(irrep(p.dims), scale[n], p.variance_out, p.path_weight) for n, p in enumerate(paths)]


def fan_in(letters: str, sizes: dict[str, int]) -> int:
    """Product of the letters' sizes."""
    return prod(sizes[a] for a in letters)
