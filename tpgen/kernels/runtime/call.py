"""Calls of kernels as values, from the operators down to the compiled function.

A `FormCall` is any call of a form; a `ProductCall` one of a product without levels, in a fixed number of arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

from torch import Tensor

from tpgen.base.errors import InputError
from tpgen.form.call import Call as Slots
from tpgen.form.call import Slot
from tpgen.kernels.sweep.terms import SLOTS

ORDERS = ("by_src", "by_dst")  # the last fields of calls
SLOT_BITS = X1, X2, W, OUT = tuple(1 << n for n in range(4))


# What the first axis of a tensor counts; one that all rows share has no such axis.
COUNTS = ("rows", "shared", "sources", "destinations", "elements", "pairs")
ROWS, SHARED, SOURCES, DESTINATIONS, ELEMENTS, PAIRS = COUNTS


class OperandShape(NamedTuple):
    """Shape of an operand's tensors: what their first axis counts, and the numbers of a row.

    With ``channels`` a row holds any number of channels of ``dim`` numbers each.  A row stands on one axis where
    ``flat``, else on any axes.
    """

    dim: int
    counts: str = ROWS
    irreps: str = ""
    channels: bool = False
    flat: bool = True


class FormCall(NamedTuple):
    """Tensors of the given slots in the order of a call's text, the indices of their rows, and what they belong to.

    A named tuple, because autograd and torch.func take arguments by position: positions have their names here alone.
    """

    tensors: Sequence[Tensor]
    src: Tensor | None  # of each row: the row of x1
    dst: Tensor | None  # of each row: the row of out
    description: str
    call: str
    elements: Tensor | None = None  # of each row: the element, where weights have elements
    nodes: int = 0  # rows of out, where it is found by an index and not given
    by_src: Tensor | None = None  # as `tpgen::order` makes them: of src, for x1
    by_dst: Tensor | None = None

    @property
    def indexed(self) -> bool:
        """Whether rows are edges."""
        return self.src is not None or self.dst is not None

    @property
    def slots(self) -> Slots:
        """The slots that are given and opened.  Raises `PlanError` where the text is no call."""
        return Slots.parse(self.call)

    def listed(self) -> FormCall:
        """Returns the call as it is."""
        return self

    def fixed(self) -> ProductCall | None:
        """A product's call in a fixed number of arguments; None where it has levels, or other tensors."""
        mask, given = MASKS.get(self.call), len(self.tensors)
        if mask is None or self.elements is not None or given != (3 if mask == OUT else 4):
            return None
        x1, x2, w, *others = self.tensors
        g = others[0] if others else None
        own = self.src, self.dst, self.description, mask, self.nodes, self.by_src, self.by_dst
        return ProductCall(x1, x2, w, g, *own)


class ProductCall(NamedTuple):
    """Four operands, one of which may be open alone and absent, the slots to open, and the edges of a convolution."""

    x1: Tensor
    x2: Tensor
    w: Tensor
    g: Tensor | None  # the cotangent of the product
    src: Tensor | None
    dst: Tensor | None
    description: str
    mask: int  # bits of the open slots
    nodes: int = 0  # rows of the product, where it is indexed and not given
    by_src: Tensor | None = None  # orders of the edges by both ends, where somebody has made them
    by_dst: Tensor | None = None

    def listed(self) -> FormCall:
        """Returns the call with its tensors as a list, those that it reads.  Raises `InputError` for a mask of none."""
        x1, x2, w, g, src, dst, description, mask, nodes, *orders = self
        if not 0 < mask < 16:
            raise InputError(f"mask must have one to four of the bits 1 (x1), 2 (x2), 4 (w), 8 (out), got {mask}")
        if g is not None and mask == OUT:  # its rows alone are needed
            nodes, g = g.shape[0] if g.dim() else 0, None
        tensors = (x1, x2, w) if g is None else (x1, x2, w, g)
        return FormCall(tensors, src, dst, description, opening_text(mask), None, nodes, *orders)


def call_of(opened: tuple[str, ...]) -> Slots:
    """The call without levels that opens some operands of a product; the cotangent is given where it is read.

    >>> print(call_of(("out",)))
    x1 x2 w -> out
    >>> print(call_of(("x1", "out")))
    x1 x2 w out -> x1 out
    """
    given = SLOTS[:3] if opened == ("out",) else SLOTS
    return Slots(tuple(map(Slot, given)), tuple(map(Slot, opened)))


@cache
def opening_text(mask: int) -> str:
    """The text of the call that opens the slots of a mask."""
    return str(call_of(slots_of(mask)))


@cache
def slots_of(mask: int) -> tuple[str, ...]:
    """Names of the slots in a mask.

    >>> slots_of(X1 | OUT)
    ('x1', 'out')
    """
    return tuple(slot for slot, bit in zip(SLOTS, SLOT_BITS, strict=True) if mask & bit)


MASKS = {opening_text(mask): mask for mask in range(1, 16)}  # of a product's calls without levels


@cache
def sweeps_of(mask: int) -> tuple[int, ...]:
    """Masks of the kernels that open the slots of a mask on edges: x1 and out are summed in different orders.

    >>> sweeps_of(X1 | W | OUT)
    (5, 8)
    """
    return (mask & ~OUT, OUT) if mask & X1 and mask & OUT else (mask,)


def mask_of(call: Slots) -> int:
    """The mask of the slots that a product's call opens."""
    return sum(SLOT_BITS[SLOTS.index(slot.operand)] for slot in call.opened)


# What each operator is given, in the order of its schema, as a call.
CALLS: dict[str, Callable[..., ProductCall | FormCall]] = {
    "product": lambda x1, x2, w, text, src=None, dst=None, nodes=0: ProductCall(
        x1, x2, w, None, src, dst, text, OUT, nodes
    ),
    "gradients": lambda x1, x2, w, g, text, mask, src=None, dst=None: ProductCall(x1, x2, w, g, src, dst, text, mask),
    "sorted": lambda x1, x2, w, g, text, mask, src, dst, *more: ProductCall(x1, x2, w, g, src, dst, text, mask, *more),
    "form": FormCall,
}
