"""Functions of user code that a trace calls as they are."""

from __future__ import annotations

import dis
import gc
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from tpgen.networks.reach import (
    FINDING_CODE,
    OWN_CODE,
    PLAIN_KINDS,
    TORCH_CODE,
    are_globals_of_library,
    is_library_code,
    names_of_globals_read,
)

_STATELESS = (*PLAIN_KINDS, ModuleType, BuiltinFunctionType, type, np.ndarray, np.generic, np.ufunc, Tensor)
_WRITES_ELSEWHERE = ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR")
_WITHOUT_FUNCTION = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class FunctionNotedError(BaseException):
    """An example has met a user function: begin again."""


@dataclass
class UserFunctions:
    """Code of user functions: ``whole`` ones run untraced, ``followed`` ones are traced."""

    whole: set[CodeType] = field(default_factory=set)
    followed: set[CodeType] = field(default_factory=set)
    kept: dict[int, tuple] = field(default_factory=dict)  # what a program keeps of each call, in order
    have_arrays: bool = False
    results: list[Any] | None = None  # of the first example, without findings

    def make_opaque_or_traced(self, code: CodeType) -> None:
        """Let a function run untraced, or, if so already, be traced."""
        (self.followed if code in self.whole else self.whole).add(code)
        self.whole.difference_update(self.followed)

    def find_outermost_opaque_candidate(self) -> CodeType | None:
        """Code of the outermost running user function that can run untraced."""
        found: list[CodeType] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not _is_method_of_module(frame):
            code = frame.f_code
            if code.co_filename.startswith(OWN_CODE) and code.co_filename not in FINDING_CODE:
                found = found[:-1]  # the network itself is a function
                break
            if not code.co_filename.startswith((OWN_CODE, TORCH_CODE)):
                found.append(code)
            frame = frame.f_back
        return next(filter(self._can_be_opaque, reversed(found)), None)

    def _can_be_opaque(self, code: CodeType) -> bool:
        plain = not (code.co_freevars or code.co_flags & _WITHOUT_FUNCTION or code in self.followed)
        functions = _functions_of_code(code) if plain else []
        return bool(functions) and not any(_may_write_state(function, set()) for function in functions)


def _is_method_of_module(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_argcount > 0 and isinstance(frame.f_locals.get(code.co_varnames[0]), nn.Module)


def _functions_of_code(code: CodeType) -> list[FunctionType]:
    return [x for x in gc.get_referrers(code) if isinstance(x, FunctionType) and x.__code__ is code]


def _may_write_state(function: FunctionType, seen: set[CodeType]) -> bool:
    # whether a function, or one that it names, may write what a network reads
    code, names = function.__code__, function.__globals__
    if code in seen or is_library_code(code) or are_globals_of_library(names):
        return False
    seen.add(code)
    if any(step.opname in _WRITES_ELSEWHERE for step in dis.get_instructions(code)):
        return True
    found = [names[name] for name in names_of_globals_read(code) if name in names]
    return any(
        _may_write_state(x, seen) if isinstance(x, FunctionType) else not isinstance(x, _STATELESS) for x in found
    )


@contextmanager
def replace_calls_of_code(code: CodeType, replacement: Callable[..., Any]) -> Iterator[None]:
    """Let functions of this code call ``replacement(function, *arguments)`` inside the block.

    >>> def double(x):
    ...     return 2 * x
    >>> with replace_calls_of_code(double.__code__, lambda function, x: -function(x)):
    ...     double(3)
    -6
    >>> double(3)
    6
    """
    functions = _functions_of_code(code)
    for function in functions:
        plain = FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
        plain.__kwdefaults__ = function.__kwdefaults__
        function.__code__ = _make_code_that_calls(partial(replacement, plain))
    try:
        yield
    finally:
        for function in functions:
            function.__code__ = code


def _make_code_that_calls(target: Callable[..., Any]) -> CodeType:
    # code belongs to any globals: what it calls is a constant
    def relay(*args: Any, **options: Any) -> Any:
        return "target".__call__(*args, **options)  # type: ignore[operator]

    code = relay.__code__
    return code.replace(co_consts=tuple(target if x == "target" else x for x in code.co_consts))
