"""Names of operands, slots and axes."""

from __future__ import annotations

from dataclasses import dataclass

from tpgen.form.call import Call, Slot
from tpgen.form.form import Form, Term

SLOTS = ("x1", "x2", "w", "out")
P, D = BETWEEN = ("P", "D")  # between the stages of a path that mixes copies: inputs coupled, and weighted cotangents
S = "S"  # sums over channels that a later stage folds into the gradient of a table's operand
INDEX = {"x1": "i", "x2": "j", "out": "k"}  # the letter of each operand's irrep axis


@dataclass(frozen=True)
class MixingSides:
    """Operands on both sides of the weight matrix W of a path that mixes copies.

    The path is ``sum_qm W[q, m] <P[q], far[m]>``.  P couples ``near`` with input 2 and has the components of ``far``.
    """

    near: str
    far: str
    copies: str  # letters of the copies q
    mixed: str  # letter of the copies m

    @property
    def axis(self) -> str:
        """Letter of the components of P and D."""
        return INDEX[self.far]


def find_sides(term: Term, mixes_first: bool = False) -> MixingSides:
    """Operands on both sides of a path's weight matrix."""
    return (
        MixingSides("out", "x1", "vw", "u") if mixes_first else MixingSides("x1", "out", term.inputs, term.mode.mixing)
    )


def row_lengths(form: Form) -> tuple[int, int, int, int]:
    """Row lengths of x1, x2, w and out; 0 without the operand."""
    found = {operand.name: operand.dim for operand in form.operands}
    d1, d2, dw, dout = (found.get(slot, 0) for slot in SLOTS)
    return d1, d2, dw, dout


def list_given_slots(computed: tuple[str, ...]) -> tuple[str, ...]:
    """Operand slots that a kernel reads: all, but a single computed slot is left out.

    >>> list_given_slots(("out",)), list_given_slots(("x1", "w"))
    (('x1', 'x2', 'w'), ('x1', 'x2', 'w', 'out'))
    """
    return tuple(slot for slot in SLOTS if slot not in computed or len(computed) > 1)


def operand_of(slot: str) -> str:
    """Operand of a slot, such as x1 of ``x1.1``.

    >>> operand_of("x1.1"), operand_of("out")
    ('x1', 'out')
    """
    return slot.partition(".")[0]


def make_second_derivative_call(opened: tuple[str, ...], raised: tuple[str, ...]) -> Call:
    """Call that differentiates gradients of ``raised`` operands, given their cotangents, by ``opened`` operands.

    >>> print(make_second_derivative_call(("x1", "out"), ("x2", "w")))
    x1 x2 w out x2.1 w.1 -> x1 out
    """
    given = (*(Slot(name) for name in SLOTS), *(Slot(name, 1) for name in raised))
    return Call(given, tuple(Slot(name) for name in opened))


def path_terms(form: Form) -> tuple[Term, ...]:
    """Terms of a form with nonzero coefficients."""
    return tuple(t for t in form.terms if t.coefficient != 0.0)
