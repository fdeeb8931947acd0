"""What pages tell a reader to copy, and calculators with it, compared with stock."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from copy import deepcopy
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

import tpgen

ROOT = Path(__file__).parents[2]


def section(page: str, title: str = "") -> str:
    """The text of a page, by its path, or of one section."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0] if title else text


def snippets(page: str, title: str = "", kind: str = "python no-run") -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", section(page, title), re.DOTALL)


FOUNDATIONS = "docs/foundation_models.md"


def calculators(title: str) -> list[str]:
    """What makes each calculator of a section: that of its program, and those of its table."""
    (program,) = snippets(FOUNDATIONS, title)
    (first,) = re.findall(r"^calculator = (.*?)(?:  #.*)?$", program, re.MULTILINE)
    return [first, *re.findall(r"^\| `(.*?)` \|", section(FOUNDATIONS, title), re.MULTILINE)]


def check_calculator(title: str, made: str, atoms: Any, limit: float, program: bool = True) -> Any:
    """Run the lines of a section with another calculator, which is returned; compare its results with stock's.

    Those of the network itself, and of its ``program``.
    """
    (lines,) = snippets(FOUNDATIONS, title)
    names: dict[str, Any] = {}
    exec(lines.replace(calculators(title)[0], made), names)
    calculator = names["calculator"]
    assert not tpgen.conversion_report(_first(calculator)).kept
    wanted = results(eval(made, names), atoms)
    assert_near(results(calculator, atoms), wanted, limit)
    if program:
        tpgen.ready(calculator)
        assert_near(results(calculator, atoms), wanted, limit)
    return calculator


def check_proof(made: Any, atoms: Any) -> Any:
    """A calculator is proven and timed with atoms, and keeps none of their results."""
    reports: list[Any] = []
    tpgen.convert(made, prove=atoms, measure=atoms, report=reports.append)
    for report in reports:
        assert report.proof.holds
        assert all(d.tensors > 0 for d in report.proof.differences)
        assert report.times.tasks[0].task == "call"
    assert reports
    assert made.results == {}
    return made


def _first(calculator: Any) -> Any:
    return calculator.models[0] if len(getattr(calculator, "models", ())) > 1 else calculator


def results(calculator: Any, atoms: Any) -> dict[str, Any]:
    """All that a calculator computes, with energy, forces and stress among them."""
    for one in getattr(getattr(calculator, "mixer", None), "calcs", ()):
        one.results = {}  # which ASE would take again
    calculator.calculate(atoms, ["energy", "forces", "stress"], ["positions"])
    assert {"energy", "forces", "stress"} <= calculator.results.keys()
    return deepcopy(calculator.results)


def assert_near(found: dict[str, Any], wanted: dict[str, Any], limit: float) -> None:
    assert found.keys() == wanted.keys()
    for name in ("energy", "forces", "stress", *(name for name in wanted if name.endswith(("_var", "_comm")))):
        most = 1e4 * limit if name.endswith("_var") else limit  # differences, squared
        assert np.abs(found[name] - wanted[name]).max() <= most * np.abs(wanted[name]).max(), name


def check_comparison_by_hand(title: str, made: str, calculator: Any, atoms: Any, limit: float) -> None:
    """Run the lines of the page that compare an energy with stock's, then restore the calculator."""
    (lines,) = snippets(FOUNDATIONS, "What you see")
    names: dict[str, Any] = {"calculator": calculator, "atoms": atoms}
    exec(snippets(FOUNDATIONS, title)[0].partition("\ncalculator = ")[0], names)
    with redirect_stdout(StringIO()) as printed:
        exec(re.sub("stock = .*", lambda _: f"stock = {made}", lines), names)
    assert abs(float(printed.getvalue().splitlines()[-1])) <= limit * abs(calculator.get_potential_energy(atoms))
    assert_near(results(tpgen.restore(calculator), atoms), results(names["stock"], atoms), limit)
    assert not tpgen.conversion_report(_first(calculator)).replaced
