"""Backends: how an emitted GraphModule becomes a callable.

Nothing is compiled before the first call, except where a backend is asked for by hand.  This module alone names
`torch.jit`, `torch.compile` and CUDA graphs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tpgen.errors import BackendError, unknown

Runner = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class CompileOptions:
    """What `torch.compile` is told: ``dynamic`` shapes (None: torch decides), ``fullgraph``, Inductor's ``mode``."""

    dynamic: bool | None = None
    fullgraph: bool = False
    mode: str | None = None


def compile_program(program: nn.Module, backend: str = "eager", options: CompileOptions | None = None) -> Runner:
    """The callable that runs a program under a backend.

    Raises `BackendError` for an unknown backend, for options that the backend does not have, and for ``cudagraphs``
    without CUDA.

    >>> compile_program(torch.nn.Identity(), "eager")(torch.zeros(2))
    tensor([0., 0.])
    """
    check_backend(backend, options)
    return BACKENDS[backend](program, options or CompileOptions())


def check_backend(backend: str, options: CompileOptions | None = None) -> None:
    """Raise `BackendError` where a backend cannot be used as asked; compile nothing."""
    if backend not in BACKENDS:
        raise BackendError(unknown("backend", backend, BACKENDS))
    if options and options != CompileOptions() and backend in ("eager", "script"):
        raise BackendError(
            f"backend {backend!r} does not use torch.compile, so dynamic, fullgraph and mode mean nothing to it; "
            "leave them out, or use 'inductor' or 'aot_eager'"
        )
    if options and options.mode and backend != "inductor":
        raise BackendError(f"mode {options.mode!r} is an option of 'inductor' alone; leave it out for {backend!r}")
    if backend == "cudagraphs" and not torch.cuda.is_available():
        raise BackendError(
            "backend 'cudagraphs' records CUDA graphs and this machine has no CUDA device; use 'inductor'"
        )


def overwrites_results(backend: str, options: CompileOptions, device: torch.device) -> bool:
    """Whether a program writes its results into the same memory at each run, as CUDA graphs do.

    >>> overwrites_results("inductor", CompileOptions(mode="reduce-overhead"), torch.device("cpu"))
    False
    """
    records = backend == "cudagraphs" or options.mode in ("reduce-overhead", "max-autotune")
    return records and device.type == "cuda"


def script(module: nn.Module) -> torch.jit.ScriptModule:
    """`torch.jit.script`, its deprecation warnings handled: scripting is what was asked for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"torch\.jit")
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=r".*torch\.jit.*")
        warnings.filterwarnings("ignore", category=UserWarning, message="The TorchScript type system doesn't support")
        return torch.jit.script(module)


def _torch_compile(backend: str) -> Callable[[nn.Module, CompileOptions], Runner]:
    def compile_with(program: nn.Module, options: CompileOptions) -> Runner:
        keywords: dict[str, Any] = {"mode": options.mode} if options.mode else {}
        return torch.compile(program, backend=backend, dynamic=options.dynamic, fullgraph=options.fullgraph, **keywords)

    return compile_with


BACKENDS: dict[str, Callable[[nn.Module, CompileOptions], Runner]] = {
    "eager": lambda program, options: program,
    "script": lambda program, options: script(program),
    "inductor": _torch_compile("inductor"),
    "aot_eager": _torch_compile("aot_eager"),
    "cudagraphs": _torch_compile("cudagraphs"),
}
