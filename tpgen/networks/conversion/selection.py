"""Selection of the modules that `convert` takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from tpgen.base.errors import InputError
from tpgen.networks.conversion.swap import ClassSwap, KeptModule, SwapOrKept, name_class_with_package

Names = str | Sequence[str]


@dataclass(frozen=True)
class Selection:
    """Patterns of module or class names not to convert, and to convert alone.

    A pattern selects all submodules too; ``*`` matches any text.
    """

    keep: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None

    def why_left_out(self, names: set[str], part_names: set[str]) -> str | None:
        """Why a module with these names and ``part_names`` is not converted; None if selected."""
        if name := next((name for name in self.keep if _matches_any(name, names | part_names)), None):
            return f"among keep={name!r}"
        if self.only is None or any(_matches_any(name, names) for name in self.only):
            return None
        return f"not among only={', '.join(map(repr, self.only)) or '()'}"


def make_selection(network: nn.Module, keep: Any, only: Any) -> Selection:
    """Make a selection; raises `InputError` for a name of no module."""
    chosen = Selection(_parse_names_option("keep", keep), None if only is None else _parse_names_option("only", only))
    known = set().union(*_list_own_and_parent_names(network).values())
    for argument, names in (("keep", chosen.keep), ("only", chosen.only or ())):
        for name in names:
            if not _matches_any(name, known):
                near = _describe_nearest_name(name, known)
                raise InputError(
                    f"{argument}: {type(network).__name__} has no module {name!r}{near}: "
                    "give names of modules, as in 'layers.0.linear' or 'layers.*', or of their classes, as in "
                    "'e3nn.Linear'; tpgen.conversion_report(network) shows both"
                )
    return chosen


def _describe_nearest_name(name: str, known_names: set[str]) -> str:
    ends = sorted(other for other in known_names if other.rpartition(".")[2] == name)
    nearest = ends or get_close_matches(name, sorted(known_names), 1)
    return f" (the nearest is {nearest[0]!r})" if nearest else ""


def apply_selection(network: nn.Module, findings: Sequence[SwapOrKept], selection: Selection) -> list[SwapOrKept]:
    """Findings, with unselected swaps as `KeptModule`, and without swaps that only serve such a child.

    Raises `InputError` if ``only`` names mere parts of swaps.
    """
    if selection == Selection():
        return list(findings)
    names, parts = (
        _list_own_and_parent_names(network),
        {f.module: _list_names_of_children_uncalled_after_swap(network, f) for f in findings},
    )
    chosable = [f for f in findings if not _is_swapped_for_child(f) and not _concerns_project(f)]
    _check_only_names_whole_modules(
        network, selection, {f.module: (names[f.module], parts[f.module]) for f in chosable}
    )
    left_out = {f.module: why for f in chosable if (why := selection.why_left_out(names[f.module], parts[f.module]))}
    alone = {f.module for f in findings if isinstance(f, ClassSwap) and f.paired and f.module in left_out}
    rest = [f for f in findings if not (_is_swapped_for_child(f) and alone.intersection(f.module.children()))]
    return [
        KeptModule(f.module, left_out[f.module], asked=True) if f.module in left_out and not _concerns_project(f) else f
        for f in rest
    ]


def _check_only_names_whole_modules(
    network: nn.Module, selection: Selection, names_and_parts: dict[nn.Module, tuple[set[str], set[str]]]
) -> None:
    # names of mere parts of swapped modules are errors
    paths = {module: path for path, module in network.named_modules()}
    for name in selection.only or ():
        if any(_matches_any(name, own) for own, _ in names_and_parts.values()):
            continue
        if whole := [paths[module] for module, (_, parts) in names_and_parts.items() if _matches_any(name, parts)]:
            raise InputError(
                f"only: {name!r} names a part of {whole[0]!r}, which is converted as a whole: give the name of that, "
                f"only={whole[0]!r}"
            )


def _list_names_of_children_uncalled_after_swap(network: nn.Module, finding: SwapOrKept) -> set[str]:
    covers = finding.covers if isinstance(finding, ClassSwap) else ()
    inside = {part for name in covers for part in finding.module.get_submodule(name).modules()}
    paths = {path for path, module in network.named_modules(remove_duplicate=False) if module in inside}
    return paths | {name_class_with_package(type(part)) for part in inside}


def _concerns_project(finding: SwapOrKept) -> bool:
    return isinstance(finding, KeptModule) and finding.general


def _is_swapped_for_child(finding: SwapOrKept) -> bool:
    return isinstance(finding, ClassSwap) and not finding.now


def _parse_names_option(option_name: str, names_given: Any) -> tuple[str, ...]:
    names = names_given if isinstance(names_given, (tuple, list)) else (names_given,)
    if not all(isinstance(name, str) for name in names):
        raise InputError(
            f"{option_name}: give the name of a module or of a class, or a list of them, got {names_given!r}"
        )
    return tuple(names)


def _matches_any(pattern: str, names: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _list_own_and_parent_names(network: nn.Module) -> dict[nn.Module, set[str]]:
    # names of each module, of its class, and of the modules that hold it
    names: dict[nn.Module, set[str]] = {}
    paths = dict(network.named_modules(remove_duplicate=False))
    for path, module in paths.items():  # what holds a module comes before it
        names.setdefault(module, set()).update({path, name_class_with_package(type(module))})
        if path:
            names[module] |= names[paths[path.rpartition(".")[0]]]
    return names
