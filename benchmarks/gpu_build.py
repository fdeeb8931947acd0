"""Kernels that the checks of `make gpu` call, compiled before, by as many processes as there are processors."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import NamedTuple

import torch

from tpgen.base.errors import TpgenError
from tpgen.base.progress import progress_bar
from tpgen.form.form import form_of
from tpgen.kernels.build.compiler import DTYPES
from tpgen.kernels.cuda.chips import chip_of
from tpgen.kernels.cuda.generate import generate_cuda
from tpgen.kernels.cuda.nvrtc import compile_machine_code
from tpgen.kernels.cuda.placement import place_form
from tpgen.planner.plan import Plan


class Wanted(NamedTuple):
    """A kernel to build."""

    plan: Plan
    layout: str
    dtype: torch.dtype
    opened: tuple[str, ...]
    indexed: bool = False


FIRST = (("out",), ("x1", "x2", "w"))
TWICE = (*FIRST, ("x2", "w"), ("x1", "w"), ("x1", "x2"))  # and gradients of all gradients
FORCES = (*FIRST, ("x2",), ("x1", "w", "out"))  # and gradients of the gradient of x2


def wanted_of(
    plan: Plan, layout: str, dtype: torch.dtype, opened: Iterable[tuple[str, ...]] = FIRST, indexed: bool = False
) -> list[Wanted]:
    """The kernels of a product with some sets of open slots."""
    there = [name for name in ("x1", "x2", "w", "out") if name != "w" or plan.weight_numel]
    sets = [tuple(n for n in slots if n in there) for slots in opened]
    if indexed:  # two ends of a gather: a sweep in each order
        sets = [tuple(n for n in slots if n != "out" or "x1" not in slots) for slots in sets]
    return [Wanted(plan, layout, dtype, slots, indexed) for slots in dict.fromkeys(sets)]


def build(wanted: Wanted, arch: int) -> str | None:
    """Compile a kernel into the cache; what stands in the way, else None."""
    plan, layout, dtype, opened, indexed = wanted
    try:
        placement = place_form(form_of(plan, layout), DTYPES[dtype], opened, chip_of(arch), indexed)
        compile_machine_code(generate_cuda(placement).text, arch)
    except TpgenError as error:
        return str(error)
    return None


def build_all(wanted: Iterable[Wanted], arch: int, seconds: float) -> int:
    """Compile kernels side by side; how many are ready in time.

    By processes, since a compiler within one process takes one text at a time.  What is not ready, or cannot be built,
    is compiled or refused where it is called.
    """
    kernels = list(dict.fromkeys(wanted))
    workers = min(os.cpu_count() or 1, len(kernels))
    pool = ProcessPoolExecutor(max(1, workers), get_context("spawn"))  # CUDA does not outlive a fork
    ready = 0
    try:
        with progress_bar(len(kernels)) as shown:
            shown.begin_activity("compile kernels")
            for done in as_completed([pool.submit(build, one, arch) for one in kernels], seconds):
                ready += done.result() is None
                shown.finish_step()
    except TimeoutError:
        pass
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return ready
