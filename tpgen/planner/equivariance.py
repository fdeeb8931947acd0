"""Test multilinear maps for equivariance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from e3nn.o3 import Irreps
from torch import Tensor

from tpgen.base._torch import without_dispatch_modes
from tpgen.base.errors import PlanError
from tpgen.planner.coupling import wigner_3j
from tpgen.planner.generalized import Entries

_ROTATIONS = 3
TOLERANCE = 1e-6  # relative; tables are often written with 7 digits


def check_equivariant(what: str, inputs: Sequence[Irreps], output: Irreps, paths: Sequence[Entries]) -> None:
    """Raise `PlanError` unless every path is equivariant."""
    for n, path in enumerate(paths):
        size = equivariance_violation(inputs, output, path)
        if size > TOLERANCE:
            factors = " x ".join(map(str, inputs))
            raise PlanError(
                f"{what}, path {n}: the table is not an equivariant map "
                f"{factors} -> {output}: it changes by {size:.2g} "
                f"of its size under rotation or inversion (allowed: "
                f"{TOLERANCE:g}); check its entries, the order of the "
                "irreps and their parities, or leave the table out to have couplings generated"
            )


def equivariance_violation(inputs: Sequence[Irreps], output: Irreps, path: Entries) -> float:
    """Largest relative difference between mapping rotated inputs and rotating mapped inputs.

    >>> equivariance_violation([Irreps("1o"), Irreps("1o")], Irreps("0e"), {(0, i, i): 1.0 for i in range(3)}) < 1e-12
    True
    >>> equivariance_violation([Irreps("1o"), Irreps("1o")], Irreps("0o"), {(0, i, i): 1.0 for i in range(3)}) > 0.1
    True
    """
    with without_dispatch_modes():  # a number is wanted, also while shapes alone are computed
        normal = np.random.default_rng(0).standard_normal  # torch's random numbers are refused under vmap
        keys = torch.tensor(list(path), dtype=torch.int64)
        values = torch.tensor(list(path.values()), dtype=torch.float64)
        points = [torch.from_numpy(normal((8, irreps.dim))) for irreps in inputs]
        mapped = _apply_sparse_multilinear_map(keys, values, points, output.dim)
        scale = float(mapped.abs().max())
        if scale == 0.0:
            return 0.0
        worst = 0.0
        for n in range(_ROTATIONS):
            rotation = make_rotation(torch.from_numpy(normal((3, 3)))) * (-1) ** n
            turned = [x @ representation_matrix(irreps, rotation).T for x, irreps in zip(points, inputs, strict=True)]
            difference = (
                _apply_sparse_multilinear_map(keys, values, turned, output.dim)
                - mapped @ representation_matrix(output, rotation).T
            )
            worst = max(worst, float(difference.abs().max()) / scale)
        return worst


def make_rotation(matrix: Tensor) -> Tensor:
    """Rotation from the QR decomposition of a matrix."""
    orthogonal = torch.linalg.qr(matrix)[0]
    return orthogonal * torch.det(orthogonal)


def representation_matrix(irreps: Irreps, rotation: Tensor) -> Tensor:
    """Matrix of a rotation, with or without inversion, on irreps."""
    sign = torch.det(rotation).sign()
    blocks = [
        _wigner_d_by_recursion(ir.l, rotation * sign) * (1 if sign > 0 else ir.p)
        for mul, ir in irreps
        for _ in range(mul)
    ]
    return torch.block_diag(*blocks)


def _wigner_d_by_recursion(degree: int, rotation: Tensor) -> Tensor:
    # wigner's D in float64, each degree out of the one below: D(l) is D(l-1) x D(1) between 3j symbols
    if degree == 0:
        return torch.ones(1, 1, dtype=torch.float64)
    if degree == 1:
        return rotation
    c = torch.tensor(wigner_3j(degree - 1, 1, degree))
    lower = _wigner_d_by_recursion(degree - 1, rotation)
    return torch.einsum("abk,ac,bd,cdm->km", c, lower, rotation, c) * (2 * degree + 1)


def _apply_sparse_multilinear_map(indices: Tensor, values: Tensor, inputs: Sequence[Tensor], output_dim: int) -> Tensor:
    product = values.expand(inputs[0].shape[0], -1)
    for axis, x in enumerate(inputs):
        product = product * x[:, indices[:, axis + 1]]
    return torch.zeros(inputs[0].shape[0], output_dim, dtype=torch.float64).index_add(1, indices[:, 0], product)
