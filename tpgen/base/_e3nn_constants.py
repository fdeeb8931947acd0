"""Constants of e3nn 0.4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_READER = "e3nn.o3._wigner"  # the module that loads the file when it is imported


class ConstantsOfE3nn(MetaPathFinder):
    """Import hook: lets e3nn 0.4 unpickle its constants under torch 2.6."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Spec of e3nn's module of constants, with an adapted loader; else None."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname == _READER else None
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = _wrap_exec_module_to_allow_slices(loader.exec_module)
        return spec


def _wrap_exec_module_to_allow_slices(execute_module: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def exec_module_with_slices_allowed(module: ModuleType) -> None:
        from torch.serialization import safe_globals

        with safe_globals([slice]):
            execute_module(module)

    return exec_module_with_slices_allowed
