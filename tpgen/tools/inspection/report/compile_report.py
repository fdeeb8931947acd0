"""Reports on `torch.compile` of modules.

>>> import torch
>>> report = compile_report(torch.nn.ReLU(), [torch.randn(4, 3)], sections=["partition"])
>>> report["partition"].data["partitions"][0]["saved"][0]["shape"]
(4, 3)
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from tpgen.base._torch import pytree
from tpgen.base.clock import with_threads
from tpgen.base.errors import TpgenError, check_known
from tpgen.base.progress import ProgressOption, step_reporter
from tpgen.networks.trial import call_without_gradients, draws_random_numbers, is_index, restore_module_after
from tpgen.tools.inspection.report.sections import (
    REMARK,
    SECTIONS,
    ReportSubject,
    describe_inputs,
    give_irreps_a_length,
)
from tpgen.tools.inspection.report.values import CompileReport, Section, check_module_and_inputs, describe_error

_RANDOM = (
    "the module draws random numbers at a call (dropout?), so errors compare different numbers, and compiled code "
    "draws others than eager: call module.eval() first, where that is not what you measure"
)


class ReportError(TpgenError):
    """Wrong module, inputs or section."""


def compile_report(
    module: nn.Module,
    inputs: Sequence[Any],
    *,
    sections: Iterable[str] | None = None,
    varied: Iterable[Sequence[Any]] | None = None,
    inductor: bool = True,
    repeats: int = 5,
    threads: int | None = 1,
    progress: ProgressOption = None,
) -> CompileReport:
    """Compile a module with torch's backends; report graphs, guards, times, gradients and kernels.

    ``sections`` are names of `SECTIONS`; ``varied`` are arguments of other shapes (None: more and fewer rows);
    ``repeats`` are timings per backend.  Dynamo is reset: the process compiles earlier code again.

    Raises `ReportError` for a wrong module, failing inputs, unknown sections, and ``repeats < 1``.
    """
    names = tuple(SECTIONS if sections is None else sections)
    check_known("section", names, SECTIONS, ReportError)
    if repeats < 1:
        raise ReportError(f"repeats is how often each backend is timed and must be positive, got {repeats}")
    _check_module_runs(module, inputs)
    given = tuple(inputs)
    others = _make_inputs_with_other_row_counts(given) if varied is None else tuple(tuple(v) for v in varied)
    subject = ReportSubject(module, given, others, inductor, repeats)
    made = []
    with restore_module_after(module), with_threads(threads), step_reporter(progress, len(names)) as begin:
        is_random = draws_random_numbers(lambda: call_without_gradients(module, given))
        for name in (n for n in SECTIONS if n in names):
            begin(name)
            made.append(_make_report_section(name, subject))
    text = repr(module)
    title = type(module).__name__ if "\n" in text or len(text) > 200 else text
    remarks = {REMARK: subject.was_given_length, _RANDOM: is_random}
    shown_remarks = tuple(remark for remark, holds in remarks.items() if holds)
    shown = () if sections is None else tuple(section.name for section in made)
    return CompileReport(title, describe_inputs(given), tuple(made), shown_remarks, shown)


def _make_report_section(name: str, subject: ReportSubject) -> Section:
    part = SECTIONS[name]
    logger = logging.getLogger("torch._guards")  # says at length what the section says in a line
    level = logger.level
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        logger.setLevel(logging.CRITICAL)
        try:
            with give_irreps_a_length() if part.compiles and subject.needs_irrep_length else nullcontext():
                text, data = part.write(subject)
            missing = ""
        except Exception as error:  # compilers fail in many ways; the other sections are still worth having
            text, data, missing = "", {}, describe_error(error)
        finally:
            logger.setLevel(level)
    heard = tuple(dict.fromkeys(str(w.message).splitlines()[0] for w in said if str(w.message)))
    return Section(name, part.title, text, data, missing, heard)


def _check_module_runs(module: nn.Module, inputs: Sequence[Any]) -> None:
    check_module_and_inputs("compile_report(module, [x, y])", module, inputs, ReportError)
    try:
        with restore_module_after(module):
            call_without_gradients(module, inputs)
    except Exception as error:
        raise ReportError(
            f"{type(module).__name__} fails on these inputs before anything is compiled "
            f"({describe_error(error)}); give inputs that it takes: "
            f"{', '.join(describe_inputs(inputs)) or 'none'} were given"
        ) from error


def _make_inputs_with_other_row_counts(inputs: tuple[Any, ...]) -> tuple[tuple[Any, ...], ...]:
    # the inputs with one row more, with twice as many and one, and with a single row; none where any are integers
    leaves, form = pytree.tree_flatten(inputs)
    rows = next((a.shape[0] for a in leaves if isinstance(a, Tensor) and a.dim() >= 2), 0)
    if rows == 0 or any(map(is_index, leaves)):
        return ()

    def resize_rows(value: Any, count: int) -> Any:
        if isinstance(value, Tensor) and value.dim() >= 2 and value.shape[0] == rows:
            return value[torch.arange(count, device=value.device) % rows]
        return value

    return tuple(
        pytree.tree_unflatten([resize_rows(a, count) for a in leaves], form) for count in (rows + 1, 2 * rows + 1, 1)
    )
