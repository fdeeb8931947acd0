"""`len` of a tensor while a network is written down: the size that is open, where Python's own asks for one number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

from torch import Tensor


def _open_len(x: Any) -> Any:
    return x.shape[0] if isinstance(x, Tensor) and x.dim() else len(x)


@contextmanager
def open_lengths(codes: Iterable[tuple[CodeType, dict[str, Any]]]) -> Iterator[None]:
    """Let functions, each with its globals, read the open sizes of tensors by `len`.

    >>> def count(x):
    ...     return len(x)
    >>> with open_lengths([(count.__code__, globals())]):
    ...     len is _open_len
    True
    >>> len is _open_len
    False
    """
    places = {id(names): names for code, names in codes if "len" in code.co_names and "len" not in names}
    for names in places.values():
        names["len"] = _open_len
    try:
        yield
    finally:
        for names in places.values():
            del names["len"]
