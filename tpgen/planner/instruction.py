"""Parse irreps and instructions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from e3nn.o3 import Irreps

from tpgen.base.errors import PlanError, PlanIndexError

_T = TypeVar("_T")


class Instruction(NamedTuple):
    """Instruction ``in1[i_in1] ⊗ in2[i_in2] → out[i_out]`` with e3nn's fields.

    ``path_weight``: before normalisation.  ``path_shape``: of the weight, empty until planned.
    """

    i_in1: int
    i_in2: int
    i_out: int
    connection_mode: str
    has_weight: bool
    path_weight: float = 1.0
    path_shape: tuple[int, ...] = ()

    @property
    def user_arguments(self) -> tuple:
        """Fields that a user gives."""
        return tuple(self[:6])

    def __str__(self) -> str:
        weighted = "weighted" if self.has_weight else "unweighted"
        return f"({self.i_in1}, {self.i_in2}, {self.i_out}, {self.connection_mode!r}, {weighted})"


class BuiltInstruction(Instruction):
    """Instruction whose ``path_weight`` is the whole coefficient, for plans without normalisation."""

    __slots__ = ()


def parse_irreps(irreps: object, what: str) -> Irreps:
    """Parse irreps; `PlanError` names ``what`` and the unreadable part.

    >>> parse_irreps("2x0e+1o", "irreps_in1")
    2x0e+1x1o
    """
    try:
        if irreps is None:  # which e3nn reads as no irreps at all
            raise TypeError("nothing is given")
        return Irreps(irreps)
    except (ValueError, TypeError, AssertionError, AttributeError) as error:
        reason = _describe_unreadable_irrep(irreps) or error
        raise PlanError(f"{what}: cannot read irreps {irreps!r} ({reason}); write them like '8x0e + 4x1o'") from error


def _describe_unreadable_irrep(irreps: object) -> str:
    for piece in irreps.split("+") if isinstance(irreps, str) else ():
        try:
            Irreps(piece)
        except (ValueError, TypeError, AssertionError, AttributeError):
            return f"{piece.strip()!r} is none"
    return ""


def parse_segment_index(where: str, name: str, value: Any) -> int:
    """Convert an instruction's segment index ``name`` to an int, or raise `PlanError`."""
    if not hasattr(value, "__index__") or isinstance(value, bool):
        raise PlanError(f"{where}: {name} must be an integer, got {value!r}")
    return value.__index__()


def select_segment(where: str, end: str, index: int, segments: Sequence[_T]) -> _T:
    """Select the segment of ``irreps_<end>`` at an index, or raise `PlanIndexError`."""
    if not 0 <= index < len(segments):
        raise PlanIndexError(
            f"{where}: i_{end} = {index} is out of range: irreps_{end} has {len(segments)} entries, counted from 0"
        )
    return segments[index]


def parse_instructions(instructions: Iterable[Sequence]) -> list[Instruction]:
    """Parse tuples and `Instruction` records; refuse instructions of a built e3nn product.

    >>> parse_instructions([(0, 0, 0, "uvw", True)])[0].path_weight
    1.0
    """
    if not isinstance(instructions, Iterable):
        raise PlanError(
            f"instructions must be a list of tuples (i_in1, i_in2, i_out, mode, has_weight), got {instructions!r}"
        )
    return [_parse_instruction(index, fields) for index, fields in enumerate(instructions)]


def _parse_instruction(index: int, fields: Sequence) -> Instruction:
    if not isinstance(fields, (tuple, list)) or not 5 <= len(fields) <= 7:
        raise PlanError(
            f"instruction {index}: expected (i_in1, i_in2, i_out, mode, has_weight[, path_weight]), got {fields!r}"
        )
    if (hasattr(fields, "path_shape") or len(fields) == 7) and not isinstance(fields, Instruction):
        raise PlanError(
            f"instruction {index} is of a built e3nn product ({fields!r} ends in a path_shape): its path_weight is the "
            "final coefficient, which would be normalised once more; take the whole product over with "
            "tpgen.from_e3nn(product), or give the tuples (i_in1, i_in2, i_out, mode, has_weight[, path_weight]) that "
            "it was built from"
        )
    *slots, mode, has_weight = fields[:5]
    names = ("i_in1", "i_in2", "i_out")
    i_in1, i_in2, i_out = (
        parse_segment_index(f"instruction {index}", *pair) for pair in zip(names, slots, strict=True)
    )
    if has_weight not in (True, False):  # 'no' would count as true
        raise PlanError(f"instruction {index}: has_weight must be True or False, got {has_weight!r}")
    weight = fields[5] if len(fields) > 5 else 1.0
    try:
        path_weight = float(weight)
    except (TypeError, ValueError):
        raise PlanError(f"instruction {index}: path_weight must be a number, got {weight!r}") from None
    if not (math.isfinite(path_weight) and path_weight >= 0.0):
        raise PlanError(
            f"instruction {index}: path_weight must be finite and not negative (its square root scales the path), "
            f"got {path_weight}; put a sign into the weights instead"
        )
    kind = BuiltInstruction if isinstance(fields, BuiltInstruction) else Instruction
    return kind(i_in1, i_in2, i_out, mode, bool(has_weight), path_weight)
