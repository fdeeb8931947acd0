"""Couplings are e3nn's Wigner 3j symbols, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from e3nn import o3

from tpgen.base._e3nn import default_dtype
from tpgen.planner.coupling import count_nonzeros, wigner_3j

DEGREES = [(0, 0, 0), (0, 2, 2), (1, 1, 0), (1, 1, 1), (1, 2, 3), (2, 2, 2), (3, 2, 4), (4, 4, 5)]


@pytest.mark.parametrize("ls", DEGREES)
def test_values_are_e3nns(ls: tuple[int, int, int]) -> None:
    with default_dtype(torch.float64):
        expected = o3.wigner_3j(*ls).numpy()
    assert np.abs(wigner_3j(*ls) - expected).max() < 1e-15
    assert np.isclose((wigner_3j(*ls) ** 2).sum(), 1.0, rtol=0, atol=1e-14)


@pytest.mark.parametrize("ls", DEGREES)
def test_invariance_under_rotation(ls: tuple[int, int, int]) -> None:
    with default_dtype(torch.float64):
        angles = o3.rand_angles()
        d1, d2, d3 = (o3.wigner_D(l, *angles).numpy() for l in ls)  # noqa: E741
    c = wigner_3j(*ls)
    assert np.abs(np.einsum("ijk,ia,jb,kc->abc", c, d1, d2, d3) - c).max() < 1e-13


def test_computed_in_float64_whatever_the_default_dtype() -> None:
    wigner_3j.cache_clear()
    with default_dtype(torch.float32):
        values = wigner_3j(2, 1, 2)
    assert values.dtype == np.float64
    assert np.isclose((values**2).sum(), 1.0, rtol=0, atol=1e-14)


def test_cached_and_read_only() -> None:
    assert wigner_3j(1, 1, 2) is wigner_3j(1, 1, 2)
    with pytest.raises(ValueError, match="read-only"):
        wigner_3j(1, 1, 2)[0, 0, 0] = 1.0


def test_nonzeros() -> None:
    known = {(0, 0, 0): 1, (1, 1, 0): 3, (1, 1, 1): 6, (1, 1, 2): 11}
    assert {ls: count_nonzeros(*ls) for ls in known} == known
