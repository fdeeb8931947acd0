"""Peak memory, measured on fake tensors."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from tpgen.base._torch import DispatchMode, FakeTensorMode, pytree, without_dispatch_modes

_T = TypeVar("_T")
Workspace = Callable[..., int]
WORKSPACE: dict[str, Workspace] = {}  # by operator, of its arguments: bytes that it takes while it runs


class Footprint(DispatchMode):
    """Dispatch mode that counts bytes of new tensors, ``now`` and at ``peak``."""

    def __init__(self) -> None:
        """Begin at zero bytes."""
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Run an operator; count bytes of results."""
        given = {_storage_key(x) for x in pytree.tree_iter((args, kwargs)) if isinstance(x, Tensor)}
        made = func(*args, **(kwargs or {}))
        for x in pytree.tree_iter(made):
            if isinstance(x, Tensor) and _storage_key(x) not in given:
                self._count_bytes_of_storage_once(x)
        workspace = WORKSPACE.get(func.name())
        self.peak = max(self.peak, self.now + (workspace(*args, **(kwargs or {})) if workspace else 0))
        return made

    def _count_bytes_of_storage_once(self, x: Tensor) -> None:
        storage, key = x.untyped_storage(), _storage_key(x)
        if key in self._seen:
            return
        size = storage.nbytes()
        self._seen.add(key)
        self.now += size
        weakref.finalize(storage, self._discount_storage, key, size).atexit = False

    def _discount_storage(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


def _storage_key(x: Tensor) -> int:
    return x.untyped_storage()._cdata


def run_on_fake_tensors(run: Callable[[Footprint], _T]) -> _T:
    """Call ``run`` with fake tensors (shapes only) and their `Footprint`.

    >>> import torch
    >>> def double(taken):
    ...     x = torch.empty(1000)
    ...     (x + x) * 2
    ...     return taken.now, taken.peak
    >>> run_on_fake_tensors(double)
    (4000, 12000)
    """
    with without_dispatch_modes(), FakeTensorMode(allow_non_fake_inputs=True), Footprint() as taken:
        return run(taken)
