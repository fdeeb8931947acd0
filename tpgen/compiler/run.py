"""Choose the callable that runs the program of a form: itself, compiled, or one that knows its derivatives."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tpgen.compiler.backends import Runner, compile_program, overwrites_results
from tpgen.compiler.chunks import ChunkedForm
from tpgen.compiler.closed_form import ClosedForm
from tpgen.compiler.config import Config
from tpgen.form.form import Form


def run_form(form: Form, program: nn.Module, config: Config, like: Tensor) -> Runner:
    """The program of a form under a backend; where that uses `torch.compile`, with gradients as programs of their own.

    The same with a limit on what a program keeps on the way.  The program was written with the strategy of the config;
    dtype and device are those of ``like``.
    """

    def compiled(program: nn.Module) -> Runner:
        return compile_program(program, config)

    if config.strategy == "kernel" and form.opened == ("out",) and config.backend != "script":
        return program  # one call, differentiable to any order; torch.compile around it would stop at the first
    if config.backend == "script" or torch.compiler.is_compiling():
        return compiled(program)
    given = form, config.strategy, like, compiled, overwrites_results(config, like.device)
    if config.max_bytes is not None:
        return ChunkedForm(*given, max_bytes=config.max_bytes)
    return compiled(program) if config.backend == "eager" else ClosedForm(*given)
