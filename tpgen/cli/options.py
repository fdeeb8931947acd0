"""Options that commands share: which product, and how it is written and run."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console

from tpgen.compiler.backends import BACKENDS
from tpgen.emitter.strategies import STRATEGIES
from tpgen.errors import PlanError
from tpgen.form.form import LAYOUTS
from tpgen.planner.modes import MODES
from tpgen.planner.normalization import IRREP_NORMALIZATIONS, PATH_NORMALIZATIONS
from tpgen.planner.plan import Plan, make_plan
from tpgen.planner.plan_json import plan_from_json
from tpgen.planner.presets import PRESETS
from tpgen.planner.problems import PROBLEMS, Problem, find_problem
from tpgen.planner.strict import MAX_TEXT

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
# Which option gives a parameter of a preset.
_OPTION_OF = {
    "irreps_in": "in1",
    "irreps_in1": "in1",
    "irreps_in2": "in2",
    "irreps_out": "out",
    "irreps_filter": "out",
    "filter_ir_out": "filter",
}


_FLAGS = {"in1": "--in1", "in2": "--in2", "out": "--irreps-out", "filter": "--filter"}


class InstructionType(click.ParamType):
    """``i_in1,i_in2,i_out,mode,weighted[,path_weight]``.

    >>> InstructionType().convert("0,0,1,uvu,true", None, None)
    (0, 0, 1, 'uvu', True, 1.0)
    """

    name = "instruction"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple:
        parts = [part.strip() for part in value.split(",")]
        try:
            i_in1, i_in2, i_out, mode, weighted, *rest = parts
            (path_weight,) = rest or ("1",)
            flag = {"true": True, "false": False}[weighted.lower()]
            return int(i_in1), int(i_in2), int(i_out), mode, flag, float(path_weight)
        except (ValueError, KeyError):
            self.fail(f"{value!r} does not read i_in1,i_in2,i_out,mode,true|false[,path_weight]", param, ctx)


class LayoutType(click.ParamType):
    """One layout, or three for in1, in2 and out."""

    name = "layout"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | tuple[str, ...]:
        names = tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else value
        return names[0] if len(names) == 1 else names


class DeviceType(click.ParamType):
    """A device that is there."""

    name = "device"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            torch.empty(0, device=value)
        except (RuntimeError, AssertionError) as error:
            self.fail(f"{value!r} cannot be used here: {str(error).splitlines()[0]}", param, ctx)
        return value


class PictureFile(click.Path):
    """A file for a picture, whose ending says the format."""

    endings = (".png", ".pdf", ".svg")

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if Path(value).suffix.lower() not in self.endings:
            self.fail(f"{str(value)!r} must end in {', '.join(self.endings[:-1])} or {self.endings[-1]}", param, ctx)
        return super().convert(value, param, ctx)


class NamedFirst(click.Command):
    """A command whose first argument may be the name of a problem: ``NAME`` is short for ``--problem NAME``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = bool(args) and not args[0].startswith("-")
        return super().parse_args(ctx, ["--problem", *args] if named else args)


def _apply(options: list[Callable[[Any], Any]], function: Any) -> Any:
    for option in reversed(options):
        function = option(function)
    return function


def _described_by(out_flags: tuple[str, ...]) -> list[Callable[[Any], Any]]:
    return [
        click.option(
            "--preset", type=click.Choice(list(PRESETS)), help="Derive the instructions from irreps, by rule."
        ),
        click.option("--in1", metavar="IRREPS", help="Irreps of the first input, like '8x0e+8x1o'."),
        click.option("--in2", metavar="IRREPS", help="Irreps of the second input."),
        click.option(*out_flags, "out", metavar="IRREPS", help="Irreps of the output (of channelwise: those to keep)."),
        click.option("--filter", metavar="IRREPS", help="Output irreps to keep: elementwise, full, tensor_square."),
        click.option(
            "--instruction",
            "instructions",
            type=InstructionType(),
            multiple=True,
            metavar="I1,I2,OUT,MODE,WEIGHTED[,PATH_WEIGHT]",
            help=f"One path, like 0,0,0,uvu,true; repeat for more. Modes: {', '.join(MODES)}.",
        ),
        click.option(
            "--plan",
            "plan_file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="A plan as JSON, as `tpgen plan --json` writes it.",
        ),
        click.option("--weights", type=click.Choice(["shared", "per-row"]), help="One for all rows, or for each row."),
        click.option("--irrep-normalization", type=click.Choice(list(IRREP_NORMALIZATIONS))),
        click.option("--path-normalization", type=click.Choice(list(PATH_NORMALIZATIONS))),
    ]


_FREE_NAMES = (
    "preset",
    "in1",
    "in2",
    "out",
    "filter",
    "instructions",
    "plan_file",
    "weights",
    "irrep_normalization",
    "path_normalization",
)


def free_options(command: Callable[..., Any], *, out_is_folder: bool = False) -> Callable[..., Any]:
    """Options that describe a product without a name; the command gets ``free``, a plan or None.

    Where ``--out`` is the folder of a command, the output's irreps are ``--irreps-out`` alone.
    """

    @functools.wraps(command)
    def wrapper(**given: Any) -> Any:
        asked = {name: given.pop(name) for name in _FREE_NAMES}
        return command(free=free_plan(asked), **given)

    return _apply(_described_by(("--irreps-out",) if out_is_folder else ("--out", "--irreps-out")), wrapper)


def product_options(
    command: Callable[..., Any], *, out_is_folder: bool = False, instead: str | None = None
) -> Callable[..., Any]:
    """Options that name one product in any way; the command gets ``problem``.

    Where the option ``instead`` is given there is none, and ``problem`` is None.
    """

    @functools.wraps(command)
    def wrapper(free: Plan | None, name: str | None, **given: Any) -> Any:
        if instead is not None and given[instead] is not None:
            if free is not None or name is not None:
                raise click.UsageError(f"give a product or --{instead}, not both")
            return command(problem=None, **given)
        if (free is None) == (name is None):
            raise click.UsageError(
                "say which product, in one way: --problem NAME, or --preset with irreps, or irreps with --instruction, "
                "or --plan FILE"
            )
        chosen = find_problem(name) if name is not None else free_problem(free)  # type: ignore[arg-type]
        return command(problem=chosen, **given)

    option = click.option("--problem", "name", metavar="NAME", help=f"One of {', '.join(PROBLEMS)}.")
    return option(free_options(wrapper, out_is_folder=out_is_folder))


def free_problem(plan: Plan, rows: int = 1000) -> Problem:
    """A problem made of a plan that the user described."""
    return Problem(f"plan-{plan.digest}", "described on the command line", rows, lambda: plan, "free")


def free_plan(asked: dict[str, Any]) -> Plan | None:
    """The plan that the options describe; None where they describe nothing."""
    given = [name for name in _FREE_NAMES if asked[name] not in (None, ())]
    sources = [name for name in ("preset", "instructions", "plan_file") if name in given]
    if not given:
        return None
    if len(sources) != 1:
        raise click.UsageError(
            "irreps alone are not a product: add --preset or --instruction"
            if not sources
            else "give one of --preset, --instruction and --plan, not several"
        )
    planning = {name: asked[name] for name in ("irrep_normalization", "path_normalization") if asked[name]}
    if asked["weights"]:
        planning["shared_weights"] = asked["weights"] == "shared"
    return _SOURCES[sources[0]](asked, given, planning)


def _from_file(asked: dict[str, Any], given: list[str], planning: dict[str, Any]) -> Plan:
    if given != ["plan_file"]:
        raise click.UsageError("a --plan file holds the whole product: leave the other options that describe one out")
    try:
        with asked["plan_file"].open(encoding="utf-8") as file:
            return plan_from_json(file.read(MAX_TEXT + 1))
    except UnicodeDecodeError:
        raise PlanError(f"{asked['plan_file']} is not a text file; `tpgen plan --json` writes plans") from None


def _from_instructions(asked: dict[str, Any], given: list[str], planning: dict[str, Any]) -> Plan:
    missing = [_FLAGS[name] for name in ("in1", "in2", "out") if asked[name] is None]
    if missing:
        raise click.UsageError(f"--instruction refers to irreps: give {', '.join(missing)}")
    if asked["filter"] is not None:
        raise click.UsageError("--filter is for presets; instructions say which outputs there are")
    return make_plan(asked["in1"], asked["in2"], asked["out"], asked["instructions"], **planning)


def _from_preset(asked: dict[str, Any], given: list[str], planning: dict[str, Any]) -> Plan:
    preset = PRESETS[asked["preset"]]
    parameters = {
        _OPTION_OF[name]: parameter
        for name, parameter in inspect.signature(preset).parameters.items()
        if name in _OPTION_OF
    }
    for name in _FLAGS:
        if asked[name] is not None and name not in parameters:
            raise click.UsageError(f"preset {asked['preset']} takes no {_FLAGS[name]}")
        if name in parameters and asked[name] is None and parameters[name].default is inspect.Parameter.empty:
            raise click.UsageError(f"preset {asked['preset']} needs {_FLAGS[name]}")
    values = {parameter.name: asked[name] for name, parameter in parameters.items()}
    if values.get("filter_ir_out") is not None:
        values["filter_ir_out"] = values["filter_ir_out"].split("+")
    return preset(**values, **planning)


_SOURCES: dict[str, Callable[[dict[str, Any], list[str], dict[str, Any]], Plan]] = {
    "preset": _from_preset,
    "instructions": _from_instructions,
    "plan_file": _from_file,
}

_RUN_OPTIONS = [
    click.option(
        "--layout",
        type=LayoutType(),
        default="mul_ir",
        show_default=True,
        help=f"{' or '.join(LAYOUTS)}, one or three with commas (in1,in2,out).",
    ),
    click.option("--strategy", type=click.Choice([*STRATEGIES, "auto"]), default="auto", show_default=True),
    click.option("--backend", type=click.Choice(list(BACKENDS)), default="eager", show_default=True),
    click.option("--dtype", type=click.Choice(list(DTYPES)), default="float32", show_default=True),
    click.option("--device", type=DeviceType(), default="cpu", show_default=True, help="cpu, cuda, cuda:1, …"),
]


RUN_NAMES = ("layout", "strategy", "backend", "dtype", "device")


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options for how a product is written and run: layout, strategy, backend, dtype (a `torch.dtype`), device."""

    @functools.wraps(command)
    def wrapper(dtype: str, **given: Any) -> Any:
        return command(dtype=DTYPES[dtype], **given)

    return _apply(_RUN_OPTIONS, wrapper)


json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON to stdout and nothing else.")


def screen() -> Console:
    """A console for results: as wide as the terminal, and wide enough for every table where there is none."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console() if known else Console(width=160)
