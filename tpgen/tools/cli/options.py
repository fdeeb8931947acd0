"""Options shared by commands."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import click
import torch

from tpgen.base.errors import BackendError, PlanError, TpgenError
from tpgen.compiler.backends import BACKENDS
from tpgen.emitter.strategies import STRATEGIES
from tpgen.form.form import LAYOUTS
from tpgen.kernels.build.compiler import COMPUTED
from tpgen.kernels.build.compiler import DTYPES as COMPILED
from tpgen.planner.modes import MODES
from tpgen.planner.normalization import IRREP_NORMALIZATIONS, PATH_NORMALIZATIONS
from tpgen.planner.plan import OF_MONOMIALS, OF_PATHS, Plan
from tpgen.planner.presets import PRESETS
from tpgen.planner.problems import LINEARS, POLYNOMIALS, PROBLEMS, Problem, find_problem
from tpgen.planner.product import make_plan
from tpgen.planner.read import read_plan
from tpgen.planner.strict import MAX_TEXT
from tpgen.tools.cli import types
from tpgen.tools.cli.networks import NETWORKS, NetworkName, names_a_network, network_option, refuse_options
from tpgen.tools.cli.types import OneOf

DTYPE_OPTIONS: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in ("float32", "float64", "bfloat16", "float16")
}
KERNEL_DTYPES = tuple(name for name, dtype in DTYPE_OPTIONS.items() if dtype in COMPILED)
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


def _apply_option_decorators(decorators: list[Callable[[Any], Any]], command: Any) -> Any:
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


_PLAN_OPTIONS: list[Callable[[Any], Any]] = [
    click.option("--preset", type=OneOf("preset", PRESETS), help="Derive the instructions from irreps, by rule."),
    click.option("--in1", metavar="IRREPS", help="Irreps of the first input, like '8x0e+8x1o'."),
    click.option("--in2", metavar="IRREPS", help="Irreps of the second input."),
    click.option("--irreps-out", "out", metavar="IRREPS", help="Irreps of the output (of channelwise: those to keep)."),
    click.option("--filter", metavar="IRREPS", help="Output irreps to keep: elementwise, full, tensor_square."),
    click.option(
        "--instruction",
        "instructions",
        type=types.instruction,
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
    click.option(
        "--weights", type=OneOf("kind of weights", ["shared", "per-row"]), help="One for all rows, or for each row."
    ),
    click.option("--irrep-normalization", type=OneOf("irrep normalization", IRREP_NORMALIZATIONS)),
    click.option("--path-normalization", type=OneOf("path normalization", PATH_NORMALIZATIONS)),
]

_PLAN_OPTION_NAMES = tuple(
    option.name
    for option in click.command()(_apply_option_decorators(_PLAN_OPTIONS, lambda: None)).params
    if option.name
)


def add_plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add options that describe a product; the command gets ``described_plan``, a plan or None."""

    @functools.wraps(command)
    def call_command_with_plan(**given: Any) -> Any:
        option_values = {name: given.pop(name) for name in _PLAN_OPTION_NAMES}
        return command(described_plan=make_plan_from_options(option_values), **given)

    return _apply_option_decorators(_PLAN_OPTIONS, call_command_with_plan)


def add_subject_options(
    command: Callable[..., Any], *, polynomials: bool = False, linears: bool = False, networks: bool = True
) -> Callable[..., Any]:
    """Add the argument NAME and options that name a product or network.

    The command gets ``problem`` and, with ``networks``, ``network``, one of which is None.
    """

    # name: of a problem or network; problem_name: of --problem
    @functools.wraps(command)
    def call_command_with_subject(
        described_plan: Plan | None,
        name: str | None,
        problem_name: str | None,
        network: str | None = None,
        **given: Any,
    ) -> Any:
        if sum(one is not None for one in (described_plan, name, problem_name, network)) != 1:
            raise click.UsageError(
                "say which product, in one way: NAME, or --preset with irreps, or irreps with --instruction, or "
                "--plan FILE"
            )
        of_network = network or (name if networks and name and names_a_network(name) else None)
        chosen = None if of_network else _find_or_make_problem(described_plan, name or problem_name, polynomials)
        return command(problem=chosen, **({"network": of_network} if networks else {}), **given)

    known = (*PROBLEMS, *(POLYNOMIALS if polynomials else ()), *(LINEARS if linears else ()))
    kind = SubjectName((*known, *NETWORKS), "name") if networks else ProblemName(known)
    problem_option = click.option(
        "--problem",
        "problem_name",
        metavar="NAME",
        type=ProblemName(known),
        help=f"NAME: {', '.join(known)}.",
    )
    described = add_plan_options(call_command_with_subject)
    argument = click.argument("name", required=False, metavar="[NAME]", type=kind)
    return argument(problem_option(network_option(described) if networks else described))


product_options = functools.partial(add_subject_options, networks=False)


class ProblemName(OneOf):
    """Click type: a problem's name."""

    def __init__(self, known: Collection[str], kind: str = "problem") -> None:
        super().__init__(kind, known, make_wrong_kind_messages(known))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a problem's name; raise `TpgenError` for others and irreps."""
        if value not in self.choices and re.fullmatch(r"\s*(\d+x)?\d+[eo](\s*\+\s*(\d+x)?\d+[eo])*\s*", str(value)):
            raise TpgenError(
                f"{value!r} are irreps, where the name of a product belongs: give irreps by --in1, --in2 and "
                "--irreps-out, with --preset or --instruction"
            )
        return super().convert(value, param, ctx)


class SubjectName(ProblemName, NetworkName):
    """Click type: a problem's or network's name."""


_TAKE_POLYNOMIALS = "plan, explain, explore, dump, tune and verify take polynomials"
_TAKE_LINEARS = "explain, tune and verify take linear layers"


def make_wrong_kind_messages(known_names: Collection[str]) -> dict[str, str]:
    """Error messages for names of problems and networks outside ``known_names``."""
    kinds = {
        **dict.fromkeys(POLYNOMIALS, ("polynomial", _TAKE_POLYNOMIALS)),
        **dict.fromkeys(LINEARS, ("linear layer", _TAKE_LINEARS)),
        **dict.fromkeys(NETWORKS, ("network", "explain, explore, verify and report take networks")),
    }
    return {
        name: f"{name!r} is a {kind}, and this command takes products: {taking}"
        for name, (kind, taking) in kinds.items()
        if name not in known_names
    }


def _find_or_make_problem(plan: Plan | None, name: str | None, polynomials: bool) -> Problem:
    if name is not None:
        return POLYNOMIALS.get(name) or LINEARS.get(name) or find_problem(name)
    assert plan is not None
    return make_problem_of_plan(plan, polynomials=polynomials)


_FORMS = {False: (OF_PATHS,), True: (OF_PATHS, OF_MONOMIALS)}  # of plans, by whether a command takes polynomials


def make_problem_of_plan(plan: Plan, *, polynomials: bool = False) -> Problem:
    """Make a problem of a user's plan; raise `click.UsageError` for the wrong kind."""
    if plan.maker.form not in _FORMS[polynomials]:
        raise click.UsageError(f"--plan holds a polynomial, and this command takes products: {_TAKE_POLYNOMIALS}")
    if not polynomials and len(plan.inputs) < 2:
        raise click.UsageError(f"--plan holds a linear layer, and this command takes products: {_TAKE_LINEARS}")
    return Problem(f"plan-{plan.digest}", "described on the command line", 1000, lambda: plan, "free")


def make_plan_from_options(option_values: dict[str, Any]) -> Plan | None:
    """Make the plan that options describe; None without."""
    given = [name for name in _PLAN_OPTION_NAMES if option_values[name] not in (None, ())]
    sources = [name for name in ("preset", "instructions", "plan_file") if name in given]
    if not given:
        return None
    if len(sources) != 1:
        raise click.UsageError(
            "irreps alone are not a product: add --preset or --instruction"
            if not sources
            else "give one of --preset, --instruction and --plan, not several"
        )
    planning = {
        name: option_values[name] for name in ("irrep_normalization", "path_normalization") if option_values[name]
    }
    if option_values["weights"]:
        planning["shared_weights"] = option_values["weights"] == "shared"
    return _SOURCES[sources[0]](option_values, given, planning)


def _read_plan_from_file(option_values: dict[str, Any], given_names: list[str], plan_options: dict[str, Any]) -> Plan:
    if given_names != ["plan_file"]:
        raise click.UsageError("a --plan file holds the whole product: leave the other options that describe one out")
    try:
        with option_values["plan_file"].open(encoding="utf-8") as file:
            return read_plan(file.read(MAX_TEXT + 1))
    except PlanError as error:
        raise PlanError(f"{option_values['plan_file']}: {error}") from error
    except UnicodeDecodeError:
        raise PlanError(f"{option_values['plan_file']} is not a text file; `tpgen plan --json` writes plans") from None


def _make_plan_from_instructions(
    option_values: dict[str, Any], given_names: list[str], plan_options: dict[str, Any]
) -> Plan:
    missing = [_FLAGS[name] for name in ("in1", "in2", "out") if option_values[name] is None]
    if missing:
        raise click.UsageError(f"--instruction refers to irreps: give {', '.join(missing)}")
    if option_values["filter"] is not None:
        raise click.UsageError("--filter is for presets; instructions say which outputs there are")
    return make_plan(
        option_values["in1"], option_values["in2"], option_values["out"], option_values["instructions"], **plan_options
    )


def _make_plan_from_preset(option_values: dict[str, Any], given_names: list[str], plan_options: dict[str, Any]) -> Plan:
    preset = PRESETS[option_values["preset"]]
    parameters = {
        _OPTION_OF[name]: parameter
        for name, parameter in inspect.signature(preset).parameters.items()
        if name in _OPTION_OF
    }
    for name in _FLAGS:
        if option_values[name] is not None and name not in parameters:
            raise click.UsageError(f"preset {option_values['preset']} takes no {_FLAGS[name]}")
        if name in parameters and option_values[name] is None and parameters[name].default is inspect.Parameter.empty:
            raise click.UsageError(f"preset {option_values['preset']} needs {_FLAGS[name]}")
    values = {parameter.name: option_values[name] for name, parameter in parameters.items()}
    if values.get("filter_ir_out") is not None:
        values["filter_ir_out"] = values["filter_ir_out"].split("+")
    return preset(**values, **plan_options)


_SOURCES: dict[str, Callable[[dict[str, Any], list[str], dict[str, Any]], Plan]] = {
    "preset": _make_plan_from_preset,
    "instructions": _make_plan_from_instructions,
    "plan_file": _read_plan_from_file,
}

strategy_option = click.option(
    "--strategy", type=OneOf("strategy", [*STRATEGIES, "auto"]), default="auto", show_default=True
)
backend_option = click.option("--backend", type=OneOf("backend", BACKENDS), default="eager", show_default=True)
_RUN_OPTIONS = [
    click.option(
        "--layout",
        type=types.layout,
        default="mul_ir",
        show_default=True,
        help=f"{' or '.join(LAYOUTS)}, one or three with commas (in1,in2,out).",
    ),
    strategy_option,
    backend_option,
    click.option("--dtype", type=OneOf("dtype", DTYPE_OPTIONS), default="float32", show_default=True),
    click.option("--device", type=types.device, default="cpu", show_default=True, help="cpu, cuda, cuda:1, …"),
]


# Options of a command that plans do not have, and why, by what forms consist of.
_LEFT_OUT: dict[str, tuple[tuple[str, ...], str]] = {
    OF_PATHS: ((), ""),
    OF_MONOMIALS: (("layout",), "a polynomial's layouts stand in its plan"),
}


def select_known_options(plan: Plan, options: dict[str, Any]) -> dict[str, Any]:
    """Select options that a plan has; refuse others that the user gave."""
    names, why = _LEFT_OUT[plan.maker.form]
    refuse_options(names, why)
    return {name: value for name, value in options.items() if name not in names}


def collect_inspection_options(problem: Problem, options: dict[str, Any]) -> dict[str, Any]:
    """Inspection options: a command's options and a polynomial's sizes."""
    sizes = {size: getattr(problem, size) for size in problem.plan.maker.sizes}
    return {**select_known_options(problem.plan, options), **sizes}


RUN_NAMES = ("layout", "strategy", "backend", "dtype", "device")


def add_run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options layout, strategy, backend, dtype (a `torch.dtype`) and device."""

    @functools.wraps(command)
    def call_command_with_dtype(dtype: str, **given: Any) -> Any:
        if given["strategy"] == "kernel" and dtype not in KERNEL_DTYPES:
            raise BackendError(f"{COMPUTED}, not in {dtype}: choose one of them, or another --strategy")
        return command(dtype=DTYPE_OPTIONS[dtype], **given)

    return _apply_option_decorators(_RUN_OPTIONS, call_command_with_dtype)


radial_option = click.option(
    "--radial",
    type=OneOf("radial", ("net", "spline")),
    default="net",
    show_default=True,
    help="Compute weights of edges by nets, or by cubic splines of lengths: faster, for inference on a CPU.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON to stdout and nothing else.")
