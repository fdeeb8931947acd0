"""The first import of e3nn: every package of ours that names it imports this module before its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.serialization

with torch.serialization.safe_globals([slice]):  # e3nn 0.4 keeps one in the file of constants that it loads
    import e3nn.o3  # noqa: F401


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """e3nn rounds its couplings and generators to the default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
