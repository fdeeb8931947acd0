"""Wigner 3j symbols of e3nn, cached."""

from __future__ import annotations

import numpy as np
import torch
from e3nn import o3

from tpgen.base._torch import without_dispatch_modes
from tpgen.base.remember import remembered

# e3nn's symbols carry rounding noise of about 1e-17 where the exact value is zero; true entries are
# far larger (the smallest up to l = 11 is above 1e-6).
_NOISE = 1e-12


@remembered("Wigner 3j symbols")
def wigner_3j(l1: int, l2: int, l3: int) -> np.ndarray:
    """Real Wigner 3j symbol ``C[i, j, k]`` of norm 1, read-only.

    >>> wigner_3j(1, 1, 0).round(4).squeeze()
    array([[0.5774, 0.    , 0.    ],
           [0.    , 0.5774, 0.    ],
           [0.    , 0.    , 0.5774]])
    """
    with without_dispatch_modes():  # a number is wanted, also while shapes alone are computed
        values = o3.wigner_3j(l1, l2, l3, dtype=torch.float64, device="cpu").numpy().copy()
    values[np.abs(values) < _NOISE] = 0.0
    values.flags.writeable = False
    return values


def count_nonzeros(l1: int, l2: int, l3: int) -> int:
    """Count a coupling's non-zero entries.

    >>> count_nonzeros(1, 1, 1)
    6
    """
    return int(np.count_nonzero(wigner_3j(l1, l2, l3)))
