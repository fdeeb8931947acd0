r"""Row rules, such as ``x1 @ src``: row z of a call reads row :math:`\text{index}[z]` of a given operand, or
adds to that row of an open operand.  Without a rule, row z has row z, or a shared row.

>>> print(*EDGES, ELEMENTS, EDGE_PAIRS, sep=", ")
x1 @ src, out @ dst, w @ element, w @ pair
>>> parse_row_rules("src dst pair") == (*EDGES, EDGE_PAIRS)
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tpgen.base.errors import BackendError, InputError, PlanError, unknown
from tpgen.base.remember import remembered

# What says the row: an index; one that kernels may be called without, then all rows have one, or each its own; or the
# row's own number, as two rows share one: row z has row z, and row z - n of n where there is none.
INDEXED, GROUPED, PAIRED = WAYS = ("indexed", "grouped", "paired")
# What the first axis of a tensor counts where no rule says so; one that all rows share has no such axis.
ROWS, SHARED = "rows", "shared"

INDEX_DTYPES = (torch.int64, torch.int32)
# bits of `RowIndex.flags`, as kernels/cpp/indices.h has them
CHECKED, NARROW = 1, 2
BEYOND = 2  # the fault of the first index out of range, then of the next; 1 is no scratch space


@dataclass(frozen=True, eq=False)
class RowRule:
    """Rule by which each row of a kernel call finds its row of one operand: by index, group or pair."""

    name: str  # of the index in kernels
    operand: str  # whose rows: of a product; the weights of a polynomial are all w
    into: str  # what the rows of the operand are
    argument: str  # the index in messages
    beyond: str  # what a message says where its numbers are not all inside, with the last of them
    way: str = INDEXED
    narrow: bool = False  # whether the index may be int32
    unchecked: bool = False  # whether a description may say that it is not checked

    def __str__(self) -> str:
        return f"{self.operand} @ {self.name}"

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Allowed dtypes of the index."""
        return INDEX_DTYPES if self.narrow else INDEX_DTYPES[:1]

    def checked(self, check_index: bool) -> bool:
        """Whether kernels check the index's range."""
        return check_index or not self.unchecked

    @property
    def takes_index(self) -> bool:
        return self.way != PAIRED


_BEYOND = " holds an index out of range: indices run from 0 to {}"
_END = (INDEXED, True, True)  # of edges
SOURCES = RowRule("src", "x1", "sources", "edge_src", _BEYOND + ", the rows of x1", *_END)
DESTINATIONS = RowRule("dst", "out", "destinations", "edge_dst", _BEYOND + ", below num_nodes", *_END)
ELEMENTS = RowRule("element", "w", "elements", "index", ": elements run from 0 to {}", GROUPED)
EDGE_PAIRS = RowRule("pair", "w", "pairs", "", "", PAIRED)
RULES = {rule.name: rule for rule in (SOURCES, DESTINATIONS, ELEMENTS, EDGE_PAIRS)}
EDGES = (SOURCES, DESTINATIONS)

RowRules = tuple[RowRule, ...]


@remembered("rules of rows")
def parse_row_rules(text: str) -> RowRules:
    """Parse names of row rules.

    Raises `PlanError` for unknown names, two rules of one operand, or another order than `RULES`.
    """
    names = text.split()
    for name in names:
        if name not in RULES:
            raise PlanError(unknown("row rule", name, RULES))
    rules = tuple(RULES[name] for name in names)
    if len({rule.operand for rule in rules}) < len(rules):
        raise PlanError(f"rows {text!r}: an operand has one rule, got two of one")
    if [*rules] != [rule for rule in RULES.values() if rule in rules]:
        raise PlanError(f"rows {text!r}: rules come in the order of {', '.join(RULES)}")
    return rules


def join_rule_names(rules: Sequence[RowRule]) -> str:
    """Join the names of row rules by spaces.

    >>> join_rule_names(EDGES)
    'src dst'
    """
    return " ".join(rule.name for rule in rules)


class RowIndex(NamedTuple):
    """A row rule in one call, with index tensor and sort order."""

    rule: RowRule
    tensor: Tensor | None = None
    size: int = 0  # of the operand's tensors, where there is one
    order: Tensor | None = None  # as `tpgen::order` makes it
    check: bool = True

    @property
    def flags(self) -> int:
        """Bits for C++ kernels: index checked, index int32."""
        narrow = self.tensor is not None and self.tensor.dtype == torch.int32
        return self.check * CHECKED | narrow * NARROW


def find_index(indices: Sequence[RowIndex], operand: str) -> RowIndex | None:
    return next((index for index in indices if index.rule.operand == operand), None)


def select_summed_operands(computed: Sequence[str], rules: RowRules) -> tuple[str, ...]:
    """Select computed operands whose rows sum rows of the call, by an index tensor.

    >>> select_summed_operands(("x1", "x2", "w"), (*EDGES, EDGE_PAIRS))
    ('x1',)
    """
    found = [rule.operand for rule in rules if rule.takes_index]
    return tuple(slot for slot in computed if slot in found)


def make_fault_error(code: int, indices: Sequence[RowIndex]) -> Exception:
    """Exception for a kernel's fault code."""
    if code < BEYOND:
        return BackendError("a kernel stopped: out of memory for scratch space; use smaller batches")
    index = indices[code - BEYOND]
    assert index.tensor is not None
    rule, (low, high) = index.rule, map(int, index.tensor.aminmax())
    return InputError(f"{rule.argument}{rule.beyond.format(index.size - 1)}, got {low} to {high}")


def find_index_fault(indices: Sequence[RowIndex]) -> int:
    """Fault code of the first index out of range, or 0."""
    for n, index in enumerate(indices):
        if index.check and index.tensor is not None and index.tensor.numel():
            low, high = index.tensor.aminmax()
            if low < 0 or high >= index.size:
                return BEYOND + n
    return 0
