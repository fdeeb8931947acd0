"""What a kernel is asked for: one value, from the operators down to the compiled function."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from torch import Tensor

Dim = int | None


class Call(NamedTuple):
    """Four operands, one of which may be open alone and absent, the slots to open, and the edges of a convolution.

    A named tuple, because autograd and torch.func take arguments by position: positions have their names here alone.
    torch.func's ``in_dims`` are a `Call` of dimensions in the same way.
    """

    x1: Tensor
    x2: Tensor
    w: Tensor
    g: Tensor | None  # the cotangent of the product
    src: Tensor | None
    dst: Tensor | None
    description: str
    mask: int  # bits of the open slots
    nodes: int = 0  # rows of the product, where it is indexed

    @property
    def point(self) -> tuple[Tensor | None, ...]:
        """What stands in the slots."""
        return self.x1, self.x2, self.w, self.g

    @property
    def indexed(self) -> bool:
        return self.src is not None

    @property
    def rows(self) -> int:
        """Rows of the product's result."""
        if self.g is not None:
            return self.g.shape[0] if self.g.dim() else 0
        return self.nodes if self.indexed else self.x2.shape[0]

    def opening(self, mask: int) -> Call:
        return self._replace(mask=mask)

    def tensors(self) -> tuple[Tensor, ...]:
        """The operands that are there."""
        return tuple(x for x in self.point if x is not None)


SLOT_BITS = X1, X2, W, OUT = tuple(1 << n for n in range(4))


@cache
def slots_in(mask: int) -> tuple[int, ...]:
    """Positions of the slots in a mask.

    >>> slots_in(X1 | OUT)
    (0, 3)
    """
    return tuple(n for n, bit in enumerate(SLOT_BITS) if mask & bit)


def mask_of(chosen: Any) -> int:
    """The mask of the slots that are chosen, by position."""
    return sum(bit for bit, yes in zip(SLOT_BITS, chosen, strict=False) if yes)
