"""``tpgen selftest``."""

from __future__ import annotations

import click

from tpgen.tools.bench.selftest import selftest
from tpgen.tools.cli.options import json_option
from tpgen.tools.cli.terminal import show_progress


@click.command("selftest")
@json_option
@click.pass_context
def selftest_command(ctx: click.Context, as_json: bool) -> None:
    """Check ten products on this machine, and time one.

    Put the whole text into a bug report.  The first run takes up to a minute.  Exit code 1 if a product is wrong.
    """
    with show_progress("selftest") as say:
        found = selftest(progress=say)
    click.echo(found.to_json() if as_json else str(found))
    ctx.exit(0 if found.passed else 1)
