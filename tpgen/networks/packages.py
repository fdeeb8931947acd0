"""Programs as packages of AOTInductor, for any number of rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

from torch.export import ExportedProgram

from tpgen import _torch

_LOCK = RLock()  # of what is changed of Inductor meanwhile


def write_package(program: ExportedProgram, file: Any, options: dict[str, Any] | None = None) -> None:
    """Compile a program into a file, which is a path or takes bytes."""
    with _LOCK, _sums_of_any_length(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*LeafSpec.*is deprecated", category=FutureWarning)  # torch's own
        _torch.compile_package(program, package_path=file, inductor_configs=options)


@contextmanager
def _sums_of_any_length() -> Iterator[None]:
    """Let Inductor sum rows without asking whether they are more than 4,096.

    It asks the example, to sum many in steps, and the package then refuses other answers: a network deployed with eight
    atoms would refuse 4,097 edges.
    """
    kernel = _torch.CppKernel
    asked = getattr(kernel, "need_use_acc_helper", None)
    if asked is None:  # of an older torch
        yield
        return

    def needs_steps(self: Any, reduction: str, *rest: Any) -> bool:
        is_open = any(not size.is_number for size in self.call_ranges[self.reduction_depth :])
        return not (is_open and reduction == "sum") and asked(self, reduction, *rest)

    kernel.need_use_acc_helper = needs_steps
    try:
        yield
    finally:
        kernel.need_use_acc_helper = asked
