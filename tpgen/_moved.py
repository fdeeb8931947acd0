"""Modules found by the names that they had in an earlier release.

A pickle names classes and functions by their modules, a deployed folder imports operators by theirs, and an installed
entry point its module.  Such a name leads to the module of today; nothing is loaded before somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {  # a module or package, and all below it -> where it stands today; the first that fits
    "tpgen.conversion.convolutions": "tpgen.conversion.products",
    "tpgen.conversion.projects.mace_blocks": "tpgen.conversion.projects.mace_models",
    "tpgen.conversion.projects.mace_reshape": "tpgen.conversion.projects.mace_contraction",
    "tpgen.demo.deployed": "tpgen.demo.potential",
    "tpgen.integrations.mace_reshape": "tpgen.conversion.projects.mace_contraction",
    "tpgen.integrations": "tpgen.conversion.projects",
    "tpgen.kernels.activations.bessel": "tpgen.functions.bessel",
    "tpgen.kernels.activations.gate": "tpgen.functions.gate",
    "tpgen.kernels.activations": "tpgen.functions",
    "tpgen.kernels.operators": "tpgen.kernels.runtime",
    "tpgen.nn.programs": "tpgen.nn.planned",
    "tpgen.nn.state": "tpgen.nn.form_module",
    "tpgen.kernels.placement.opened": "tpgen.kernels.placement.slots",
    "tpgen.kernels.polynomial.cpp": "tpgen.kernels.cpp.polynomial",
    "tpgen.kernels.polynomial.placement": "tpgen.kernels.placement.polynomial",
    "tpgen.kernels.polynomial.operator": "tpgen.kernels.runtime.ops",
    "tpgen.kernels.polynomial": "tpgen.kernels.runtime.polynomials",
    "tpgen.nn.pairs": "tpgen.conversion.operations.pairs",
    "tpgen.planner.linear_problems": "tpgen.planner.problems",
    "tpgen.planner.polynomial_problems": "tpgen.planner.problems",
}


class OldNames(MetaPathFinder, Loader):
    """Find a module by an old name, after all that find modules by their own: give it the names of the new one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if today(fullname) else None

    def exec_module(self, module: ModuleType) -> None:
        there = import_module(today(module.__name__))
        module.__dict__["__getattr__"] = lambda name: getattr(there, name)


def today(name: str) -> str:
    """Name of the module that had another name before; empty for any other.

    >>> today("tpgen.integrations.mace"), today("tpgen.nn.conv")
    ('tpgen.conversion.projects.mace', '')
    """
    for old, new in MOVED.items():
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return ""
