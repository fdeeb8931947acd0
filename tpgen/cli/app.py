"""``tpgen``: the commands, and how their errors look.

A command is imported when it is run, and torch with it: the help and a mistyped name are answered at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from tpgen._version import __version__
from tpgen.cli.groups import Spelled
from tpgen.errors import TpgenError

# Every command with the first line of its help; `name` stands in the module of its name.
COMMANDS = {
    "plan": "Show what a product computes: paths, weights, costs.",
    "explain": "Say what each path costs, and what the machine allows.",
    "explore": "Write every stage of a product onto one HTML page.",
    "dump": "Print what is generated at a stage, from plan to C++.",
    "verify": "Ask a product or network every law it must obey.",
    "bench": "Measure contenders on problems, once they are right.",
    "tune": 'Time every strategy; "auto" then takes the fastest.',
    "cache": "Show, remove or build ahead the compiled kernels.",
    "demo": "Plan, train, measure, verify and deploy; write it all down.",
    "report": "Show what torch.compile makes of a product or network.",
    "flat": "Time a network as it is, inlined, and flat.",
    "convert": "Convert a network in memory and report what changed.",
    "deploy": "Write a network and its kernels for other programs.",
    "mace-convert": "Convert a model file of MACE's, or restore it.",
    "mace-run-train": "Train a converted MACE with its own program.",
    "completion": "Print the completion script of your shell.",
}


class _Failure(click.ClickException):
    """A `TpgenError` as the user sees it: its message, and exit code 2 as for wrong usage."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        click.echo(f"error: {self.message}", err=True, file=file)


class _Commands(Spelled):
    """Commands by name, whose `TpgenError`, or trouble with a file, is a message and not a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        return getattr(import_module(f"tpgen.cli.{name}"), name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (TpgenError, OSError) as error:
            raise _Failure(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tpgen")
def main() -> None:
    """Generate the code of equivariant tensor products, and read every stage of it.

    Give a command the NAME of a product, or describe one: --preset with irreps, irreps with --instruction, or --plan
    FILE.
    """
