"""Equivariant multilinear maps, chained from real Wigner 3j symbols."""

# A path couples an irrep of each further factor to an irrep of the first, in the order of MACE's U_matrix_nu:
# U^n[k, i ... j] = sqrt(2 l_k + 1) sum_m C[k, m, j] U^(n-1)[m, i ...], from U^1 = 1

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from e3nn.o3 import Irrep, Irreps

from tpgen.base.errors import PlanError
from tpgen.base.remember import remembered
from tpgen.planner.coupling import wigner_3j
from tpgen.planner.plan import list_segments

MAX_DEGREE = 4
_NOISE = 1e-10

# (indices of the output and of every factor) -> value: one sparse map
Entries = dict[tuple[int, ...], float]
_Path = tuple[Irrep, np.ndarray]  # the irrep reached so far, and its map [component, i_1, ..., i_nu]


def generalized_couplings(
    factors: Sequence[Irreps | str], output: Irrep | str, natural_parity: bool = False
) -> np.ndarray:
    """All paths to an irrep, ``[component, i_1, ..., i_nu, path]``, MACE's ``U_matrix_nu``.

    ``natural_parity``: only through irreps of parity (-1)^l.

    >>> generalized_couplings(["0e+1o", "0e+1o"], "0e").shape
    (1, 4, 4, 2)

    Raises `PlanError` unless the degree is 1 to 4.
    """
    factors = _parse_irreps_of_factors(factors)
    found = list(_list_paths_to_irrep(factors, Irrep(output), natural_parity))
    shape = (Irrep(output).dim, *(f.dim for f in factors))
    return np.stack(found, axis=-1) if found else np.zeros((*shape, 0))


def symmetrized_couplings(
    factors: Sequence[Irreps | str],
    output: Irrep | str,
    tensor_names: Sequence[object] | None = None,
    natural_parity: bool = False,
) -> list[Entries]:
    """Paths to an irrep, each ``{(component, i_1, i_2, ...): value}``, of symmetric products.

    ``tensor_names``: one per factor (default: all equal).  Indices of one tensor descend: entries with exchanged
    indices are summed.

    >>> symmetrized_couplings(["1o", "1o"], "1e")  # a vector crossed with itself
    [{}]
    >>> {index: round(value, 4) for index, value in symmetrized_couplings(["1o", "1o"], "0e")[0].items()}
    {(0, 0, 0): 0.5774, (0, 1, 1): 0.5774, (0, 2, 2): 0.5774}
    """
    factors = _parse_irreps_of_factors(factors)
    groups = [0] * len(factors) if tensor_names is None else tensor_names
    return [
        _symmetrize_path_within_groups(path, groups)
        for path in _list_paths_to_irrep(factors, Irrep(output), natural_parity)
    ]


def drop_dependent_paths(paths: Sequence[Entries]) -> list[Entries]:
    """Keep the first linearly independent paths, in order.

    >>> paths = symmetrized_couplings(["0e+1o"] * 3, "0e")
    >>> len(paths), len(drop_dependent_paths(paths))
    (4, 2)
    """
    keys = sorted({key for path in paths for key in path})
    basis: list[np.ndarray] = []
    kept = []
    for path in paths:
        vector = np.array([path.get(key, 0.0) for key in keys])
        rest = vector - sum((b * (b @ vector) for b in basis), np.zeros(len(keys)))
        rest -= sum((b * (b @ rest) for b in basis), np.zeros(len(keys)))
        if np.abs(rest).max(initial=0.0) > 1e-8:
            basis.append(rest / np.linalg.norm(rest))
            kept.append(path)
    return kept


def _parse_irreps_of_factors(factors: Sequence[Irreps | str]) -> tuple[Irreps, ...]:
    if not 1 <= len(factors) <= MAX_DEGREE:
        raise PlanError(
            f"a coupling has 1 to {MAX_DEGREE} factors, got {len(factors)}: split the term, or lower the degree"
        )
    return tuple(Irreps(f) for f in factors)


def _list_paths_to_irrep(factors: tuple[Irreps, ...], output: Irrep, natural_parity: bool) -> Iterator[np.ndarray]:
    found: Iterable[_Path] = _list_paths_of_one_factor(factors[0])
    if len(factors) > 1:
        found = _couple_one_more_factor(
            _list_paths_to_all_irreps(tuple(map(str, factors[:-1])), natural_parity),
            factors[-1],
            natural_parity,
            output,
        )
    return (path for ir, path in found if ir == output)


@remembered("couplings of several factors")
def _list_paths_to_all_irreps(factors: tuple[str, ...], natural_parity: bool) -> tuple[_Path, ...]:
    last = Irreps(factors[-1])
    if len(factors) == 1:
        return tuple(_list_paths_of_one_factor(last))
    return tuple(
        sorted(
            _couple_one_more_factor(
                _list_paths_to_all_irreps(factors[:-1], natural_parity), last, natural_parity, None
            ),
            key=lambda path: path[0],
        )
    )


def _list_paths_of_one_factor(irreps: Irreps) -> Iterator[_Path]:
    for segment in list_segments(irreps):
        for components in np.eye(irreps.dim)[segment.start : segment.stop].reshape(segment.mul, segment.ir.dim, -1):
            yield segment.ir, components


def _couple_one_more_factor(
    paths: Iterable[_Path], factor: Irreps, natural_parity: bool, output: Irrep | None
) -> Iterator[_Path]:
    for left, map_ in paths:
        for segment in list_segments(factor):
            ir = segment.ir
            for out in left * ir:
                if (output is not None and out != output) or (natural_parity and out.p != (-1) ** out.l):
                    continue
                block = np.tensordot(wigner_3j(out.l, left.l, ir.l), map_, axes=(1, 0)) * out.dim**0.5
                block = np.moveaxis(block, 1, -1)
                for start in range(segment.start, segment.stop, ir.dim):
                    whole = np.zeros((*block.shape[:-1], factor.dim))
                    whole[..., start : start + ir.dim] = block
                    yield out, whole


def _symmetrize_path_within_groups(path: np.ndarray, factor_groups: Sequence[object]) -> Entries:
    where = np.argwhere(np.abs(path) > _NOISE)
    columns = where[:, 1:].copy()
    for group in dict.fromkeys(factor_groups):
        places = [n for n, g in enumerate(factor_groups) if g == group]
        columns[:, places] = -np.sort(-columns[:, places], axis=1)
    entries: Entries = {}
    for (k, *_), index, value in zip(where.tolist(), columns.tolist(), path[tuple(where.T)].tolist(), strict=True):
        key = (k, *index)
        entries[key] = entries.get(key, 0.0) + value
    return {key: value for key, value in sorted(entries.items()) if abs(value) > _NOISE}
