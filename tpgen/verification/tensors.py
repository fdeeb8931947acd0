"""Tensors whose last axis holds irreps: turned, and in another layout."""

from __future__ import annotations

import torch
from e3nn.o3 import Irreps
from torch import Tensor

from tpgen.planner.equivariance import representation


def transform(x: Tensor, irreps: Irreps, layout: str, matrix: Tensor) -> Tensor:
    """Rotate or reflect ``x (..., irreps)``, segment by segment: the whole matrix would be large."""
    return _by_segment(x, irreps, layout, layout, matrix)


def change_layout(x: Tensor, irreps: Irreps, layout: str, to: str) -> Tensor:
    """Returns the tensor with its last axis in another layout.

    >>> change_layout(torch.arange(6.0), Irreps("2x1o"), "mul_ir", "ir_mul")
    tensor([0., 3., 1., 4., 2., 5.])
    """
    return _by_segment(x, irreps, layout, to, None)


def _by_segment(x: Tensor, irreps: Irreps, layout: str, to: str, matrix: Tensor | None) -> Tensor:
    pieces = []
    for (mul, ir), where in zip(irreps, irreps.slices(), strict=True):
        shape, transposed = ((mul, ir.dim), False) if layout == "mul_ir" else ((ir.dim, mul), True)
        piece = x[..., where].reshape(*x.shape[:-1], *shape)
        piece = piece.transpose(-1, -2) if transposed else piece
        if matrix is not None:
            piece = piece @ representation(Irreps([(1, ir)]), matrix).T
        piece = piece if to == "mul_ir" else piece.transpose(-1, -2)
        pieces.append(piece.flatten(-2))
    return torch.cat(pieces, dim=-1) if pieces else x
