"""``tpgen cache``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import click

import tpgen.nn.polynomial  # the modules whose caches are told of
import tpgen.nn.symmetric_contraction  # noqa: F401
from tpgen.base.errors import TpgenError
from tpgen.base.remember import caches
from tpgen.kernels.build.build import cache_clear, cache_info
from tpgen.kernels.build.cache import check_cache_is_lasting
from tpgen.kernels.runtime.warm import check_capabilities, warm, warm_cuda
from tpgen.nn.planned import PlannedModule
from tpgen.planner.problems import Problem
from tpgen.tools.cli import types
from tpgen.tools.cli.networks import find_network, refuse_options
from tpgen.tools.cli.options import add_run_options, add_subject_options, json_option
from tpgen.tools.cli.spelling import SuggestingGroup
from tpgen.tools.cli.terminal import show_progress


@click.group("cache", cls=SuggestingGroup)
def cache_command() -> None:
    """Show, remove or build ahead the compiled kernels.

    Kernels and measured choices are in $TPGEN_CACHE_DIR or the user's cache directory.
    """


@cache_command.command("info")
@json_option
def info_command(as_json: bool) -> None:
    """Show the cache directory, number of kernels and size."""
    found = cache_info()
    click.echo(json.dumps(asdict(found)) if as_json else str(found))


@cache_command.command("clear")
@json_option
def clear_command(as_json: bool) -> None:
    """Remove every kernel and measured choice."""
    removed = cache_clear()
    click.echo(json.dumps({"removed": removed}) if as_json else f"removed {removed} kernels")


@cache_command.command("process")
@json_option
def process_command(as_json: bool) -> None:
    """Show caches in memory, and limits.

    TPGEN_CACHE_ENTRIES and TPGEN_REUSE_MB set lower limits; programs call `tpgen.caches()`.
    """
    found = caches()
    click.echo(json.dumps([asdict(state) for state in found]) if as_json else str(found))


@cache_command.command("warm")
@partial(add_subject_options, polynomials=True)
@add_run_options
@click.option("--conv", "convolution", is_flag=True, help="Those of TensorProductConv.")
@click.option("--forces", is_flag=True, help="Those that training on forces needs besides.")
@click.option(
    "--arch",
    "capabilities",
    type=types.capabilities,
    metavar="SM,...",
    help="CUDA kernels for such GPUs, like sm_80,sm_90; no GPU is needed.",
)
@json_option
def warm_command(
    problem: Problem | None,
    network: str | None,
    convolution: bool,
    forces: bool,
    capabilities: tuple[int, ...] | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Build kernels now, so that the first call is fast.

    Builds forward and backward kernels of a product or polynomial; with --arch, which networks need, for GPUs.
    """
    name = problem.name if problem else str(network)
    check_cache_is_lasting()
    with show_progress(f"compile {name}"):
        if capabilities:
            found = _build_kernels_for_gpus(problem, network, capabilities, convolution, forces, options)
        elif problem:
            found = WarmedKernels(warm([problem.plan], options["layout"], [options["dtype"]], convolution, forces))
        else:
            raise click.UsageError(f"{name} is a network: for GPUs give --arch too; on a CPU a first call builds them")
    path = cache_info().path
    if as_json:
        click.echo(json.dumps({**asdict(found), "path": path}))
    else:
        click.echo("\n".join([f"{found.ready} kernels ready in {path}", *found.without]))


@dataclass
class WarmedKernels:
    """Number of ready kernels, and reasons for missing kernels."""

    ready: int = 0
    without: list[str] = field(default_factory=list)


def _build_kernels_for_gpus(
    problem: Problem | None,
    network: str | None,
    capabilities: tuple[int, ...],
    convolution: bool,
    forces: bool,
    options: dict[str, Any],
) -> WarmedKernels:
    dtype, layout = options["dtype"], options["layout"]
    if problem is not None:
        return WarmedKernels(warm_cuda(problem.plan, capabilities, layout, dtype, convolution, forces))
    refuse_options(("layout", "convolution"), "the modules of a network say that themselves")
    check_capabilities(capabilities)  # once for all: what follows is said of each module
    made = WarmedKernels()
    for name, module in find_network(str(network)).module.named_modules():
        if isinstance(module, PlannedModule):
            own = getattr(module, "layout", layout)
            try:
                made.ready += warm_cuda(module.plan, capabilities, own, dtype, module.edges, forces)
            except TpgenError as error:
                made.without.append(f"{name}: {error}")
    return made
