"""Calls of kernels as values, from the operators down to the compiled function."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from torch import Tensor

from tpgen.base.errors import InputError
from tpgen.form.call import Call as Slots
from tpgen.form.call import Slot
from tpgen.kernels.rows import ROWS, RowIndex, Rules, index_at, names_of, rules_of
from tpgen.kernels.sweep.terms import SLOTS
from tpgen.planner.plan import OUT


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
    """Tensors of the given slots in the order of a call's text, how rows find theirs, and what they belong to."""

    tensors: Sequence[Tensor]
    indices: tuple[RowIndex, ...]
    description: str
    call: str

    @property
    def rules(self) -> Rules:
        return tuple(index.rule for index in self.indices)

    @property
    def slots(self) -> Slots:
        """The slots that are given and opened.  Raises `PlanError` where the text is no call."""
        return Slots.parse(self.call)

    @property
    def nodes(self) -> int:
        """Rows of out, where an index finds them: of use where no tensor says so."""
        index = index_at(self.indices, OUT)
        return index.size if index else 0

    def arguments(self) -> tuple[Any, ...]:
        """The call as the operator takes it: behind the indices their orders, where somebody has sorted them."""
        indices = [index.tensor for index in self.indices if index.tensor is not None]
        ordered = [index for index in self.indices if index.order is not None]
        indices += [index.order for index in ordered if index.order is not None]
        found = (list(self.tensors), indices, self.description, self.call, names_of(self.rules), self.nodes)
        return (*found, names_of([index.rule for index in ordered])) if ordered else found

    @staticmethod
    def read(
        tensors: Sequence[Any],
        indices: Sequence[Any],
        description: str,
        call: str,
        rows: str = "",
        nodes: Any = 0,
        ordered: str = "",
    ) -> FormCall:
        """The call of an operator's arguments: ``rows`` are names of rules, in the order of their ``indices``.

        Raises `InputError` where these are not as many, `PlanError` where a name is none.
        """
        sorts = ordered.split()
        own = list(indices[: len(indices) - len(sorts)])
        known = dict(zip(sorts, indices[len(own) :], strict=True))
        found = []
        for rule in rules_of(rows):
            index = own.pop(0) if rule.takes_index and own else None
            found.append(RowIndex(rule, index, nodes if rule.operand == OUT else 0, known.get(rule.name)))
        if own:
            raise InputError(f"rows {rows!r}: there are {len(own)} indices more than rules that take one")
        return FormCall(tensors, tuple(found), description, call)


def call_of(opened: tuple[str, ...]) -> Slots:
    """The call without levels that opens some operands of a product; the cotangent is given where it is read.

    >>> print(call_of(("out",)))
    x1 x2 w -> out
    >>> print(call_of(("x1", "out")))
    x1 x2 w out -> x1 out
    """
    given = SLOTS[:3] if opened == (OUT,) else SLOTS
    return Slots(tuple(map(Slot, given)), tuple(map(Slot, opened)))


@cache
def opening(*opened: str) -> str:
    """The text of the call that opens some operands of a product.

    >>> opening("out")
    'x1 x2 w -> out'
    """
    return str(call_of(opened))
