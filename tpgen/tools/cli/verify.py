"""``tpgen verify``."""

from __future__ import annotations

from functools import partial
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from tpgen.nn.modules import build_module, list_size_keywords
from tpgen.planner.problems import Problem
from tpgen.tools.cli.networks import find_network, refuse_options
from tpgen.tools.cli.options import RUN_NAMES, add_run_options, add_subject_options, json_option, select_known_options
from tpgen.tools.cli.terminal import show_progress
from tpgen.tools.cli.types import OneOf
from tpgen.tools.verification.verify import LAW_NAMES, Verification
from tpgen.tools.verification.verify import verify as verification


@click.command("verify")
@partial(add_subject_options, polynomials=True, linears=True)
@add_run_options
@click.option("--rows", type=click.IntRange(min=1), default=8, show_default=True, help="Rows of the random batch.")
@click.option(
    "--turns",
    multiple=True,
    metavar="NAME=IRREPS",
    help="How an input of a network turns, or with out:NAME a result: irreps, cartesian_points, cartesian_vectors, "
    "cartesian_tensors, or none for what stays; repeat.  Of names such as positions and forces it is known.",
)
@click.option("--only", type=OneOf("law", LAW_NAMES), multiple=True, help="One law; repeat for more.")
@click.option("--without", type=OneOf("law", LAW_NAMES), multiple=True, help="A law to leave out; repeat for more.")
@click.option("--compile-with", default="aot_eager", show_default=True, help="The backend of torch.compile.")
@json_option
@click.pass_context
def verify_command(ctx: click.Context, as_json: bool, **options: Any) -> None:
    """Check a product or network against every law.

    The laws: definition, symmetries, derivatives to third order, forces and energy, programs, threads and files.
    NAME is a product, polynomial, linear layer or network.  Exit code 1 if a law is broken, nothing was compared, or a
    law of --only was not.
    """
    with show_progress("verify") as say:
        report = _run_verification(progress=say, **options)
    if as_json:
        click.echo(report.to_json())
    else:
        text = Text(str(report))
        text.highlight_words(["passed"], "green")
        text.highlight_words(["failed", "BROKEN"], "bold red")
        text.highlight_words(["not compared", "nothing was compared"], "yellow")
        Console().print(text, soft_wrap=True)
    ctx.exit(0 if report.passed else 1)


def _run_verification(
    problem: Problem | None,
    network: str | None,
    rows: int,
    turns: tuple[str, ...],
    only: tuple[str, ...],
    without: tuple[str, ...],
    **options: Any,
) -> Verification:
    shared: dict[str, Any] = {"only": only or None, "without": without}
    shared |= {"backend": options.pop("compile_with"), "progress": options.pop("progress")}
    if problem is not None:
        if turns:
            raise click.UsageError("--turns is for networks: a product brings its irreps")
        dtype, device = options.pop("dtype"), options.pop("device")
        # a few channels and elements of a polynomial are as good as many
        sizes = list_size_keywords(problem.plan, min(problem.channels, 3), min(problem.elements, 2))
        module = build_module(problem.plan, **sizes, **select_known_options(problem.plan, options))
        return verification(module.to(device=device, dtype=dtype), rows=rows, **shared)
    refuse_options((*RUN_NAMES, "rows"), "a network brings its own")
    found, (irreps_in, irreps_out) = find_network(str(network)), _parse_irreps_of_inputs_and_results(turns)
    return verification(found.module, found.inputs, irreps_in=irreps_in, irreps_out=irreps_out, **shared)


def _parse_irreps_of_inputs_and_results(
    turn_texts: tuple[str, ...],
) -> tuple[dict[str, str | None] | None, dict[str, str | None] | None]:
    # irreps of inputs, and of results; None where nothing is said
    ends: tuple[dict[str, str | None], dict[str, str | None]] = ({}, {})
    for text in turn_texts:
        name, equals, irreps = text.partition("=")
        if not equals:
            raise click.UsageError(f"--turns {text!r}: write NAME=IRREPS for an input, out:NAME=IRREPS for a result")
        ends[name.startswith("out:")][name.removeprefix("out:")] = None if irreps.lower() == "none" else irreps
    return ends[0] or None, ends[1] or None
