"""Channels as copies."""

# annotations are objects, not strings: TorchScript reads them

from typing import List, Tuple  # noqa: UP035 (TorchScript reads them)

import torch
from torch import Tensor

Pieces = List[Tuple[int, int]]  # noqa: UP006  # size of a segment, and of those of its axes that stand before its copies


def merge_channels(x: Tensor, pieces: List[Tuple[int, int]]) -> Tensor:  # noqa: UP006
    """Reshape ``(…, f, dim)`` into ``(…, f dim)``: channels f become copies of each segment.

    ``pieces``: sizes of each segment, and of axes ahead of copies.

    >>> merge_channels(torch.tensor([[1, 2, 3], [4, 5, 6]]), [(2, 1), (1, 1)]).tolist()
    [1, 2, 4, 5, 3, 6]
    """
    if len(pieces) == 0:
        return x.flatten(-2)
    parts = torch.split(x, [size for size, _ in pieces], dim=-1)
    merged = [
        part.unflatten(-1, [piece[1], piece[0] // piece[1]]).transpose(-3, -2).flatten(-3)
        for part, piece in zip(parts, pieces)  # noqa: B905 (TorchScript knows no strict)
    ]
    return torch.cat(merged, -1)


def split_channels(x: Tensor, channels: int, pieces: List[Tuple[int, int]]) -> Tensor:  # noqa: UP006
    """Invert `merge_channels`: reshape ``(…, f dim)`` into ``(…, f, dim)``.

    >>> split_channels(torch.tensor([1, 2, 4, 5, 3, 6]), 2, [(2, 1), (1, 1)]).tolist()
    [[1, 2, 3], [4, 5, 6]]
    """
    if len(pieces) == 0:
        return x.unflatten(-1, [channels, 0])
    parts = torch.split(x, [channels * size for size, _ in pieces], dim=-1)
    apart = [
        part.unflatten(-1, [piece[1], channels, piece[0] // piece[1]]).transpose(-3, -2).flatten(-2)
        for part, piece in zip(parts, pieces)  # noqa: B905
    ]
    return torch.cat(apart, -1)
