"""A way round e3nn's irreps for Dynamo: let a single irrep tell its length.

A guard on an irrep asks for its length, as it does for every tuple.  e3nn's ``Irrep`` is a tuple that refuses to tell
it, and so `torch.compile` ends in an internal error on each network that keeps irreps as attributes and reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from e3nn.o3 import Irrep

REMARK = (
    "torch.compile stops at this module with an internal error: a guard asks an irrep for its length, and e3nn's Irrep "
    "tells none. The report was made with one; outside of it, run `e3nn.o3.Irrep.__len__ = tuple.__len__` first, or "
    "compile trace_network(module), whose graph holds irreps as text"
)


@contextmanager
def irreps_with_length() -> Iterator[None]:
    """Within it ``len(irrep)`` is 2, the degree and the parity.

    >>> with irreps_with_length():
    ...     len(Irrep("1o"))
    2
    """
    refused = Irrep.__len__
    Irrep.__len__ = tuple.__len__
    try:
        yield
    finally:
        Irrep.__len__ = refused


def is_missing_length(error: BaseException) -> bool:
    """Whether an error is that of an irrep that was asked for its length."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_code is getattr(Irrep.__len__, "__code__", None)
