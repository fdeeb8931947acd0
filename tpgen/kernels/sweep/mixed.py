"""A path whose output has copies of its own, which only the weights fill, in three stages:

P[q, k]   += sum_ij C x1 x2                     for every copy q of the inputs
out[w, k] += sum_q W[q, w] P[q, k]              matrix products where rows share W
dW[q, w]  += sum_k P[q, k] g[w, k]
D[q, k]   += sum_w W[q, w] g[w, k]
dx1, dx2   = the gradients of P at the cotangent D

P and D stand between the stages, as operands of the path: each is the gradient of what the other one multiplies.
"""

from __future__ import annotations

from tpgen.form.call import Call, Slot
from tpgen.form.form import Term
from tpgen.form.polynomial import PolynomialForm, polynomial
from tpgen.kernels.sweep.levels import Naming, program
from tpgen.kernels.sweep.statements import SweepStage
from tpgen.kernels.sweep.terms import D, P


def mixed(term: Term, opened: tuple[str, ...]) -> tuple[SweepStage, ...]:
    """The stages that the open slots need."""
    weight = (("w", 0),) if term.weighted else ()
    coupling = polynomial({(("x1", e.i), ("x2", e.j), (D, e.k)): e.value for e in term.entries})
    weights = polynomial({(*weight, (P, k), ("out", k)): 1.0 for k in sorted({e.k for e in term.entries})})
    gradients = tuple(o for o in ("x1", "x2") if o in opened)
    results = tuple(o for o in ("out", "w") if o in opened and term.leg(o))
    copies = "".join(a for a, _ in term.copies if a in term.inputs)
    stages = [
        SweepStage(copies, Naming(term, written=(D, P)).of(_program(coupling, (D,) if results else ()))),
        SweepStage(
            copies + term.mode.mixing,
            Naming(term, local="q", written=(P, D)).of(_program(weights, (*results, *(P for _ in gradients[:1])))),
        ),
        SweepStage(copies, Naming(term, local="h").of(_program(coupling, gradients))),
    ]
    return tuple(stage for stage in stages if stage.statements)


def _program(form: PolynomialForm, opened: tuple[str, ...]):
    return program(form, Call(tuple(map(Slot, form.tensors)), tuple(map(Slot, opened))))
