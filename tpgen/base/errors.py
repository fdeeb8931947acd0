"""The errors of tpgen: one tree, raised where the fact is known.

Every message states the rule that was broken and the way out.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Iterable
from difflib import get_close_matches

_INNER_MODULES = (f"{__name__.partition('.')[0]}.", "torch.")


class TpgenError(ValueError):
    """Base class of every error that tpgen raises on purpose."""


class PlanError(TpgenError):
    """A product that cannot be planned: irreps, instructions or normalisation do not fit."""


class PlanIndexError(PlanError, IndexError):
    """An instruction that points to an entry of the irreps that is not there.

    Also an ``IndexError``, what e3nn's ``Linear`` raises in the same place.
    """


class InputError(TpgenError, RuntimeError):
    """A tensor that does not fit the product it was given to.

    Also a ``RuntimeError``, the class that e3nn raises in the same place.
    """


class OptionError(TpgenError, TypeError):
    """A keyword that a module does not know.

    Also a ``TypeError``, what Python raises for an unexpected keyword.
    """


class EmitError(TpgenError):
    """A program that cannot be written as asked: unknown strategy, layout, direction or stage."""


class BackendError(TpgenError):
    """A program that cannot be compiled or run as asked on this machine."""


class KernelError(BackendError):
    """A kernel that a compiler refuses, that cannot be loaded, or that is too large to be written.

    The ``reason`` is its first line of interest, such as the compiler's first error.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message.partition("\n")[0]


class DeployError(TpgenError):
    """A network that cannot be packaged as asked, or a package that is not whole."""


class TraceError(TpgenError):
    """A network that cannot be written as one graph."""


class InverseError(TpgenError):
    """A graph that has no inverse as written."""


_MOST_SUGGESTIONS = 3  # more names than this are no answer


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """Say that ``name`` is not one of the ``known`` names of ``what``, and which of them it is like.

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


def a_kind(value: object) -> str:
    """The kind of a value with its article, for an error.

    >>> a_kind(3), a_kind("x")
    ('an int', 'a str')
    """
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def check_known(
    what: str, names: Iterable[object], known: Collection[str], error: type[TpgenError] = TpgenError
) -> None:
    """Raise an error where one of the names is not among the known names of ``what``.

    >>> check_known("mode", ["uvw"], ["uvw", "uvu"])
    """
    for name in names:
        if name not in known:
            raise error(unknown(what, name, known))


def warn_caller(message: str) -> None:
    """Warn at the line of the first caller outside this package and torch."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and (frame.f_globals.get("__name__") or _INNER_MODULES[0]).startswith(
        _INNER_MODULES
    ):  # graphs have no name
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)
