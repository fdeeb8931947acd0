"""The eight connection modes as einsums over multiplicity axes.

>>> MODES["uvu"].weight
'uv'
>>> MODES["uvu"].fan_in
'v'
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, prod

from tpgen.base.errors import PlanError, unknown


@dataclass(frozen=True)
class Mode:
    """Connection mode: letters of the multiplicity axes of ``in1``, ``in2`` and ``out``."""

    name: str
    in1: str
    in2: str
    out: str
    needs_weight: bool = False

    @property
    def weight(self) -> str:
        """The weight's letters, in order of first use."""
        return "".join(dict.fromkeys(self.in1 + self.in2 + self.out))

    @property
    def fan_in(self) -> str:
        """Summed input letters."""
        return "".join(a for a in dict.fromkeys(self.in1 + self.in2) if a not in self.out)

    @property
    def paired(self) -> bool:
        """Whether ``p`` enumerates pairs u < v of copies."""
        return "p" in self.in1

    @property
    def mixing(self) -> str:
        """Output letters that only the weight has."""
        return "".join(a for a in self.out if a not in self.in1 + self.in2)


MODES: dict[str, Mode] = {
    mode.name: mode
    for mode in (
        Mode("uvw", "u", "v", "w", needs_weight=True),
        Mode("uvu", "u", "v", "u"),
        Mode("uvv", "u", "v", "v"),
        Mode("uuw", "u", "u", "w"),
        Mode("uuu", "u", "u", "u"),
        Mode("uvuv", "u", "v", "uv"),
        Mode("uvu<v", "p", "p", "p"),
        Mode("u<vw", "p", "p", "w", needs_weight=True),
    )
}


# Modes of paths that no instruction names: a matrix between copies of one input, and copies that keep to themselves.
MATRIX = Mode("", "u", "", "w", needs_weight=True)
COPIES = Mode("", "u", "u", "u")


def find_mode(name: object) -> Mode:
    """Mode of this name; `PlanError` lists known modes."""
    mode = MODES.get(name) if isinstance(name, str) else None
    if mode is None:
        raise PlanError(unknown("mode", name, MODES))
    return mode


def find_axis_sizes(mode: Mode, mul_in1: int, mul_in2: int, mul_out: int, has_weight: bool) -> dict[str, int]:
    """Size of each letter of ``mode``.

    >>> find_axis_sizes(MODES["uvu"], 8, 3, 8, True)
    {'u': 8, 'v': 3}
    >>> find_axis_sizes(MODES["uvu<v"], 4, 4, 6, False)
    {'p': 6}

    Raises `PlanError` naming a broken rule.
    """
    if mode.needs_weight and not has_weight:
        raise PlanError(
            f"mode {mode.name!r} fills output axis {mode.mixing} from the weights, so it cannot be unweighted: "
            "set has_weight=True, or use 'uuu', 'uvu', 'uvv' or 'uvuv'"
        )
    if mode.paired:
        if mul_in1 != mul_in2:
            raise PlanError(
                f"mode {mode.name!r} takes row pairs u<v of both inputs, so the input 2 multiplicity must be "
                f"{mul_in1}, got {mul_in2}"
            )
        mul_in1 = mul_in2 = comb(mul_in1, 2)
    sizes: dict[str, int] = {}
    for leg, letters, mul in (
        ("input 1", mode.in1, mul_in1),
        ("input 2", mode.in2, mul_in2),
        ("output", mode.out, mul_out),
    ):
        _set_or_check_axis_size(mode, leg, letters, mul, sizes)
    if not has_weight and any(sizes[a] != 1 for a in mode.mixing):
        raise PlanError(
            f"mode {mode.name!r} without weights sums axis {mode.fan_in} into one copy, so the output multiplicity "
            f"must be 1, got {mul_out}: set has_weight=True, or give the output one copy"
        )
    return sizes


def _set_or_check_axis_size(mode: Mode, leg: str, letters: str, mul: int, sizes: dict[str, int]) -> None:
    if len(letters) == 1 and letters not in sizes:
        sizes[letters] = mul
        return
    wanted = prod(sizes[letter] for letter in letters)
    if wanted != mul:
        raise PlanError(
            f"{_describe_multiplicity_rule(mode, leg, letters)}, so the {leg} multiplicity must be {wanted}, got {mul}"
        )


def _describe_multiplicity_rule(mode: Mode, leg: str, letters: str) -> str:
    if mode.paired:
        return f"mode {mode.name!r} keeps one copy for each row pair u<v of input 1, n(n-1)/2 in all"
    if len(letters) > 1:
        return f"mode {mode.name!r} keeps every pair of axes {letters} of both inputs"
    owner = "input 1" if letters in mode.in1 else "input 2"
    return f"mode {mode.name!r} keeps axis {letters} of {owner}"
