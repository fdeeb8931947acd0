r"""A kernel's computation as a value: for a set of open slots, the statements of every path.

Four ways to write a path, of which `make_sweep` takes the one that fits:

- *coupled*: ``w * sum C[i,j,k] x[i] y[j] g[k]``, differentiated, for copies that all operands keep or loop over;
- *scaled*, where vectors run over copies that one input does not have: that input stands in a table of each row;
- *mixed*, where copies of the output come from the weights: by way of ``P[k] = sum C x1 x2`` and its gradient;
- *linear*, where there is no second input.

>>> from tpgen.form.form import make_form
>>> from tpgen.planner.plan import make_plan
>>> form = make_form(make_plan("8x0e", "1o", "8x1o", [(0, 0, 0, "uvu", True)]))
>>> print(make_sweep(path_terms(form), ("out",), channels=("u",)))
sweep: opens out
  T0[0] = x2[0].0
  T0[1] = x2[0].1
  T0[2] = x2[0].2
  path 0: 8x0e x 1x1o -> 8x1o (uvu)
    for v, u:
      load x1[0].0
      load w[0].0
      p0 = x1[0].0 * T0[0]
      p1 = x1[0].0 * T0[1]
      p2 = x1[0].0 * T0[2]
      out[0].0 += w[0].0 * p0
      out[0].1 += w[0].0 * p1
      out[0].2 += w[0].0 * p2
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tpgen.kernels.sweep.coupled import coupled
from tpgen.kernels.sweep.linear import linear
from tpgen.kernels.sweep.mixed import mixed
from tpgen.kernels.sweep.scaled import Table, make_tables, scaled
from tpgen.kernels.sweep.stage import Stage
from tpgen.kernels.sweep.statements import Statement, Tabulate
from tpgen.kernels.sweep.terms import SLOTS, PathTerm, path_terms

__all__ = ["PathSweep", "Sweep", "make_sweep", "path_terms"]


@dataclass(frozen=True)
class PathSweep:
    """The statements of one path, in stages."""

    term: PathTerm
    stages: tuple[Stage, ...]

    def __str__(self) -> str:
        return "\n".join([f"path {self.term.path}: {self.term.text}", *(str(stage) for stage in self.stages)])


@dataclass(frozen=True)
class Sweep:
    """Everything that one kernel computes, in order."""

    opened: tuple[str, ...]
    tables: tuple[tuple[Tabulate, ...], ...]  # an empty one is not needed
    paths: tuple[PathSweep, ...]

    @property
    def statements(self) -> Iterator[Statement]:
        for table in self.tables:
            yield from table
        for path in self.paths:
            for stage in path.stages:
                yield from stage.statements

    @property
    def lines(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The text, and for every line the paths that it serves (none: the head)."""
        yield f"sweep: opens {', '.join(self.opened)}", ()
        for table in self.tables:
            yield from ((f"  {entry}", entry.paths) for entry in table)
        for path in self.paths:
            yield from ((f"  {line}", (path.term.path,)) for line in str(path).split("\n"))

    def __str__(self) -> str:
        return "\n".join(text for text, _ in self.lines)


def make_sweep(terms: tuple[PathTerm, ...], opened: tuple[str, ...], channels: tuple[str, ...] | None = None) -> Sweep:
    """The sweep of a set of open slots; ``channels`` names for each path the letter that vectors run over.

    Without channels vectors run over rows, and nothing is worth a table.
    """
    if channels is None:
        paths = tuple(PathSweep(t, _by_rows(t, opened)) for t in terms if t.reaches(opened))
        return Sweep(opened, (), paths)
    tables = make_tables(terms, channels)
    paths = tuple(
        PathSweep(t, _by_channels(t, opened, tables, a))
        for t, a in zip(terms, channels, strict=True)
        if t.reaches(opened)
    )
    needed = tuple(t.statements if any(slot != t.operand for slot in opened) else () for t in tables)
    return Sweep(opened, needed, paths)


def _by_rows(term: PathTerm, opened: tuple[str, ...]) -> tuple[Stage, ...]:
    if term.leg("x2") is None:
        return linear(term, opened)
    return mixed(term, opened) if term.mode.mixing else coupled(term, opened, ("x1", "x2", "out", "w"))


def _by_channels(term: PathTerm, opened: tuple[str, ...], tables: tuple[Table, ...], channel: str) -> tuple[Stage, ...]:
    table = next((t for t in tables if term in t.terms), None)
    return scaled(term, table, channel, opened) if table else coupled(term, opened, SLOTS)
