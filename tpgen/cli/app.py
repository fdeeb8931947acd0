"""``tpgen``: the commands, and how their errors look."""

from __future__ import annotations

from typing import Any

import click

from tpgen._version import __version__
from tpgen.cli.bench import bench
from tpgen.cli.cache import cache
from tpgen.cli.check import check
from tpgen.cli.convert import convert
from tpgen.cli.demo import demo
from tpgen.cli.dump import dump
from tpgen.cli.explain import explain
from tpgen.cli.explore import explore
from tpgen.cli.flat import flat
from tpgen.cli.plan import plan
from tpgen.cli.report import report
from tpgen.cli.tune import tune
from tpgen.errors import TpgenError


class _Failure(click.ClickException):
    """A `TpgenError` as the user sees it: its message, and exit code 2 as for wrong usage."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        click.echo(f"error: {self.message}", err=True, file=file)


class _Commands(click.Group):
    """Commands whose `TpgenError`, or trouble with a file, is a message and not a traceback."""

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


for command in (plan, explain, explore, dump, check, bench, tune, cache, demo, report, flat, convert):
    main.add_command(command)
