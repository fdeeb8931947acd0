"""Values that executed code reaches beside its arguments."""

from __future__ import annotations

import dis
import os
import sys
import sysconfig
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, MutableSequence, MutableSet
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from threading import local
from types import (
    CodeType,
    FrameType,
    FunctionType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tpgen.base.errors import DeployError
from tpgen.base.locks import without_garbage_collection
from tpgen.kernels.runtime.native.identity import ABSENT
from tpgen.networks.parts import (
    CHANGED,
    FUNCTION,
    KEPT,
    PartsOf,
    attributes_of,
    bases_of,
    body_of,
    class_table,
    closure_cell_content,
    names_of_class,
    parts_function_of,
    slot_names,
)

PLAIN_KINDS = (bool, int, float, complex, str, bytes, type(None), Enum, torch.dtype, torch.device, range, slice)
_LIBRARIES = ("torch", "tpgen", "numpy", "scipy", "sympy", "opt_einsum", "opt_einsum_fx", "typing_extensions")
_FIXED = frozenset({*sys.stdlib_module_names, *_LIBRARIES, "builtins"})
_PYTHON = sysconfig.get_path("stdlib")
# where files of code begin: torch's, and ours
TORCH_CODE, OWN_CODE = f"{Path(torch.__file__).parent}{os.sep}", f"{Path(__file__).parents[1]}{os.sep}"
FINDING_CODE = tuple(  # files whose code runs between a network and the operations that are findings
    str(Path(__file__).with_name(f"{name}.py"))
    for name in ("array_findings", "arrays", "dependent", "lengths", "recording", "user_functions")
)
# code that runs beneath these writes kernels or imports, and computes nothing of a network
_OTHER_WORK = (
    "<frozen importlib",
    *(
        f"{folder}{os.sep}"
        for folder in (
            Path(__file__).parents[1] / "kernels",
            *(Path(torch.__file__).parent / name for name in ("_inductor", "_dynamo")),
        )
    ),
)
_MOST = 20_000  # objects: with more it was no network's

_OPENED = (SimpleNamespace, Namespace, Mapping, MutableSequence, MutableSet, local)  # of Python's own classes


class RecordedEntry(NamedTuple):
    """Entry of a dict, with the recorded value or `ABSENT`."""

    table: dict[str, Any]
    name: str
    value: Any


class RecordedObject(NamedTuple):
    """Object, with the recorded value of all parts."""

    name: str
    x: Any
    parts: PartsOf
    value: tuple
    key: int


@contextmanager
def record_executed_code() -> Iterator[dict[CodeType, dict[str, Any]]]:
    """Record code and globals of user functions that this thread runs inside the block."""
    codes: dict[CodeType, dict[str, Any]] = {}

    def note_code_of_frame(frame: FrameType, _event: str, _argument: Any) -> None:  # none of the lines
        if frame.f_code not in codes and not (is_library_code(frame.f_code) or _is_inside_build_or_import(frame)):
            codes[frame.f_code] = frame.f_globals

    before = sys.gettrace()
    with without_garbage_collection():
        sys.settrace(note_code_of_frame)
        try:
            yield codes
        finally:
            sys.settrace(before)


def _is_inside_build_or_import(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_OTHER_WORK):
            return True
        frame = frame.f_back
    return False


class ReachableState:
    """Dict entries, objects and tensors that code can read, without modules' parameters and buffers."""

    def __init__(self, codes: Mapping[CodeType, dict[str, Any]], modules: Iterable[nn.Module]) -> None:
        self._codes = {code: names for code, names in codes.items() if not are_globals_of_library(names)}
        self._names = {name for code in self._codes for name in _names_in_code(code)}
        self._own = {id(module) for module in modules}
        self._seen: dict[int, Any] = {}
        self.places: dict[tuple[int, str], RecordedEntry] = {}
        self.wholes: dict[int, RecordedObject] = {}
        self.tensors: dict[int, tuple[str, Tensor]] = {}
        self._pending: list[tuple[str, Any]] = []
        for code, table in self._codes.items():
            for name in names_of_globals_read(code):
                self._record_and_queue_dict_entry(f"the global {name}", table, name)
        self._record_state_of_pending_objects()

    def record_reachable_from(self, path: str, x: Any) -> None:
        """Record all that code reaches from a further value."""
        self._pending.append((path, x))
        self._record_state_of_pending_objects()

    def _record_and_queue_dict_entry(self, path: str, table: dict[str, Any], name: str) -> None:
        if (id(table), name) not in self.places:
            self.places[id(table), name] = RecordedEntry(table, name, table.get(name, ABSENT))
            self._pending.append((path, table.get(name)))

    def _record_state_of_pending_objects(self) -> None:
        while self._pending:
            name, x = self._pending.pop()
            if isinstance(x, PLAIN_KINDS) or id(x) in self._seen:
                continue
            self._seen[id(x)] = x
            if len(self._seen) > _MOST:
                raise DeployError(f"{name}: forward reaches more than {_MOST} objects: keep less beside the network")
            if isinstance(x, Tensor):
                self.tensors[id(x)] = name, x
            elif isinstance(x, nn.Module):
                self._record_state_of_module(name, x)
            elif isinstance(x, type):
                self._record_state_of_class(x)
            elif isinstance(x, ModuleType):
                self._record_state_of_python_module(x)
            else:
                self._record_state_of_object(name, x)

    def _record_state_of_module(self, name: str, module: nn.Module) -> None:
        if type(module).__module__.startswith("torch.jit"):
            return
        self._pending.append((name, type(module)))
        for table in () if id(module) in self._own else (module._parameters, module._buffers, module._modules):
            for key in table:
                self._record_and_queue_dict_entry(f"{name}.{key}", table, key)

    def _record_state_of_class(self, kind: type) -> None:
        self._record_parts_of_object(kind.__name__, kind, bases_of, id(kind))
        tables = [(of, class_table(of)) for of in kind.__mro__[:-1] if of is not nn.Module]
        for n, (of, table) in enumerate(tables):
            if _package_name_of_class(of) not in _FIXED:
                self._record_parts_of_object(of.__name__, of, names_of_class, id(of) + 1)
            for name in self._names_of_executed_methods(of, table):
                for _, before in tables[: n + 1]:
                    self._record_and_queue_dict_entry(f"{of.__name__}.{name}", before, name)

    def _names_of_executed_methods(self, kind: type, table: Mapping[str, Any]) -> list[str]:
        if _package_name_of_class(kind) in _FIXED:
            return ["forward"] if "forward" in table and issubclass(kind, nn.Module) else []
        return [name for name, x in table.items() if name in self._names or self._is_executed(x)]

    def _is_executed(self, x: Any) -> bool:
        return getattr(x, "__code__", None) in self._codes

    def _record_state_of_python_module(self, module: ModuleType) -> None:
        table, fixed = vars(module), module.__name__.split(".")[0] in _FIXED
        for name in sorted(self._names & table.keys()):
            if not (fixed and (callable(table[name]) or isinstance(table[name], (ModuleType, *PLAIN_KINDS)))):
                self._record_and_queue_dict_entry(f"{module.__name__}.{name}", table, name)

    def _record_state_of_object(self, name: str, x: Any) -> None:
        kept = parts_function_of(KEPT, x)
        if kept:
            self._pending += [(name, part) for part in kept(x)]
        elif isinstance(x, FunctionType):
            self._record_state_of_function(name, x)
        elif parts := parts_function_of(CHANGED, x):
            self._record_and_queue_parts(name, x, parts)
        if "__wrapped__" in getattr(x, "__dict__", {}):
            self._pending.append((name, x.__wrapped__))
        if type(x) not in CHANGED and type(x) not in KEPT:
            self._record_state_of_instance(name, x, parts_function_of(CHANGED, x) or kept)

    def _record_state_of_function(self, name: str, x: FunctionType) -> None:
        if x.__code__ not in self._codes:
            return
        self._record_and_queue_parts(name, x, FUNCTION)
        for key, cell in zip(x.__code__.co_freevars, x.__closure__ or (), strict=True):
            if key != "__class__":
                self._record_and_queue_parts(f"{name}.{key}", cell, closure_cell_content)
        if vars(x):
            self._record_parts_of_object(name, x, body_of, id(x) + 1)
        for key in sorted(self._names & vars(x).keys()):
            self._record_and_queue_dict_entry(f"{name}.{key}", vars(x), key)

    def _record_state_of_instance(self, name: str, x: Any, parts: PartsOf | None) -> None:
        kind = type(x)
        if hasattr(kind, "__next__"):
            raise DeployError(
                f"{name}: forward reads a {kind.__name__}, which every call moves on: give what it gives as an argument"
            )
        if _package_name_of_class(kind) in _FIXED and not isinstance(x, _OPENED):
            return
        if hasattr(x, "__dict__") or slot_names(kind):
            self._record_and_queue_attributes(name, x)
        elif parts is None and not callable(x):
            raise DeployError(
                f"{name}: forward reads an object of class {kind.__name__}, of which nobody sees when it changes: read "
                "its numbers when the network is made, or give them as arguments"
            )
        self._pending.append((name, kind))

    def _record_and_queue_attributes(self, name: str, x: Any) -> None:
        value = self._record_parts_of_object(name, x, attributes_of, id(x) + 1)
        if isinstance(x, _OPENED) or self._names & {"__dict__", "vars"}:
            self._pending += [(name, part) for part in value]
        else:
            named = sorted(self._names & {*getattr(x, "__dict__", ()), *slot_names(type(x))})
            self._pending += [(f"{name}.{key}", getattr(x, key)) for key in named if hasattr(x, key)]

    def _record_and_queue_parts(self, name: str, x: Any, parts: PartsOf) -> None:
        value = self._record_parts_of_object(name, x, parts, id(x))
        names = value[: len(value) // 2] if isinstance(x, dict) else ()
        keys = [f"{name}[{part!r}]" for part in names] * 2 or [name] * len(value)
        self._pending += list(zip(keys, value, strict=True))

    def _record_parts_of_object(self, name: str, x: Any, parts: PartsOf, key: int) -> tuple:
        self.wholes[key] = RecordedObject(name, x, parts, parts(x), key)
        return self.wholes[key].value


def _package_name_of_class(kind: type) -> str:
    return kind.__module__.split(".")[0]


def is_library_code(code: CodeType) -> bool:
    """Whether code belongs to torch, Python or tpgen."""
    file = code.co_filename
    if file.startswith((TORCH_CODE, OWN_CODE, "<frozen")):
        return True
    return file.startswith(_PYTHON) and not any(name in file for name in ("site-packages", "dist-packages"))


def are_globals_of_library(names: Mapping[str, Any]) -> bool:
    """Whether globals belong to a library."""
    home = str(names.get("__name__", ""))
    return home.split(".")[0] in _FIXED - {"__main__"} or home.startswith("namedtuple_")


def _names_in_code(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from (x for x in code.co_consts if isinstance(x, str) and x.isidentifier())


def names_of_globals_read(code: CodeType) -> list[str]:
    """Globals that code reads."""
    return list(dict.fromkeys(x.argval for x in dis.get_instructions(code) if x.opname in ("LOAD_GLOBAL", "LOAD_NAME")))
