"""Symbolic sizes in a trace, from `len`, `int` and diagonals of tensors."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch
from torch import SymInt, Tensor

from tpgen.base._torch import replaced_attribute
from tpgen.networks.arrays import TracedArray, tensor_read_by_python


def _tensor_behind(x: Any) -> Any:
    return tensor_read_by_python(x) if type(x) is TracedArray else x


def _len_or_symbolic_size(x: Any) -> Any:
    x = _tensor_behind(x)
    return x.shape[0] if isinstance(x, Tensor) and x.dim() else len(x)


def _int_or_symbolic_size(*x: Any, **base: Any) -> Any:
    first: Any = _tensor_behind(x[0]) if len(x) == 1 else None
    if isinstance(first, SymInt):
        return first
    counted = isinstance(first, Tensor) and not (first.is_floating_point() or first.is_complex())
    return first.item() if counted else int(*x, **base)


def _wrap_fill_diagonal_for_symbolic_sizes(fill_diagonal: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def fill_diagonal_by_mask(x: Tensor, value: Any, wrap: bool = False) -> Tensor:
        if wrap or x.dim() != 2 or not any(isinstance(n, SymInt) for n in x.shape):
            return fill_diagonal(x, value, wrap)
        rows, columns = (torch.arange(n, device=x.device) for n in x.shape)
        return x.masked_fill_(rows[:, None] == columns, value)

    return fill_diagonal_by_mask


_REPLACEMENTS: dict[str, Callable[..., Any]] = {"len": _len_or_symbolic_size, "int": _int_or_symbolic_size}


@contextmanager
def open_lengths(codes: Sequence[tuple[CodeType, dict[str, Any]]]) -> Iterator[None]:
    """Let `len` and `int` return symbolic sizes inside the block, in ``codes`` (with globals) that only call these.

    >>> def count(x):
    ...     return len(x) if isinstance(x, int) else int(x)
    >>> with open_lengths([(count.__code__, globals())]):
    ...     len is _len_or_symbolic_size, int is _int_or_symbolic_size
    (True, False)
    >>> len is _len_or_symbolic_size
    False
    """
    places = {id(names): names for _, names in codes}
    uses: dict[tuple[int, str], bool] = {}
    for code, names in codes:
        for name, called in _list_len_and_int_reads_with_is_called(code):
            uses[id(names), name] = called and uses.get((id(names), name), name not in names)
    opened = [(places[place], name) for (place, name), called in uses.items() if called]
    for names, name in opened:
        names[name] = _REPLACEMENTS[name]
    try:
        with replaced_attribute(
            Tensor, "fill_diagonal_", _wrap_fill_diagonal_for_symbolic_sizes
        ):  # torch's fixes the sizes
            yield
    finally:
        for names, name in opened:
            del names[name]


def _list_len_and_int_reads_with_is_called(code: CodeType) -> Iterator[tuple[str, bool]]:
    # names that a function reads, and whether it calls what they say: `int` may be asked for as a class
    if _REPLACEMENTS.keys().isdisjoint(code.co_names):
        return
    for step in dis.get_instructions(code):
        if step.opname.startswith("LOAD_") and step.argval in _REPLACEMENTS:
            yield step.argval, step.argval == "len" or (step.opname == "LOAD_GLOBAL" and "NULL" in step.argrepr)
