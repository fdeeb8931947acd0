"""Callables from GraphModules, by `torch.jit`, `torch.compile` or CUDA graphs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tpgen.base.errors import BackendError, unknown
from tpgen.compiler.config import Config

Runner = Callable[..., torch.Tensor]


def compile_program(program: nn.Module, config: Config) -> Runner:
    """Make a callable that runs a program under a backend.

    Raises `BackendError` for an unknown or unavailable backend or option.

    >>> compile_program(torch.nn.Identity(), Config(backend="eager"))(torch.zeros(2))
    tensor([0., 0.])
    """
    check_backend(config)
    return BACKENDS[config.backend](program, config)


def check_backend(config: Config) -> None:
    """Raise `BackendError` for an unknown or unavailable backend or option."""
    backend = config.backend
    if backend not in BACKENDS:
        raise BackendError(unknown("backend", backend, BACKENDS))
    if config.tells_torch_compile and backend in ("eager", "script"):
        raise BackendError(
            f"backend {backend!r} does not use torch.compile, so dynamic, fullgraph and mode mean nothing to it; "
            "leave them out, or use 'inductor' or 'aot_eager'"
        )
    if config.mode and backend != "inductor":
        raise BackendError(f"mode {config.mode!r} is an option of 'inductor' alone; leave it out for {backend!r}")
    if config.streams and backend != "eager":
        raise BackendError(
            f"streams are nodes of the graph that call torch.cuda, which backend {backend!r} cannot take in; "
            "use backend='eager', or streams=0"
        )
    if config.max_bytes is not None:
        _check_max_bytes(config)
    if backend == "cudagraphs" and not torch.cuda.is_available():
        raise BackendError(
            "backend 'cudagraphs' records CUDA graphs and this machine has no CUDA device; use 'inductor'"
        )


def _check_max_bytes(config: Config) -> None:
    limit = config.max_bytes
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise BackendError(f"max_bytes must be a whole number of bytes above zero, or None for no limit, got {limit!r}")
    if config.backend == "script" or config.streams:
        what = f"streams={config.streams}" if config.streams else "backend 'script'"
        raise BackendError(f"{what} runs all rows at once and cannot keep to max_bytes: leave one of the two out")


def overwrites_results(config: Config, device: torch.device) -> bool:
    """Whether each run overwrites the previous results.

    >>> overwrites_results(Config(backend="inductor", mode="reduce-overhead"), torch.device("cpu"))
    False
    """
    records = config.backend == "cudagraphs" or config.mode in ("reduce-overhead", "max-autotune")
    return records and device.type == "cuda"


def script_module(module: nn.Module) -> torch.jit.ScriptModule:
    """Call `torch.jit.script` without deprecation warnings."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"torch\.jit")
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=r".*torch\.jit.*")
        warnings.filterwarnings("ignore", category=UserWarning, message="The TorchScript type system doesn't support")
        return torch.jit.script(module)


def _torch_compile(program: nn.Module, config: Config) -> Runner:
    keywords: dict[str, Any] = {"mode": config.mode} if config.mode else {}
    return torch.compile(
        program, backend=config.backend, dynamic=config.dynamic, fullgraph=config.fullgraph, **keywords
    )


BACKENDS: dict[str, Callable[[nn.Module, Config], Runner]] = {
    "eager": lambda program, config: program,
    "script": lambda program, config: script_module(program),
    **dict.fromkeys(("inductor", "aot_eager", "cudagraphs"), _torch_compile),
}
