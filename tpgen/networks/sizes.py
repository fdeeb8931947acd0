"""Conditions on a program's input sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from tpgen.base import _torch
from tpgen.base.locks import cached_property

Shape = tuple[int | str, ...]  # sizes that are fixed, and names of those that are open
_KIND = attrgetter("dtype", "device", "ndim")
_WORDS = {"math": math, "torch": torch}  # of guards of torch's


@dataclass(frozen=True)
class InputSizes:
    """Shapes, dtypes, devices and size conditions of a program's inputs."""

    shapes: tuple[Shape, ...]
    like: tuple[tuple[torch.dtype, torch.device], ...]
    conditions: tuple[str, ...] = ()  # in Python, by the names in shapes
    least: int = 2  # of open sizes

    @staticmethod
    def read_from_trace(values: Sequence[Tensor], least: int = 2) -> InputSizes:
        """Read shapes and current guards of a trace's inputs."""
        shapes = tuple(tuple(map(_fixed_size_or_symbol_name, x.shape)) for x in values)
        return InputSizes(shapes, tuple((x.dtype, x.device) for x in values), tuple(size_guards(values)), least)

    def and_also(self, conditions: Iterable[str]) -> InputSizes:
        """A copy with more conditions."""
        return replace(self, conditions=tuple(dict.fromkeys((*self.conditions, *conditions))))

    def part(self, begin: int, end: int | None) -> InputSizes:
        """Restrict to inputs from ``begin`` to ``end``, and conditions on these.

        >>> here = torch.device("cpu")
        >>> InputSizes((("a",), ("b", 3)), ((torch.float32, here),) * 2, ("a > 5", "a < b")).part(0, 1)
        InputSizes(shapes=(('a',),), like=((torch.float32, device(type='cpu')),), conditions=('a > 5',), least=2)
        """
        shapes = self.shapes[begin:end]
        known = {name for shape in shapes for name in shape if isinstance(name, str)}
        needed = {name for shape in self.shapes for name in shape if isinstance(name, str)} - known
        kept = (text for text in self.conditions if needed.isdisjoint(compile(text, "<guard>", "eval").co_names))
        return InputSizes(shapes, self.like[begin:end], tuple(kept), self.least)

    def hold(self, inputs: Sequence[Tensor]) -> bool:
        """Whether inputs satisfy shapes, dtypes, devices and conditions."""
        begin = self._count_inputs_before_open_size
        if not self._static_inputs_matcher(inputs[:begin]):
            return False
        rest, (kinds, fixed, opened) = inputs[begin:], self._kinds_fixed_sizes_and_open_size_positions
        if list(map(_KIND, rest)) != kinds:
            return False
        sizes = [n for x in rest for n in x.shape]
        return all(sizes[n] == size for n, size in fixed) and self._size_condition_check(
            tuple([sizes[n] for n in opened])
        )

    def first_broken(self, inputs: Sequence[Tensor], names: Sequence[str]) -> str:
        """First condition that inputs with these ``names`` break, as text; empty if all hold.

        >>> here = torch.device("cpu")
        >>> sizes = InputSizes((("a", 3),), ((torch.float32, here),), ("a <= 25",))
        >>> sizes.first_broken([torch.zeros(40, 3)], ["positions"])
        'positions.shape[0] <= 25'
        """
        for x, shape, like, name in zip(inputs, self.shapes, self.like, names, strict=True):
            if _KIND(x) != (*like, len(shape)):
                return f"{name} of {like[0]}, {like[1]} and {len(shape)} dimensions"
        places = [
            (f"{name}.shape[{k}]", n) for x, name in zip(inputs, names, strict=True) for k, n in enumerate(x.shape)
        ]
        pairs = list(zip(places, (size for shape in self.shapes for size in shape), strict=True))
        for (text, n), size in pairs:
            if isinstance(size, int) and n != size:
                return f"{text} == {size}"
        open_names, conditions = self._size_names_and_conditions
        found = dict(zip(open_names, (place for place, size in pairs if isinstance(size, str)), strict=True))
        values = {name: n for name, (_, n) in found.items()}
        broken = next((text for text in conditions if not eval(text, _WORDS | values)), "")
        return re.sub(r"\w+", lambda word: found.get(word[0], (word[0], 0))[0], broken)

    @cached_property
    def _count_inputs_before_open_size(self) -> int:
        return next((n for n, shape in enumerate(self.shapes) if str in map(type, shape)), len(self.shapes))

    @cached_property
    def _static_inputs_matcher(self) -> Callable[[Sequence[Tensor]], bool]:
        wanted = [
            (*like, shape)
            for shape, like in zip(self.shapes[: self._count_inputs_before_open_size], self.like, strict=False)
        ]
        like_last: Any = None

        def match_static_inputs(inputs: Sequence[Tensor]) -> bool:
            nonlocal like_last
            if like_last is not None and like_last.check(*inputs):
                return True
            if [(x.dtype, x.device, x.shape) for x in inputs] != wanted:
                return False
            like_last = tensor_guards(inputs)
            return True

        return match_static_inputs

    @cached_property
    def _kinds_fixed_sizes_and_open_size_positions(self) -> tuple[list[tuple], list[tuple[int, int]], list[int]]:
        # kinds of all other inputs; of their sizes in a row, fixed ones with their places, and places of open ones
        shapes = self.shapes[self._count_inputs_before_open_size :]
        sizes = [n for shape in shapes for n in shape]
        kinds = [
            (*like, len(shape))
            for shape, like in zip(shapes, self.like[self._count_inputs_before_open_size :], strict=True)
        ]
        fixed = [(n, size) for n, size in enumerate(sizes) if isinstance(size, int)]
        return kinds, fixed, [n for n, size in enumerate(sizes) if isinstance(size, str)]

    @cached_property
    def _size_names_and_conditions(self) -> tuple[list[str], tuple[str, ...]]:
        # a name for each open size in a row, and all conditions by these names
        names: list[str] = []
        equal: list[str] = []
        for n, name in enumerate(name for shape in self.shapes for name in shape if isinstance(name, str)):
            if name in names:
                equal.append(f"{name} == _{n}")
            names.append(f"_{n}" if name in names else name)
        return names, (*(f"{name} >= {self.least}" for name in names if self.least), *equal, *self.conditions)

    @cached_property
    def _size_condition_check(self) -> Callable[[tuple[int, ...]], bool]:
        names, texts = self._size_names_and_conditions
        asks = eval(f"lambda {', '.join(names)}: {' and '.join(f'({text})' for text in texts) or True}", _WORDS)
        last: list[tuple[int, ...]] = []

        def are_size_conditions_met(sizes: tuple[int, ...]) -> bool:
            if last and last[0] == sizes:
                return True
            if asks(*sizes):
                last[:] = [sizes]
                return True
            return False

        return are_size_conditions_met


def size_guards(values: Sequence[Tensor]) -> list[str]:
    """Current guards on a trace's input sizes, as Python text."""
    sizes: list[Any] = [n for x in values for n in x.shape if not isinstance(n, int)]
    guards = [] if not sizes else sizes[0].node.shape_env.guards
    return list(dict.fromkeys(python_text(guard.expr) for guard in guards))


def python_text(expression: Any) -> str:
    """Symbolic expression as Python text."""
    return _torch.PythonPrinter().doprint(expression)


def open_sizes(x: Tensor) -> list[str | None]:
    """The name of each open size of a trace's tensor, equal for sizes that the trace found equal."""
    return [None if isinstance(n, int) or n.node.expr.is_number else str(n.node.expr) for n in x.shape]


def size_in_example(size: Any) -> int | None:
    """A size in the traced example, if known."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    return size.node.hint if size.node.has_hint() else None


def tensor_guards(tensors: Sequence[Tensor]) -> Any:
    """Torch's C++ check for dtypes, shapes and strides of tensors, or None."""
    guards = getattr(_torch, "TensorGuards", None) if tensors else None
    if guards is None:
        return None
    sizes, strides = [list(x.shape) for x in tensors], [list(x.stride()) for x in tensors]
    return guards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)


def _fixed_size_or_symbol_name(n: Any) -> int | str:
    if isinstance(n, int):
        return n
    expression = n.node._expr
    return int(expression) if expression.is_number else str(expression)
