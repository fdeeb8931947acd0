"""The choice of modules that `convert` takes: all that it can, or those that somebody names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from tpgen.base.errors import InputError
from tpgen.networks.conversion.swap import Kept, Swap, SwapOrKept, qualified

Names = str | Sequence[str]


@dataclass(frozen=True)
class Selection:
    """Names of modules to keep, and of modules that alone are converted; or of their classes, as the report shows them.

    A name stands for a module and all that it holds.  ``*`` in a name stands for any text.
    """

    keep: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None

    def why_not(self, names: set[str], parts: set[str]) -> str | None:
        """Why a module is left out, or None; ``names`` are its own and its class's, ``parts`` those of its parts."""
        if name := next((name for name in self.keep if _is_any(name, names | parts)), None):
            return f"among keep={name!r}"
        if self.only is None or any(_is_any(name, names) for name in self.only):
            return None
        return f"not among only={', '.join(map(repr, self.only)) or '()'}"


def make_selection(network: nn.Module, keep: Any, only: Any) -> Selection:
    """The selection of a network; raises `InputError` for names that nothing in it has."""
    chosen = Selection(_given("keep", keep), None if only is None else _given("only", only))
    there = set().union(*_names(network).values())
    for what, names in (("keep", chosen.keep), ("only", chosen.only or ())):
        for name in names:
            if not _is_any(name, there):
                raise InputError(
                    f"{what}: {type(network).__name__} has no module {name!r}: give names of modules, as in "
                    "'layers.0.linear' or 'layers.*', or of their classes, as in 'e3nn.Linear'; "
                    "tpgen.conversion_report(network) shows both"
                )
    return chosen


def selected(network: nn.Module, findings: Sequence[SwapOrKept], chosen: Selection) -> list[SwapOrKept]:
    """The findings, with those that are left out as `Kept`.

    Where a module is swapped only to call a part of its own in another way, it follows the choice for that part.
    Findings about a whole project stay.  Raises `InputError` where ``only`` names no more than a part of a swap.
    """
    if chosen == Selection():
        return list(findings)
    names, parts = _names(network), {f.module: _parts(network, f) for f in findings}
    chosable = [f for f in findings if not _follows(f) and not _is_general(f)]
    _check_only(network, chosen, {f.module: (names[f.module], parts[f.module]) for f in chosable})
    left_out = {f.module: why for f in chosable if (why := chosen.why_not(names[f.module], parts[f.module]))}
    alone = {f.module for f in findings if isinstance(f, Swap) and f.paired and f.module in left_out}
    rest = [f for f in findings if not (_follows(f) and alone.intersection(f.module.children()))]
    return [
        Kept(f.module, left_out[f.module], asked=True) if f.module in left_out and not _is_general(f) else f
        for f in rest
    ]


def _check_only(network: nn.Module, chosen: Selection, there: dict[nn.Module, tuple[set[str], set[str]]]) -> None:
    """Raise `InputError` for names of parts alone, which are converted with what holds them."""
    paths = {module: path for path, module in network.named_modules()}
    for name in chosen.only or ():
        if any(_is_any(name, own) for own, _ in there.values()):
            continue
        if whole := [paths[module] for module, (_, parts) in there.items() if _is_any(name, parts)]:
            raise InputError(
                f"only: {name!r} names a part of {whole[0]!r}, which is converted as a whole: give the name of that, "
                f"only={whole[0]!r}"
            )


def _parts(network: nn.Module, finding: SwapOrKept) -> set[str]:
    """Names of modules that nobody calls any more once a swap is made, and of those that they hold."""
    covers = finding.covers if isinstance(finding, Swap) else ()
    inside = {part for name in covers for part in finding.module.get_submodule(name).modules()}
    paths = {path for path, module in network.named_modules(remove_duplicate=False) if module in inside}
    return paths | {qualified(type(part)) for part in inside}


def _is_general(finding: SwapOrKept) -> bool:
    return isinstance(finding, Kept) and finding.general


def _follows(finding: SwapOrKept) -> bool:
    """Whether a module is swapped for the sake of one that it holds."""
    return isinstance(finding, Swap) and not finding.now


def _given(what: str, given: Any) -> tuple[str, ...]:
    names = given if isinstance(given, (tuple, list)) else (given,)
    if not all(isinstance(name, str) for name in names):
        raise InputError(f"{what}: give the name of a module or of a class, or a list of them, got {given!r}")
    return tuple(names)


def _is_any(name: str, there: Iterable[str]) -> bool:
    return any(fnmatchcase(one, name) for one in there)


def _names(network: nn.Module) -> dict[nn.Module, set[str]]:
    """All that each module goes by: its names, that of its class, and those of the modules that hold it."""
    names: dict[nn.Module, set[str]] = {}
    paths = dict(network.named_modules(remove_duplicate=False))
    for path, module in paths.items():  # what holds a module comes before it
        names.setdefault(module, set()).update({path, qualified(type(module))})
        if path:
            names[module] |= names[paths[path.rpartition(".")[0]]]
    return names
