"""A path whose output has copies of its own, which only the weights fill, in three stages:

P[q, k]    = sum_ij C x1 x2                     for every copy q of the inputs
out[w, k] += sum_q W[q, w] P[q, k]              matrix products where rows share W
dW[q, w]  += sum_k P[q, k] g[w, k]
D[q, k]    = sum_w W[q, w] g[w, k]
dx1, dx2   = the gradients of P at the cotangent D
"""

from __future__ import annotations

from tpgen.kernels.sweep.coupled import accumulate_gradients, couple_gradients, couple_inputs
from tpgen.kernels.sweep.stage import Lines, Stage, product
from tpgen.kernels.sweep.statements import Local
from tpgen.kernels.sweep.terms import PathTerm


def mixed(term: PathTerm, opened: tuple[str, ...]) -> tuple[Stage, ...]:
    """The stages that the open slots need."""
    gradients = tuple(o for o in ("x1", "x2") if o in opened)
    copies = "".join(a for a, _ in term.copies if a in term.inputs)
    stages = []
    if "out" in opened or "w" in opened:
        stages.append(_inputs(term).stage(copies))
    stages.append(_weights(term, opened).stage(copies + term.mode.mixing))
    if gradients:
        stages.append(_gradients(term, gradients).stage(copies))
    return tuple(stages)


def _inputs(term: PathTerm) -> Lines:
    lines = Lines(term)
    lines.load("x1", term.indices("x1"))
    lines.load("x2", term.indices("x2"))
    couple_inputs(lines)
    return lines


def _weights(term: PathTerm, opened: tuple[str, ...]) -> Lines:
    lines, columns = Lines(term), term.indices("out")
    weight = lines.at("w") if term.weighted else None
    if term.weighted and opened != ("w",):
        lines.load("w", [0])
    if opened != ("out",):
        lines.load("out", columns)
    if "out" in opened:
        for k in columns:
            lines.accumulate(lines.at("out", k), product(weight, Local(f"c{k}")))
    if "w" in opened and term.weighted:
        lines.accumulate(lines.at("w"), *(product(Local(f"c{k}"), lines.at("out", k)) for k in columns))
    if "x1" in opened or "x2" in opened:
        for k in columns:
            lines.reduce(f"D{k}", term.mode.mixing, product(weight, lines.at("out", k)))
    return lines


def _gradients(term: PathTerm, gradients: tuple[str, ...]) -> Lines:
    lines = Lines(term)
    for operand, other in (("x1", "x2"), ("x2", "x1")):
        if other in gradients:
            lines.load(operand, term.indices(operand))
    for k in term.indices("out"):
        lines.define(f"h{k}", product(Local(f"D{k}")))
    couple_gradients(lines, gradients)
    accumulate_gradients(lines, gradients)
    return lines
