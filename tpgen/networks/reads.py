"""Names that a network is asked for while it is written down: numbers, modes, modules and tensors of a program.

Parameters and buffers are inputs of a program.  All else that code reads of its modules is in the program's text, so
the program is for a network in which it still stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from operator import is_
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.utils.hooks import RemovableHandle

# modules that decide by nothing but their plan and tensors, or cannot be changed
_FIXED = ("tpgen.nn.", "tpgen.kernels.", "tpgen.emitter.", "torch.jit")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_CONSTANTS = (bool, int, float, complex, str, bytes, type(None))
_OBJECTS = (Tensor, tuple, list, Enum, torch.dtype)


class Read(NamedTuple):
    """A name in a table, and what stood there."""

    table: dict[str, Any]
    name: str
    value: Any

    def stands(self) -> bool:
        """Whether it stands there still."""
        return _same(self.table.get(self.name), self.value)


class Reads:
    """Names that modules were asked for, each once."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, str], Read] = {}
        self._whole: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
        self._columns: tuple[Sequence, ...] = ((), (), ())  # tables, names and values of what was found
        self._tensors: list[tuple[Tensor, int]] = []
        self._hooks: list[tuple[dict[int, Any], dict[int, Any]]] = []
        self._handles = -1

    def add(self, module: nn.Module, name: str) -> None:
        """Note a name that a module was asked for, if it is a constant, a function, a module or a plain tensor."""
        held = object.__getattribute__(module, "__dict__")
        table = held.get("_modules", {})
        if name == "_modules":  # as a sequence does
            self._whole.setdefault(id(table), (table, dict(table)))
        elif name in table:
            self._found.setdefault((id(table), name), Read(table, name, table[name]))
        elif name in held:
            value = held[name]
            if isinstance(value, (*_CONSTANTS, *_OBJECTS)) or callable(value):
                self._found.setdefault((id(held), name), Read(held, name, value))
        else:
            self._absent(held, name)

    def _absent(self, held: dict[str, Any], name: str) -> None:
        """Note a name that stands for nothing of the module's own yet: of its class, of a tensor, or of nothing."""
        for table in (held.get("_parameters", {}), held.get("_buffers", {})):
            if name in table:
                if table[name] is None:
                    self._found.setdefault((id(table), name), Read(table, name, None))
                return
        if name == "forward" or not hasattr(nn.Module, name):
            self._found.setdefault((id(held), name), Read(held, name, None))

    def watch(self, modules: Sequence[nn.Module]) -> None:
        """Note the hooks of modules, which stand in no code."""
        tables = (object.__getattribute__(module, "__dict__").get(name) for module in modules for name in _HOOKS)
        self._hooks = [(table, dict(table)) for table in tables if table is not None]

    def settle(self) -> None:
        """Forget what the code itself has written since."""
        self._found = {place: read for place, read in self._found.items() if read.stands()}
        self._columns = tuple(zip(*self._found.values(), strict=True)) or ((), (), ())

    def keep(self, graph: fx.GraphModule) -> None:
        """Let nobody write to constants of a graph, or to tensors that were read, from here on."""
        found = [getattr(graph, str(node.target), None) for node in graph.graph.find_nodes(op="get_attr")]
        found += [read.value for read in self._found.values()]
        tensors = {id(x): x for x in found if isinstance(x, Tensor) and not x.is_inference()}
        self._tensors = [(x, x._version) for x in tensors.values()]

    def stand(self) -> bool:
        """Whether the network is still what was read."""
        tables, names, values = self._columns
        unmoved = all(map(is_, map(dict.get, tables, names), values))  # without a frame for each of some hundred names
        if not (unmoved or all(read.stands() for read in self._found.values())):
            return False
        whole = all(table == before for table, before in self._whole.values())
        return whole and self._same_hooks() and all(x._version == version for x, version in self._tensors)

    def _same_hooks(self) -> bool:
        """Whether hooks are those that were there; all are looked at where torch has given out handles since."""
        handles, several = RemovableHandle.next_id, self._hooks
        if handles == self._handles:
            several = [(table, before) for table, before in several if before]
        same = all(table == before for table, before in several)
        self._handles = handles if same else -1
        return same


def _same(one: Any, other: Any) -> bool:
    """Whether values are one object, or equal constants; tensors are never compared."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(_same(*pair) for pair in zip(one, other, strict=True))
    return type(one) in _CONSTANTS and one == other


@contextmanager
def reading(modules: Sequence[nn.Module]) -> Iterator[Reads]:
    """Note what code reads of its modules; what it writes into attributes of these is not kept."""
    reads, found = Reads(), object.__getattribute__
    reads.watch(modules)
    writer = get_ident()
    tables = [(found(module, "__dict__"), dict(found(module, "__dict__"))) for module in modules]

    def asked(module: nn.Module, name: str) -> Any:
        if get_ident() == writer and not (name.startswith("__") or type(module).__module__.startswith(_FIXED)):
            reads.add(module, name)
        return found(module, name)

    nn.Module.__getattribute__ = asked  # type: ignore[method-assign,assignment]
    try:
        yield reads
    finally:
        del nn.Module.__getattribute__
        reads.settle()
        for table, before in tables:
            for name in table.keys() - before.keys():
                del table[name]
            table.update({name: x for name, x in before.items() if table.get(name, table) is not x})
        reads.settle()
