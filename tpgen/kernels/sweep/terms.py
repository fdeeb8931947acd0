"""The paths of a form as a kernel sees them: legs, copies, and the coupling as a list of its non-zeros."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tpgen.form.call import Call, Slot
from tpgen.form.form import Form, LetteredLeg, Term
from tpgen.planner.modes import MODES, Mode

SLOTS = ("x1", "x2", "w", "out")
_LINEAR = Mode("uw", "u", "", "w", needs_weight=True)  # a linear layer's: a product without a second input
P, D = BETWEEN = ("P", "D")  # between the stages of a path that mixes copies: inputs coupled, and weighted cotangents
S = "S"  # sums over channels that a later stage folds into the gradient of a table's operand
INDEX = {"x1": "i", "x2": "j", "out": "k"}  # the letter of each operand's irrep axis


def row_lengths(form: Form) -> tuple[int, int, int, int]:
    """Row lengths of x1, x2, w and out; zero where a form has no such operand."""
    found = {operand.name: operand.dim for operand in form.operands}
    d1, d2, dw, dout = (found.get(slot, 0) for slot in SLOTS)
    return d1, d2, dw, dout


def given_slots(opened: tuple[str, ...]) -> tuple[str, ...]:
    """The slots that hold an operand: all but one that is open alone, whose value no result depends on.

    >>> given_slots(("out",)), given_slots(("x1", "w"))
    (('x1', 'x2', 'w'), ('x1', 'x2', 'w', 'out'))
    """
    return tuple(slot for slot in SLOTS if slot not in opened or len(opened) > 1)


def operand_of(slot: str) -> str:
    """The operand of a slot, given by its name.

    >>> operand_of("x1.1"), operand_of("out")
    ('x1', 'out')
    """
    return slot.partition(".")[0]


def raised_call(opened: tuple[str, ...], raised: tuple[str, ...]) -> Call:
    """The derivative of the gradients of a form: what stands at level 1 are their cotangents.

    >>> print(raised_call(("x1", "out"), ("x2", "w")))
    x1 x2 w out x2.1 w.1 -> x1 out
    """
    given = (*(Slot(name) for name in SLOTS), *(Slot(name, 1) for name in raised))
    return Call(given, tuple(Slot(name) for name in opened))


@dataclass(frozen=True)
class CouplingEntry:
    """One non-zero of a coupling, the path's coefficient multiplied in."""

    i: int
    j: int
    k: int
    value: float

    def at(self, letter: str) -> int:
        return int(getattr(self, letter))


@dataclass(frozen=True)
class PathTerm:
    """One path: ``sum over copies and entries of  value * w * x1[i] * x2[j] * g[k]``."""

    path: int
    text: str
    mode: Mode
    legs: tuple[LetteredLeg, ...]
    sizes: tuple[tuple[str, int], ...]
    entries: tuple[CouplingEntry, ...]
    pairs: int  # copies of each input, where the mode runs over their pairs

    @property
    def weighted(self) -> bool:
        return self.leg("w") is not None

    @property
    def copies(self) -> tuple[tuple[str, int], ...]:
        """Letters and sizes of the multiplicity axes."""
        mode = self.mode
        return tuple((a, n) for a, n in self.sizes if a in mode.in1 + mode.in2 + mode.out + mode.weight)

    @property
    def inputs(self) -> str:
        """Input letters, the rows of a weight matrix."""
        return "".join(dict.fromkeys(self.mode.in1 + self.mode.in2))

    @property
    def mixes(self) -> bool:
        """Whether weights fill copies of the output from a coupling of both inputs."""
        return bool(self.mode.mixing) and self.leg("x2") is not None

    def leg(self, operand: str) -> LetteredLeg | None:
        return next((leg for leg in self.legs if leg.operand == operand), None)

    def segment(self, operand: str) -> int:
        return next(leg.segment for leg in self.legs if leg.operand == operand)

    def size(self, letters: str) -> int:
        sizes = dict(self.sizes)
        return prod(sizes[a] for a in letters)

    def indices(self, operand: str) -> list[int]:
        """Components of an operand that some entry reads."""
        return sorted({e.at(INDEX[operand]) for e in self.entries}) if operand in INDEX else [0]

    def reaches(self, opened: tuple[str, ...]) -> bool:
        """Whether the path has a part in some open slot: one without weights has none in theirs."""
        return any(self.leg(slot) for slot in opened)


def path_terms(form: Form) -> tuple[PathTerm, ...]:
    """The terms of a form that contribute."""
    return tuple(_path_term(form, t) for t in form.terms if t.coefficient != 0.0)


def mode_of(term: Term) -> Mode:
    """The mode that wrote a term, read off its letters."""
    letters = {leg.operand: "".join(a for a in leg.letters if a not in "ijk") for leg in term.legs}
    if "x2" not in letters:
        return _LINEAR
    if term.pairs:
        return MODES["uvu<v" if letters["out"] == "p" else "u<vw"]
    key = (letters["x1"], letters["x2"], letters["out"])
    return next(m for m in MODES.values() if (m.in1, m.in2, m.out) == key)


def _path_term(form: Form, term: Term) -> PathTerm:
    mode = mode_of(term)
    names = [form.operand(leg.operand).text.split("+")[leg.segment].strip() for leg in term.legs if leg.operand != "w"]
    text = f"{' x '.join(names[:-1])} -> {names[-1]} ({mode.name})"
    return PathTerm(term.path, text, mode, term.legs, term.sizes, _entries(term), term.pairs)


def _entries(term: Term) -> tuple[CouplingEntry, ...]:
    if all(leg.operand != "x2" for leg in term.legs):  # the identity
        return tuple(CouplingEntry(n, 0, n, term.coefficient) for n in range(dict(term.sizes)["k"]))
    c = term.coupling.array()
    return tuple(
        CouplingEntry(int(i), int(j), int(k), float(c[i, j, k]) * term.coefficient)
        for i, j, k in zip(*c.nonzero(), strict=True)
    )
