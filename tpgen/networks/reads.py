"""Names that a network is asked for while it is written down: numbers, modes, modules and tensors of a program.

Parameters and buffers are inputs of a program.  All else that code reads is in the program's text, so the program is
for a network in which it still stands: names that modules are asked for, and what `reach` follows from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import is_
from sys import _getframe
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules import module as torch_modules
from torch.utils.hooks import RemovableHandle

from tpgen.base.errors import DeployError
from tpgen.kernels.runtime.native.identity import functions_stand, names_stand
from tpgen.networks.reach import FUNCTION, PLAIN_KINDS, NamedPlace, Reach, Whole, is_fixed

# modules that decide by nothing but their plan and tensors, or cannot be changed
_FIXED = ("tpgen.nn.", "tpgen.kernels.", "tpgen.emitter.", "torch.jit")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_HOOK = "a hook"
_OF_ALL = [x for name, x in vars(torch_modules).items() if name.startswith("_global_") and isinstance(x, dict)]


class Reads:
    """Names that modules were asked for, each once, and what is reached from there."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, str], NamedPlace] = {}
        self._opened: dict[int, nn.Module] = {}
        self._whole: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
        self._hooks: list[tuple[dict[int, Any], dict[int, Any]]] = []
        self._some: list[tuple[dict[int, Any], dict[int, Any]]] = []
        self._handles = -1
        self._replaced: list[tuple[str, Tensor]] = []
        self._reach = Reach({}, ())
        self._watch = Watch([], [], {})
        self._constants: list[tuple[Tensor, int]] = []

    def add(self, module: nn.Module, name: str) -> None:
        """Note a name that a module was asked for."""
        held = object.__getattribute__(module, "__dict__")
        table = held.get("_modules", {})
        if name == "__dict__":
            self._opened[id(module)] = module
            for each in held.keys() - _TABLES:
                self._found.setdefault((id(held), each), NamedPlace(held, each, held[each]))
        elif name == "_modules":  # as a sequence does
            self._whole.setdefault(id(table), (table, dict(table)))
        elif name in table:
            self._found.setdefault((id(table), name), NamedPlace(table, name, table[name]))
        elif name in held:
            if name not in _TABLES:
                self._found.setdefault((id(held), name), NamedPlace(held, name, held[name]))
        else:
            self._absent(held, name)

    def _absent(self, held: dict[str, Any], name: str) -> None:
        """Note a name that stands for nothing of the module's own yet: of its class, of a tensor, or of nothing."""
        for table in (held.get("_parameters", {}), held.get("_buffers", {})):
            if name in table:
                if table[name] is None:
                    self._found.setdefault((id(table), name), NamedPlace(table, name, None))
                return
        if name == "forward" or not hasattr(nn.Module, name):
            self._found.setdefault((id(held), name), NamedPlace(held, name, None))

    def watch(self, modules: Sequence[nn.Module]) -> None:
        """Note the hooks of modules, which stand in no code."""
        tables = (object.__getattribute__(module, "__dict__").get(name) for module in modules for name in _HOOKS)
        self._hooks = [(table, dict(table)) for table in (*_OF_ALL, *tables) if table is not None]

    def settle(self, before: dict[int, dict[str, Any]] | None = None) -> None:
        """Forget what the code itself has written since; `DeployError` where it had read what was there ``before``."""
        for place in self._found.values() if before else ():
            earlier = (before or {}).get(id(place.table), {}).get(place.name, self)
            if not stands(place) and place.value is earlier:
                if not isinstance(earlier, Tensor):
                    raise _changing(f"reads {place.name} and changes it")
                self._replaced.append((place.name, earlier))  # as of a cache, of which only the shape is read
        self._found = {key: place for key, place in self._found.items() if stands(place)}

    def follow(self, reach: Reach, modules: Sequence[nn.Module]) -> None:
        """Follow what was read, and let this be what `stand` asks for; ``reach`` is of the code that ran."""
        for module in modules:
            reach.add(type(module).__name__, module)
        self._reach = reach
        for place in self._found.values():
            reach.add(place.name, place.value)
        for hook in chain.from_iterable(hooks.values() for _, hooks in self._hooks):
            reach.add(_HOOK, hook)
        opened = [Whole(type(x).__name__, x, _own_names, _own_names(x), 0) for x in self._opened.values()]
        places = [*self._found.values(), *reach.places.values()]
        self._watch = Watch(places, [*opened, *reach.wholes.values()], reach.tensors)

    def keep(self, graph: fx.GraphModule) -> None:
        """Let nobody write to constants of a graph from here on."""
        found = [getattr(graph, str(node.target), None) for node in graph.graph.find_nodes(op="get_attr")]
        tensors = {id(x): x for x in found if isinstance(x, Tensor) and not x.is_inference()}
        for name, x in self._replaced:
            if id(x) in tensors:
                raise _changing(f"computes with {name} and changes it")
        self._constants = [(x, x._version) for x in tensors.values()]

    def settle_objects(self, reach: Reach) -> None:
        """Forget objects that hooks alone have changed since; `DeployError` for others."""
        for name, key in self._watch.changed():
            if not name.startswith(_HOOK):
                raise _changing(f"changes {name}")
            reach.wholes.pop(key, None)

    def tensors(self) -> list[tuple[str, Tensor]]:
        """Tensors that were reached in neither parameters nor buffers, with their names."""
        return list(self._reach.tensors.values())

    def stand(self) -> bool:
        """Whether the network is still what was read."""
        if not self._watch.stands():
            return False
        whole = all(table == before for table, before in self._whole.values())
        return whole and self._same_hooks() and all(x._version == version for x, version in self._constants)

    def _same_hooks(self) -> bool:
        """Whether hooks are those that were there; all are looked at where torch has given out handles since."""
        handles = RemovableHandle.next_id
        same = all(table == before for table, before in (self._some if handles == self._handles else self._hooks))
        if handles != self._handles:
            self._some = [(table, before) for table, before in self._hooks if before]
        self._handles = handles if same else -1
        return same


def _changing(what: str) -> DeployError:
    return DeployError(f"forward {what} in every call, which a program would not: take what changes out of forward")


class Watch:
    """What is read of places and objects, looked at in few calls of C."""

    def __init__(self, places: list[NamedPlace], wholes: list[Whole], tensors: dict[int, tuple[str, Tensor]]) -> None:
        self._places = places
        self._functions = [whole for whole in wholes if whole.parts is FUNCTION]
        self._wholes = [whole for whole in wholes if whole.parts is not FUNCTION]
        self._tensors = [(x, x.detach().clone(), x.requires_grad) for _, x in tensors.values()]
        self._columns()

    def _columns(self) -> None:
        """Take what stands there now, which is the same or equal, for what is looked at."""
        tables, names = [of.table for of in self._places], [of.name for of in self._places]
        self._names_stand = names_stand(tables, names, list(map(dict.get, tables, names)))
        self._functions_stand = functions_stand([whole.x for whole in self._functions])
        self._pairs = [(whole.parts, whole.x) for whole in self._wholes]
        parts = [of(x) for of, x in self._pairs]
        self._lengths, self._flat = list(map(len, parts)), list(chain.from_iterable(parts))

    def stands(self) -> bool:
        """Whether all is as it was."""
        if not all(map(_is_same_tensor, self._tensors)):
            return False
        if self._unmoved():
            return True
        if not (all(map(stands, self._places)) and all(map(_is_whole, (*self._functions, *self._wholes)))):
            return False
        self._columns()
        return True

    def _unmoved(self) -> bool:
        """Whether each thing is the same object; without a frame for each of some hundred names."""
        if not (self._names_stand() and self._functions_stand()):
            return False
        parts = [of(x) for of, x in self._pairs]
        return list(map(len, parts)) == self._lengths and all(map(is_, chain.from_iterable(parts), self._flat))

    def changed(self) -> list[tuple[str, int]]:
        """The names of objects that are not as they were, with their numbers in what was reached."""
        wholes = (*self._functions, *self._wholes)
        moved = [(place.name, 0) for place in self._places if not stands(place)]
        return moved + [(whole.name, whole.key) for whole in wholes if not _is_whole(whole)]


def stands(place: NamedPlace) -> bool:
    """Whether a value stands there still."""
    return _same(place.table.get(place.name), place.value)


def _own_names(module: nn.Module) -> tuple[str, ...]:
    return tuple(object.__getattribute__(module, "__dict__"))


def _is_whole(whole: Whole) -> bool:
    return _same(whole.parts(whole.x), whole.value)


def _is_same_tensor(of: tuple[Tensor, Tensor, bool]) -> bool:
    """Whether a tensor has its numbers, bit by bit: writes by ``data`` are counted by nobody."""
    x, before, asks = of
    if x.requires_grad is not asks or x.dtype != before.dtype or x.shape != before.shape:
        return False
    return torch.equal(x, before) or torch.equal(_bits(x), _bits(before))


def _bits(x: Tensor) -> Tensor:
    return x.detach().contiguous().reshape(-1).view(torch.uint8)


def _same(one: Any, other: Any) -> bool:
    """Whether values are one object, or equal constants; tensors are never compared."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if type(one) is tuple:
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, PLAIN_KINDS) and one == other


_TABLES = frozenset(vars(nn.Module())) - {"training"}


@contextmanager
def reading(modules: Sequence[nn.Module], kept: bool = False) -> Iterator[Reads]:
    """Note what code reads of its modules; what it writes into attributes of these is ``kept`` or not."""
    reads, found = Reads(), object.__getattribute__
    reads.watch(modules)
    writer = get_ident()
    tables = [(found(module, "__dict__"), dict(found(module, "__dict__"))) for module in modules]

    def asked(module: nn.Module, name: str) -> Any:
        plain = not name.startswith("__") or (name == "__dict__" and not is_fixed(_getframe(1).f_code))
        if get_ident() == writer and plain and not type(module).__module__.startswith(_FIXED):
            reads.add(module, name)
        return found(module, name)

    nn.Module.__getattribute__ = asked  # type: ignore[method-assign,assignment]
    try:
        yield reads
    finally:
        del nn.Module.__getattribute__
        read = None if kept else {id(table): before for table, before in tables}
        try:
            reads.settle(read)
        finally:
            for table, before in () if kept else tables:
                for name in table.keys() - before.keys():
                    del table[name]
                table.update({name: x for name, x in before.items() if table.get(name, table) is not x})
        reads.settle()
