"""A compile report as a value: it prints its verdict, and each section prints itself."""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tpgen.drawing.charts import bar_groups
from tpgen.errors import TpgenError, unknown
from tpgen.inspection.report.verdict import figures, verdict
from tpgen.notebook import Shown, folded, html_table, lines
from tpgen.text import table


@dataclass(frozen=True)
class Section(Shown):
    """One part of a report.

    ``text`` is for reading and ``data`` for programs (JSON).  A part that could not be made has neither: ``missing``
    says why.  ``warnings`` is what torch said on the way.
    """

    name: str
    title: str
    text: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    missing: str = ""
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        body = f"not available: {self.missing}" if self.missing else self.text
        said = "".join(f"\ntorch warned: {warning}" for warning in self.warnings)
        return f"{self.title}\n{'-' * len(self.title)}\n{body}{said}"


@dataclass(frozen=True)
class CompileReport(Shown):
    """Report of what `torch.compile` makes of one module with one set of inputs.

    It prints its verdict, and the sections ``shown``; `full` is the text of all of them.

    >>> report = CompileReport("ReLU()", ("float32[2]",), (Section("guards", "Guards", "none"),))
    >>> report["guards"].text, report.names
    ('none', ('guards',))
    >>> print(report.full)
    Compile report of ReLU()
    inputs: float32[2]
    <BLANKLINE>
    Verdict
    -------
    to do  nothing
    <BLANKLINE>
    Guards
    ------
    none
    """

    subject: str
    inputs: tuple[str, ...]
    sections: tuple[Section, ...]
    remarks: tuple[str, ...] = ()  # what holds for the whole report
    shown: tuple[str, ...] = ()  # sections that were asked for by name

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(section.name for section in self.sections)

    @property
    def missing(self) -> dict[str, str]:
        """The parts that could not be made, and why."""
        return {section.name: section.missing for section in self.sections if section.missing}

    def __getitem__(self, name: str) -> Section:
        found = {section.name: section for section in self.sections}
        if name not in found:
            raise TpgenError(unknown("section", name, found))
        return found[name]

    @property
    def verdict(self) -> dict[str, str]:
        """Verdict of the report, line by line, with what to do at the end."""
        return verdict(self._data())

    @property
    def full(self) -> str:
        """The text of the verdict and of every section."""
        return self._text(self.names)

    def __str__(self) -> str:
        return self._text(self.shown)

    def _repr_html_(self) -> str:
        table = html_table([("", ""), *self.verdict.items()], left=range(2))
        parts = [folded(section.title, str(section)) for section in self.sections]
        return lines(*self._head()) + table + bar_groups(figures(self._data())) + "".join(parts)

    def _data(self) -> dict[str, dict[str, Any]]:
        return {section.name: section.data for section in self.sections if section.data}

    def _head(self) -> list[str]:
        remarks = [f"remark: {remark}" for remark in self.remarks]
        return [f"Compile report of {self.subject}", f"inputs: {', '.join(self.inputs)}", *remarks]

    def _text(self, names: tuple[str, ...]) -> str:
        missing = [f"not available: {name}: {why}" for name, why in self.missing.items() if name not in names]
        lines = ["Verdict", "-------", table(list(self.verdict.items())), *missing]
        return "\n\n".join(["\n".join(self._head()), "\n".join(lines), *(str(self[name]) for name in names)])

    def to_json(self) -> str:
        """The report as JSON: subject, inputs, remarks, verdict, and an object for each section by its name."""
        told = {"subject": self.subject, "inputs": self.inputs, "remarks": self.remarks, "verdict": self.verdict}
        return json.dumps({**told, "sections": {section.name: asdict(section) for section in self.sections}})


# What to do where a compiler stops, by the class of its error.
_WAYS_OUT = {
    "InternalTorchDynamoError": (
        "torch.compile fails on an object in this Python code: report on trace_network(module), whose graph holds none"
    ),
    "DynamicOutputShapeException": (
        "an operation makes a shape out of values, which fake tensors do not have: take it out of the module, "
        "and give its result as an input"
    ),
    "DataDependentOutputException": (
        "the code decides by a value, which fake tensors do not have: take the decision out of the module"
    ),
}


def reason(error: Exception) -> str:
    """Why something could not be made, in one line, with the way out where there is a known one.

    >>> reason(TpgenError("left out")), reason(OSError("no compiler"))
    ('left out', 'OSError: no compiler')
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kind = "" if isinstance(error, TpgenError) else f"{type(error).__name__}: "
    way_out = _WAYS_OUT.get(type(error).__name__)
    said = lines[0] if lines else "no reason given"
    where = f" {_where(error)}" if said.endswith(":") or not lines else ""  # a bare class of error says nothing
    return f"{kind}{said}{where}" + (f"; {way_out}" if way_out else "")


def check_call(example: str, module: object, inputs: object, error: type[TpgenError] = TpgenError) -> None:
    """Raise where what takes a module with the arguments of a call, as in the example, is given something else."""
    if not isinstance(module, nn.Module):
        got = f"{type(module).__name__}; wrap a function in a module that calls it"
        raise error(f"{example.partition('(')[0]} takes an nn.Module, got {got}")
    if isinstance(inputs, (Tensor, str)) or not isinstance(inputs, Sequence):
        got = f"{type(inputs).__name__}: write {example}"
        raise error(f"inputs are the arguments of one call in a list or tuple, got {got}")


def _where(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"at {Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
