"""``tpgen``: all commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from tpgen._version import __version__
from tpgen.base.errors import TpgenError
from tpgen.tools.cli.spelling import SuggestingGroup

# A command, and torch, is imported when run: help and typos answer at once.
# Every command with the first line of its help; it stands in the module of its name, if not together with others.
COMMANDS = {
    "plan": "Show what a product computes: paths, weights, costs.",
    "explain": "Say what each path costs, and what the machine allows.",
    "explore": "Write every stage of a product onto one HTML page.",
    "dump": "Print what is generated at a stage, from plan to C++.",
    "verify": "Check a product or network against every law.",
    "bench": "Measure contenders on problems, once they are right.",
    "tune": 'Time every strategy; "auto" then takes the fastest.',
    "cache": "Show, remove or build ahead the compiled kernels.",
    "selftest": "Check ten products on this machine, and time one.",
    "demo": "Convert, check and time a network; --all adds the rest.",
    "report": "Show what torch.compile makes of a product or network.",
    "convert": "Convert a network in memory and report what changed.",
    "deploy": "Write a network and its kernels for other programs.",
    "mace-convert": "Convert a model file of MACE's, or restore it.",
    "lammps": "Write a converted model for LAMMPS.",
    "mace-run-train": "Train a converted MACE with its own program.",
    "completion": "Print the completion script of your shell.",
}

_MODULE_OF = {
    **dict.fromkeys(("convert", "lammps", "mace_convert", "mace_run_train"), "projects"),
    "tune": "explain",
}
EXAMPLES = {
    "plan": ("mace-large", "--in1 8x1o --in2 1o --irreps-out 8x1e --instruction 0,0,0,uvu,true --json"),
    "explain": ("mace-large --measure", "tetris"),
    "explore": ("mace-medium --out explorer.html", "mypackage.model:make"),
    "dump": ("article --stage form --direction grad_x1", "mace-medium --stage cpp --out kernel.cpp"),
    "verify": ("mace-medium --dtype float64", "--network mypackage.model:make --turns r=cartesian_points"),
    "bench": ("mace-large --contender 'e3nn/*' --contender tpgen-auto/eager --task backward",),
    "tune": ("self-connection --seconds 5",),
    "cache": ("info", "warm mace-large --conv --forces"),
    "selftest": ("--json",),
    "demo": ("--out out/demo",),
    "report": ("tetris-1 --strategy grouped --section guards", "mypackage.model:make"),
    "convert": ("tetris-e3nn --prove", "mypackage.model:make --keep e3nn.Linear --measure"),
    "deploy": ("mypackage.model:make --out potential", "--mace my.model --out potential"),
    "mace-convert": ("my.model converted.model", "--restore converted.model stock.model"),
    "lammps": ("best.ckpt fast.pt",),
    "mace-run-train": ("--name=my --train_file=train.xyz --model=MACE",),
    "completion": ("bash",),
}


class _CommandError(click.ClickException):
    exit_code = 2

    def show(self, file: Any = None) -> None:
        click.echo(f"error: {self.message}", err=True, file=file)


_HELP = getattr(click.exceptions, "NoArgsIsHelpError", ())  # a group without a command shows its help; of click 8.2


@contextmanager
def _reraise_errors_as_command_error() -> Iterator[None]:
    try:
        yield
    except _HELP:
        raise
    except click.ClickException as error:
        said = " ".join(error.format_message().rstrip(".").split())
        where = getattr(error, "ctx", None) or click.get_current_context()
        raise _CommandError(f"{said[:1].lower()}{said[1:]} (see {where.command_path} --help)") from error
    except (TpgenError, OSError) as error:
        raise _CommandError(str(error)) from error


class _LazyCommandGroup(SuggestingGroup):
    """Click group: imports commands on demand, prints errors in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command by name; None if unknown."""
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command = getattr(import_module(f"tpgen.tools.cli.{_MODULE_OF.get(name, name)}"), f"{name}_command")
        shown = (f"  tpgen {cmd_name} {arguments}" for arguments in EXAMPLES[cmd_name])
        command.epilog = "\n".join(["\b", "Examples:", *shown])  # \b: lines stay as they are
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _reraise_errors_as_command_error():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command; print errors in one line."""
        try:
            with _reraise_errors_as_command_error():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(130)  # as a shell says it


@click.group(cls=_LazyCommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tpgen")
def main() -> None:
    """Generate the code of equivariant tensor products, and read every stage of it.

    Give a command the NAME of a product, or describe one: --preset with irreps, irreps with --instruction, or --plan
    FILE.
    """
