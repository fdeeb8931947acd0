"""``tpgen``: the commands, and how their errors look.

A command is imported when it is run, and torch with it: the help and a mistyped name are answered at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from tpgen._version import __version__
from tpgen.errors import TpgenError, unknown

# Every command with the first line of its help; `name` stands in the module of its name.
COMMANDS = {
    "plan": "Show what a product computes: paths, weights, coefficients, costs.",
    "explain": "Explain a product: coefficients factor by factor, costs, strategy, and time against the machine's "
    "roofline.",
    "explore": "Write one HTML file: paths, and every stage from the plan to C++.",
    "dump": "Show what is generated at each stage, from the plan to Inductor's output.",
    "check": "Check a product: equal to e3nn and to the slow definition, equivariant, linear, gradients right.",
    "bench": "Measure contenders on problems, after checking that their results are right.",
    "tune": 'Time every strategy for a product on this machine; from then on strategy "auto" takes the fastest.',
    "cache": "Compiled kernels and measured choices: where they are, remove them, build them ahead of use.",
    "demo": "Plan, dump, check, train and measure; write it all with an index.md.",
    "report": "Show what torch.compile makes of a product or a network: graphs, guards, recompilations, backward, "
    "kernels.",
    "flat": "Time a network as it is, with its products inlined, and flat: what they have in common computed once.",
    "convert": "Convert a network in memory and report what was replaced, what was kept and why.",
}


class _Failure(click.ClickException):
    """A `TpgenError` as the user sees it: its message, and exit code 2 as for wrong usage."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        click.echo(f"error: {self.message}", err=True, file=file)


class _Commands(click.Group):
    """Commands by name, whose `TpgenError`, or trouble with a file, is a message and not a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return getattr(import_module(f"tpgen.cli.{cmd_name}"), cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(unknown("command", args[0], COMMANDS))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (TpgenError, OSError) as error:
            raise _Failure(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tpgen")
def main() -> None:
    """Generate the code of equivariant tensor products, and read every stage of it.

    Name a product by --problem, by --preset and irreps, by irreps and --instruction, or by a --plan file.
    """
