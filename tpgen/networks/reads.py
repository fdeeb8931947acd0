"""Values that a network's code reads in a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from sys import _getframe
from threading import get_ident
from typing import Any

from torch import Tensor, fx, nn
from torch.nn.modules import module as torch_modules
from torch.utils.hooks import RemovableHandle

from tpgen.base.errors import DeployError
from tpgen.kernels.runtime.native.identity import ABSENT
from tpgen.networks.parts import PartsOf, attribute_names, body_of, items_of
from tpgen.networks.reach import ReachableState, RecordedEntry, RecordedObject, is_library_code
from tpgen.networks.watch import Watch, is_unchanged

# modules that decide by nothing but their plan and tensors, or cannot be changed
FIXED = ("tpgen.nn.", "tpgen.kernels.", "tpgen.emitter.", "torch.jit")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_HOOK = "a hook"
_HELD = ("_parameters", "_buffers", "_modules")
_OF_ALL = [x for name, x in vars(torch_modules).items() if name.startswith("_global_") and isinstance(x, dict)]


class Reads:
    """Module attributes that code has read, and objects reachable from these."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, str], RecordedEntry] = {}
        self._wholes: dict[int, RecordedObject] = {}
        self._hooks: list[RecordedObject] = []
        self._bodies: list[RecordedObject] = []
        self._tables: list[RecordedEntry] = []
        self._replaced: list[tuple[str, Tensor]] = []
        self._reach = ReachableState({}, ())
        self._watch, self._no_hooks, self._handles = Watch((), (), ()), Watch((), (), ()), -1
        self._constants: list[tuple[Tensor, int]] = []

    def record_attribute_read(self, module: nn.Module, name: str) -> None:
        """Record the read of a module's attribute."""
        held = object.__getattribute__(module, "__dict__")
        table = held.get("_modules", {})
        if name == "__dict__":
            self._record_parts_once(module, attribute_names)
            for each in held.keys() - _TABLES:
                self._record_dict_entry(held, each)
        elif name == "_modules":  # as a sequence does
            self._record_parts_once(table, items_of)
        elif name in held:
            if name not in _TABLES:
                self._record_dict_entry(held, name)
        elif name == "forward" or not hasattr(nn.Module, name):
            self._record_dict_entry(held, name)
            if not hasattr(type(module), name):
                self._record_lookup_in_module_tables(held, name)

    def _record_lookup_in_module_tables(self, module_dict: dict[str, Any], name: str) -> None:
        # note a name that a module looks up in its tables: where it is absent, and what is no input of a program
        for table in (module_dict.get(of, {}) for of in _HELD):
            if not isinstance(table.get(name), Tensor):
                self._record_dict_entry(table, name)
            if name in table:
                return

    def _record_dict_entry(self, table: dict[str, Any], name: str) -> None:
        self._found.setdefault((id(table), name), RecordedEntry(table, name, table.get(name, ABSENT)))

    def _record_parts_once(self, x: Any, parts: PartsOf) -> None:
        self._wholes.setdefault(id(x), RecordedObject(type(x).__name__, x, parts, parts(x), 0))

    def record_hooks_and_classes(self, modules: Sequence[nn.Module]) -> None:
        """Record hooks, classes and attribute tables of modules."""
        self._hooks = [RecordedObject(_HOOK, table, items_of, items_of(table), 0) for table in _OF_ALL]
        for module in modules:
            held = object.__getattribute__(module, "__dict__")
            self._bodies.append(RecordedObject(type(module).__name__, module, body_of, body_of(module), 0))
            self._tables += [RecordedEntry(held, name, held[name]) for name in (*_HELD, *_HOOKS) if name in held]
            hooks = (held[name] for name in _HOOKS if name in held)
            self._hooks += [RecordedObject(_HOOK, table, items_of, items_of(table), 0) for table in hooks]

    def drop_written_attributes(self, values_before: dict[int, dict[str, Any]] | None = None) -> None:
        """Drop attributes that code wrote; `DeployError` if code read one of ``values_before``."""
        for place in self._found.values() if values_before else ():
            earlier = (values_before or {}).get(id(place.table), {}).get(place.name, self)
            if not is_unchanged(place) and place.value is earlier:
                if not isinstance(earlier, Tensor):
                    raise _error_of_value_that_calls_change(f"reads {place.name} and changes it")
                self._replaced.append((place.name, earlier))  # as of a cache, of which only the shape is read
        self._found = {key: place for key, place in self._found.items() if is_unchanged(place)}

    def watch_reachable_values(self, reach: ReachableState, modules: Sequence[nn.Module]) -> None:
        """Watch recorded values, and all objects that code reaches from these."""
        for module in modules:
            reach.record_reachable_from(type(module).__name__, module)
        self._reach = reach
        for place in self._found.values():
            reach.record_reachable_from(place.name, place.value)
        for hook in chain.from_iterable(hooks.x.values() for hooks in self._hooks):
            reach.record_reachable_from(_HOOK, hook)
        places = [*self._found.values(), *self._tables, *reach.places.values()]
        some, none = ([of for of in self._hooks if bool(of.value) is any_hook] for any_hook in (True, False))
        wholes = [*self._bodies, *some, *self._wholes.values(), *reach.wholes.values()]
        self._no_hooks, self._handles = Watch((), none, ()), -1
        self._watch = Watch(places, wholes, [x for _, x in reach.tensors.values()])

    def watch_graph_constants(self, graph: fx.GraphModule) -> None:
        """Watch a graph's constants; `DeployError` for a replaced one."""
        found = [getattr(graph, str(node.target), None) for node in graph.graph.find_nodes(op="get_attr")]
        tensors = {id(x): x for x in found if isinstance(x, Tensor) and not x.is_inference()}
        for name, x in self._replaced:
            if id(x) in tensors:
                raise _error_of_value_that_calls_change(f"computes with {name} and changes it")
        self._constants = [(x, x._version) for x in tensors.values()]

    def drop_objects_changed_by_hooks(self, reach: ReachableState) -> None:
        """Drop objects changed by hooks; `DeployError` for other changed objects."""
        for name, key in self._watch.changed_names_and_keys():
            if not name.startswith(_HOOK):
                raise _error_of_value_that_calls_change(f"changes {name}")
            reach.wholes.pop(key, None)

    def tensors(self) -> list[tuple[str, Tensor]]:
        """Reached tensors with names, without parameters and buffers."""
        return list(self._reach.tensors.values())

    def is_unchanged(self) -> bool:
        """Whether everything recorded is unchanged."""
        if not (self._watch.is_unchanged() and (self._handles == RemovableHandle.next_id or self._has_no_new_hook())):
            return False
        return not self._constants or not any(x._version != version for x, version in self._constants)

    def _has_no_new_hook(self) -> bool:
        handles = RemovableHandle.next_id
        if self._no_hooks.is_unchanged():
            self._handles = handles
        return self._handles == handles


def _error_of_value_that_calls_change(what: str) -> DeployError:
    return DeployError(f"forward {what} in every call, which a program would not: take what changes out of forward")


_TABLES = frozenset(vars(nn.Module())) - {"training"}


@contextmanager
def reading(modules: Sequence[nn.Module], kept: bool = False) -> Iterator[Reads]:
    """Record reads of modules' attributes inside the block; undo writes unless ``kept``."""
    reads, found = Reads(), object.__getattribute__
    reads.record_hooks_and_classes(modules)
    writer = get_ident()
    tables = [(found(module, "__dict__"), dict(found(module, "__dict__"))) for module in modules]

    def note_and_get_attribute(module: nn.Module, name: str) -> Any:
        plain = not name.startswith("__") or (name == "__dict__" and not is_library_code(_getframe(1).f_code))
        if get_ident() == writer and plain and not type(module).__module__.startswith(FIXED):
            reads.record_attribute_read(module, name)
        return found(module, name)

    nn.Module.__getattribute__ = note_and_get_attribute  # type: ignore[method-assign,assignment]
    try:
        yield reads
    finally:
        del nn.Module.__getattribute__
        read = None if kept else {id(table): before for table, before in tables}
        try:
            reads.drop_written_attributes(read)
        finally:
            for table, before in () if kept else tables:
                for name in table.keys() - before.keys():
                    del table[name]
                table.update({name: x for name, x in before.items() if table.get(name, table) is not x})
        reads.drop_written_attributes()
