"""``tpgen cache``: the compiled kernels of this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console

import tpgen.nn.polynomial  # the modules whose caches are told of
import tpgen.nn.symmetric_contraction  # noqa: F401
from tpgen.cli.groups import Spelled
from tpgen.cli.options import json_option, product_options, run_options
from tpgen.kernels.libraries.build import cache_clear, cache_info
from tpgen.kernels.operators.warm import warm
from tpgen.planner.problems import Problem
from tpgen.remember import caches


@click.group("cache", cls=Spelled)
def cache() -> None:
    """Show, remove or build ahead the compiled kernels.

    Kernels and measured choices are kept in $TPGEN_CACHE_DIR, or in the user's cache directory.
    """


@cache.command()
@json_option
def info(as_json: bool) -> None:
    """Where the cache is, how many kernels it holds and how large it is."""
    found = cache_info()
    click.echo(json.dumps(asdict(found)) if as_json else str(found))


@cache.command()
@json_option
def clear(as_json: bool) -> None:
    """Remove every kernel and every measured choice."""
    removed = cache_clear()
    click.echo(json.dumps({"removed": removed}) if as_json else f"removed {removed} kernels")


@cache.command()
@json_option
def process(as_json: bool) -> None:
    """What a process remembers beside them, and how much of it at most.

    TPGEN_CACHE_ENTRIES and TPGEN_REUSE_MB set lower limits; `tpgen.caches()` says the same from inside a program.
    """
    found = caches()
    click.echo(json.dumps([asdict(state) for state in found]) if as_json else str(found))


@cache.command("warm")
@product_options
@run_options
@click.option("--conv", "convolution", is_flag=True, help="Those of TensorProductConv.")
@click.option("--forces", is_flag=True, help="Those that training on forces needs besides.")
@json_option
def warm_command(problem: Problem, convolution: bool, forces: bool, as_json: bool, **options: Any) -> None:
    """Build the forward and backward kernels of a product now, so that its first call is fast."""
    with Console(stderr=True).status(f"compile {problem.name}"):
        count = warm([problem.plan], options["layout"], [options["dtype"]], convolution, forces)
    path = cache_info().path
    click.echo(json.dumps({"ready": count, "path": path}) if as_json else f"{count} kernels ready in {path}")
