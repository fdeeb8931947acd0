"""Errors: each message names the broken rule and a remedy."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Iterable
from difflib import get_close_matches

_INNER_MODULES = (f"{__name__.partition('.')[0]}.", "torch.")


class TpgenError(ValueError):
    """Base class of tpgen's errors."""


class PlanError(TpgenError):
    """Irreps, instructions or normalisation do not fit."""


class PlanIndexError(PlanError, IndexError):
    """An instruction indexes a missing irrep."""


class InputError(TpgenError, RuntimeError):
    """A tensor or another argument does not fit."""


class OptionError(TpgenError, TypeError):
    """A keyword or its value is unknown."""


class EmitError(TpgenError):
    """A program cannot be written: unknown strategy, layout, direction or stage."""


class BackendError(TpgenError):
    """A program cannot be compiled or run on this machine."""


class KernelError(BackendError):
    """A kernel fails to compile or load, or is too large."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message.partition("\n")[0]


class DeployError(TpgenError):
    """A network cannot become a program or a package."""


class TraceError(TpgenError):
    """A network cannot be written as one graph."""


class InverseError(TpgenError):
    """A graph has no inverse as written."""


_MOST_SUGGESTIONS = 3  # more names than this are no answer


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """Message for an unknown ``name``, with the closest known names.

    >>> unknown("mode", "uwu", ["uvw", "uvu"])
    "unknown mode 'uwu'; known modes: uvw, uvu"
    >>> unknown("stage", "grpah", ["plan", "graph"])
    "unknown stage 'grpah': did you mean 'graph'? Known stages: plan, graph"
    >>> unknown("problem", "mace", ["mace-medium", "mace-large", "article"]).split(" Known")[0]
    "unknown problem 'mace': did you mean 'mace-medium' or 'mace-large'?"
    """
    known = list(known)
    text = str(name)
    close = get_close_matches(text, known, n=1, cutoff=0.7)
    close = close or [one for one in known if len(text) > 1 and one.startswith(text)]
    meant = (
        f": did you mean {' or '.join(map(repr, close))}? Known" if 0 < len(close) <= _MOST_SUGGESTIONS else "; known"
    )
    plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"unknown {what} {name!r}{meant} {plural}: {', '.join(known)}"


def first_line(error: BaseException) -> str:
    """First line of an error's text, else the error's class.

    >>> first_line(KeyError()), first_line(ValueError("no atoms\\nsee above"))
    ('KeyError', 'no atoms')
    """
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def a_kind(value: object) -> str:
    """A value's type name with article.

    >>> a_kind(3), a_kind("x")
    ('an int', 'a str')
    """
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def check_known(
    what: str, names: Iterable[object], known: Collection[str], error: type[TpgenError] = TpgenError
) -> None:
    """Raise ``error`` for the first name not ``known``.

    >>> check_known("mode", ["uvw"], ["uvw", "uvu"])
    """
    for name in names:
        if name not in known:
            raise error(unknown(what, name, known))


def warn_caller(message: str) -> None:
    """Warn at the nearest calling line outside tpgen and torch."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and (frame.f_globals.get("__name__") or _INNER_MODULES[0]).startswith(
        _INNER_MODULES
    ):  # graphs have no name
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)
