r"""Computations of kernels: statements of every path, for some open slots.

A path is ``w * sum C[i,j,k] x[i] y[j] g[k]``, differentiated.

>>> from tpgen.form.form import form_of
>>> from tpgen.planner.product import make_plan
>>> form = form_of(make_plan("8x0e", "1o", "8x1o", [(0, 0, 0, "uvu", True)]))
>>> print(make_sweep(path_terms(form), ("out",), channels=("u",)))
sweep: opens out
  T0[0] = x2[0].0
  T0[1] = x2[0].1
  T0[2] = x2[0].2
  path 0: 8x0e x 1x1o -> 8x1o (uvu)
    for v, u:
      load x1[0].0
      load w[0].0
      v1 = w[0].0 * x1[0].0
      out[0].0 += v1 * T0[0]
      out[0].1 += v1 * T0[1]
      out[0].2 += v1 * T0[2]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tpgen.form.form import Term
from tpgen.kernels.sweep.levels import make_mixing_stages, make_path_stages, make_table_statements
from tpgen.kernels.sweep.statements import Statement, SweepStage, Tabulate, TextOfPaths
from tpgen.kernels.sweep.tables import make_tables
from tpgen.kernels.sweep.terms import find_sides, make_second_derivative_call, path_terms

__all__ = ["PathSweep", "Sweep", "make_sweep", "path_terms"]


def cotangents_text(raised: tuple[str, ...]) -> str:
    """Describe the operands given as cotangents."""
    return f" for cotangents of {', '.join(raised)}" if raised else ""


@dataclass(frozen=True)
class PathSweep:
    """Statements of one path, in stages."""

    term: Term
    stages: tuple[SweepStage, ...]

    def __str__(self) -> str:
        return "\n".join([f"path {self.term.path}: {self.term.text}", *(str(stage) for stage in self.stages)])


@dataclass(frozen=True)
class Sweep(TextOfPaths):
    """One kernel's computation: statements of tables and paths."""

    opened: tuple[str, ...]
    tables: tuple[tuple[Tabulate, ...], ...]  # an empty one is not needed
    paths: tuple[PathSweep, ...]
    raised: tuple[str, ...] = ()  # operands that are given at level 1 as well

    @property
    def statements(self) -> Iterator[Statement]:
        """Statements of tables, then of paths."""
        for table in self.tables:
            yield from table
        for path in self.paths:
            for stage in path.stages:
                yield from stage.statements

    @property
    def text_lines_and_paths(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Lines of text, and paths of each line (none: shared)."""
        yield f"sweep: opens {', '.join(self.opened)}{cotangents_text(self.raised)}", ()
        for table in self.tables:
            yield from ((f"  {entry}", entry.paths) for entry in table)
        for path in self.paths:
            yield from ((f"  {line}", (path.term.path,)) for line in str(path).split("\n"))


def make_sweep(
    terms: tuple[Term, ...],
    opened: tuple[str, ...],
    channels: tuple[str, ...] | None = None,
    raised: tuple[str, ...] = (),
    mixes_first: Callable[[Term], bool] = lambda _: False,
) -> Sweep:
    """Write the statements that compute slots ``opened``.

    ``channels``: the vectorised letter of each path; else vectors run over rows, without tables.  ``raised`` operands
    also come as cotangents (`make_second_derivative_call`).  Paths that ``mixes_first`` accepts mix copies before the
    coupling.
    """
    call, mixes = make_second_derivative_call(opened, raised), channels is None and not raised
    tables = make_tables(terms, channels) if channels else ()
    table = {term.path: t for t in tables for term in t.terms}
    letters = channels or ("",) * len(terms)
    paths = tuple(
        PathSweep(
            t,
            make_mixing_stages(t, opened, find_sides(t, mixes_first(t)))
            if mixes and t.mixes
            else make_path_stages(t, call, table.get(t.path), a),
        )
        for t, a in zip(terms, letters, strict=True)
        if t.reaches(opened)
    )
    stages = {path.term.path: path.stages for path in paths}
    needed = tuple(
        make_table_statements(t, call, (s for path in t.paths for s in stages.get(path, ()))) for t in tables
    )
    return Sweep(opened, needed, paths, raised)
