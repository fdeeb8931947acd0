"""Choose the callable that runs a program."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tpgen.compiler.backends import Runner, compile_program, overwrites_results
from tpgen.compiler.chunks import ChunkedProgram, Depth
from tpgen.compiler.closed_form import ClosedForm
from tpgen.compiler.config import Config
from tpgen.form.form import Form, SlotNames


def make_form_runner(form: Form, program: nn.Module, config: Config, like: Tensor) -> Runner:
    """Callable of a form's ``program``, compiled and chunked as ``config`` says."""

    def compiled(program: nn.Module) -> Runner:
        return compile_program(program, config)

    if config.strategy == "kernel" and form.opened == ("out",) and config.backend != "script":
        return program  # one call, differentiable to any order; torch.compile around it would stop at the first
    if config.backend == "script" or torch.compiler.is_compiling():
        return compiled(program)
    run: Runner = program
    if config.backend != "eager":
        run = ClosedForm(form, config.strategy, like, compiled, overwrites_results(config, like.device))
    if config.max_bytes is None:
        return run
    given = [*(_axes_behind_batch(form, slot) for slot in form.given), *(0 for _ in form.indices)]
    return ChunkedProgram(run, program, given, _axes_behind_batch(form, form.opened), config.max_bytes)


def make_row_runner(
    program: nn.Module, config: Config, like: Tensor, argument_depths: Sequence[Depth], result_depth: Depth
) -> Runner:
    """Callable of a row-wise program, compiled and chunked as ``config`` says; depths as in `ChunkedProgram`."""
    compiles = config.backend not in ("eager", "script") and config.strategy != "kernel"
    if torch.compiler.is_compiling() or config.backend == "script":
        return compile_program(program, config)
    if config.max_bytes is None and not compiles:
        return program
    if not compiles:
        return ChunkedProgram(program, program, argument_depths, result_depth, config.max_bytes)
    clone_results = overwrites_results(config, like.device)
    return ChunkedProgram(
        compile_program(program, config), program, argument_depths, result_depth, config.max_bytes, 1, clone_results
    )


def _axes_behind_batch(form: Form, slot: SlotNames) -> Depth:
    # the number of axes of a slot's tensor behind those of the batch; None where an index or no row finds it
    return len(form.shape(slot)) if form.row(slot) and form.index(slot) is None else None
