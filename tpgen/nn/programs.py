"""Modules that write programs: for the place they are at, and again where it changes."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn
from typing_extensions import Self

from tpgen.compiler.config import Choice


class ProgramModule(nn.Module):
    """A module that runs programs it writes itself; they are no part of its state.

    Subclasses choose a strategy (`_choose`) and write for it (`_write_programs`).
    """

    choice: Choice
    _programs: ClassVar[tuple[str, ...]]  # the submodules that are programs

    def _choose(self) -> Choice:
        raise NotImplementedError

    def _write_programs(self) -> None:
        raise NotImplementedError

    def _rewrite(self) -> None:
        self.choice = self._choose()
        self._write_programs()

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        if self._choose() != self.choice:  # moved to where another strategy is better, or the only one
            self._rewrite()
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Plan, options and tensors; programs are written again where the state is restored."""
        state = super().__getstate__()  # without what `Module.compile` has left, which runs the module it was made of
        state["_modules"] = {name: m for name, m in self._modules.items() if name not in self._programs}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._write_programs()
