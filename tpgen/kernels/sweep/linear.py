"""A path without a second input, in one stage for each open slot:

out[w, k] += sum_u alpha W[u, w] x1[u, k]
dx1[u, k] += sum_w alpha W[u, w] g[w, k]
dW[u, w]  += sum_k alpha x1[u, k] g[w, k]
"""

from __future__ import annotations

from tpgen.kernels.sweep.stage import Lines, Stage, product
from tpgen.kernels.sweep.terms import PathTerm


def linear(term: PathTerm, opened: tuple[str, ...]) -> tuple[Stage, ...]:
    """The stages of the open slots."""
    return tuple(_stage(term, slot) for slot in ("out", "x1", "w") if slot in opened)


def _stage(term: PathTerm, slot: str) -> Stage:
    lines = Lines(term)
    given = [o for o in ("x1", "w", "out") if o != slot]
    for operand in given:
        lines.load(operand, term.indices(operand))
    products = [
        product(*(lines.at(o, 0 if o == "w" else e.k) for o in given), coefficient=e.value) for e in term.entries
    ]
    if slot == "w":
        lines.accumulate(lines.at(slot), *products)
    else:
        for entry, one in zip(term.entries, products, strict=True):
            lines.accumulate(lines.at(slot, entry.k), one)
    return lines.stage("uw")
