"""The polynomials of the tour: MACE's symmetric contraction, and one that no preset covers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tpgen.nn.polynomial import Polynomial
from tpgen.nn.polynomial_module import PolynomialModule
from tpgen.nn.symmetric_contraction import SymmetricContraction
from tpgen.verification.verify import Verification, verify

LAYER = "8x0e + 8x1o"
POLYNOMIALS: dict[str, tuple[str, Callable[[], PolynomialModule]]] = {
    "contraction": (
        "features of an atom with themselves, twice and three times, as in MACE",
        lambda: SymmetricContraction(LAYER, LAYER, correlation=3, num_elements=2),
    ),
    "turned": (
        "squared features turned by the harmonics of a direction",
        lambda: Polynomial({"x": LAYER, "y": "0e + 1o + 2e"}, LAYER, [("x", "x", "y"), ("x",)]),
    ),
}
STAGES: dict[str, Callable[[PolynomialModule], str]] = {
    "plan.txt": lambda made: str(made.plan),
    "form.txt": lambda made: str(made.form),
    "sweep.forward.txt": lambda made: str(made.sweep()),
    "sweep.backward.txt": lambda made: str(made.sweep("backward")),
    "graph.py": lambda made: made.graph.code,
    "kernel.forward.cpp": lambda made: made.code().text,
    "kernel.backward.cpp": lambda made: made.code("backward").text,
}


# Asked of every product and polynomial here; what takes a while is asked of the converted network at the end.
SHARED = ("definition", "linear", "equivariant", "permutation", "first order", "second order")
OF_PRODUCTS, OF_POLYNOMIALS = (*SHARED, "e3nn", "right"), (*SHARED, "degree")


def write_polynomial(name: str, folder: Path) -> tuple[str, Verification]:
    """Write every stage of a polynomial and its laws; returns what index.md says, and the report."""
    about, make = POLYNOMIALS[name]
    made = make()
    folder.mkdir(parents=True, exist_ok=True)
    report = verify(made, rows=4, only=OF_POLYNOMIALS)
    for file, stage in STAGES.items():
        (folder / file).write_text(stage(made) + "\n", encoding="utf-8")
    (folder / "verify.txt").write_text(f"{report}\n", encoding="utf-8")
    links = ", ".join(f"[{file}]({name}/{file})" for file in STAGES)
    return f"### {name}: {about}\n\n```\n{made.plan}\n```\n\n{links}\n\n```\n{report}\n```\n", report
