"""Plan tensor products."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

from e3nn.o3 import Irrep, Irreps

from tpgen.base.errors import PlanError, check_known
from tpgen.planner.instruction import (
    BuiltInstruction,
    Instruction,
    parse_instructions,
    parse_irreps,
    select_segment,
)
from tpgen.planner.modes import MODES, Mode, find_axis_sizes, find_mode
from tpgen.planner.normalization import (
    IRREP_NORMALIZATIONS,
    PATH_NORMALIZATIONS,
    PathScale,
    fan_in,
    find_path_factors,
)
from tpgen.planner.plan import OUT, ROW, SHARED, Leg, Maker, Operand, Path, Plan, Segment, WeightSlice, list_segments
from tpgen.planner.strict import (
    check_field,
    make_json_list_reader,
    make_json_name_reader,
    make_json_tuple_reader,
    read_json_boolean,
    read_json_index,
    read_json_irreps,
    read_json_number,
)


def list_operands(
    irreps_by_name: Mapping[str, Irreps], slices: Sequence[WeightSlice | None], rows: str
) -> tuple[Operand, ...]:
    """A product's operands: inputs, weights ``w``, output (last in ``irreps_by_name``)."""
    numel = max((s.stop for s in slices if s is not None), default=0)
    weights = Operand("w", Irreps(f"{numel}x0e"), weights=True, rows=rows)
    *inputs, out = (Operand(name, irreps) for name, irreps in irreps_by_name.items())
    return (*inputs, weights, out)


def lay_out_weights(shapes: Sequence[tuple[int, ...] | None]) -> tuple[WeightSlice | None, ...]:
    """Slices of weights laid one after another; None for a None shape."""
    starts = accumulate((0 if s is None else prod(s) for s in shapes), initial=0)
    return tuple(None if s is None else WeightSlice(start, s) for start, s in zip(starts, shapes, strict=False))


def make_plan(
    irreps_in1: Irreps | str,
    irreps_in2: Irreps | str,
    irreps_out: Irreps | str,
    instructions: Iterable[Sequence],
    *,
    in1_var: Sequence[float] | None = None,
    in2_var: Sequence[float] | None = None,
    out_var: Sequence[float] | None = None,
    irrep_normalization: str = "component",
    path_normalization: str = "element",
    shared_weights: bool = True,
) -> Plan:
    """Plan a tensor product, with the parameters of `e3nn.o3.TensorProduct`.

    ``instructions``: tuples ``(i_in1, i_in2, i_out, mode, has_weight[, path_weight])``.

    Raises `PlanError` naming instruction and broken rule.

    >>> plan = make_plan("8x1o", "1x1o", "8x0e + 8x1e", [(0, 0, 0, "uvu", True), (0, 0, 1, "uvu", True)])
    >>> plan.weight_numel, [path.weight.start for path in plan.paths]
    (16, [0, 8])
    """
    given = {"irreps_in1": irreps_in1, "irreps_in2": irreps_in2, "irreps_out": irreps_out}
    ends = {name: parse_irreps(value, name) for name, value in given.items()}
    spreads = {"in1_var": in1_var, "in2_var": in2_var, "out_var": out_var}
    pairs = zip(spreads.items(), ends.values(), strict=True)
    variances = {name: _parse_variances(name, values, irreps) for (name, values), irreps in pairs}
    check_known("irrep_normalization", [irrep_normalization], tuple(IRREP_NORMALIZATIONS), PlanError)
    check_known("path_normalization", [path_normalization], tuple(PATH_NORMALIZATIONS), PlanError)
    asked = parse_instructions(instructions)
    built = irrep_normalization == path_normalization == "none"
    _refuse_built_instructions(asked, built)
    legs = [list_segments(i) for i in ends.values()]
    bound = [_find_segments_of_instruction(n, instruction, legs) for n, instruction in enumerate(asked)]
    scales = [_make_path_scale(b, b_asked, tuple(variances.values())) for b, b_asked in zip(bound, asked, strict=True)]
    factors = find_path_factors(scales, irrep_normalization, path_normalization)
    slices = lay_out_weights([b.path_shape if a.has_weight else None for a, b in zip(asked, bound, strict=True)])
    kind = BuiltInstruction if built else Instruction
    arguments = {
        **ends,
        "instructions": tuple(kind(*a[:6], b.path_shape) for a, b in zip(asked, bound, strict=True)),
        **variances,
        "irrep_normalization": irrep_normalization,
        "path_normalization": path_normalization,
        "shared_weights": bool(shared_weights),
    }
    return Plan(
        PRODUCT,
        arguments,
        arguments["instructions"],
        list_operands(dict(zip(_ENDS, ends.values(), strict=True)), slices, SHARED if shared_weights else ROW),
        paths=tuple(
            Path(n, b.mode, tuple(b.sizes.items()), tuple(map(Leg.on, _ENDS, b.legs)), slices[n], f.coefficient, f)
            for n, (b, f) in enumerate(zip(bound, factors, strict=True))
            if all(s.mul > 0 for s in b.legs) and prod(b.sizes.values()) > 0
        ),
        weight_slices=slices,
    )


_ENDS = ("x1", "x2", OUT)


def _describe_irreps_and_weights(plan: Plan) -> str:
    weights = "shared" if plan.shared_weights else "per row"
    return (
        f"{plan.irreps_in1} x {plan.irreps_in2} -> {plan.irreps_out}\n"
        f"{plan.irrep_normalization}/{plan.path_normalization} normalisation, {plan.weight_numel} weights {weights}"
    )


def _refuse_built_instructions(instructions: list[Instruction], without_normalization: bool) -> None:
    for n, instruction in enumerate(instructions):
        if isinstance(instruction, BuiltInstruction) and not without_normalization:
            raise PlanError(
                f"instruction {n} {instruction} is of a plan without normalisation: its path_weight holds the "
                "whole coefficient, which would be normalised once more; take the whole plan over with "
                "TensorProduct.from_plan(product.plan), or give irrep_normalization='none' and "
                "path_normalization='none'"
            )


@dataclass(frozen=True)
class _InstructionWithSegments:
    mode: Mode
    sizes: dict[str, int]
    legs: tuple[Segment, Segment, Segment]

    @property
    def path_shape(self) -> tuple[int, ...]:
        return tuple(self.sizes[a] for a in self.mode.weight)


def _find_segments_of_instruction(
    instruction_index: int, instruction: Instruction, segments_of_operands: list[list[Segment]]
) -> _InstructionWithSegments:
    where = f"instruction {instruction_index} {instruction}"
    in1, in2, out = (
        select_segment(where, end, i, segments)
        for end, i, segments in zip(("in1", "in2", "out"), instruction[:3], segments_of_operands, strict=True)
    )
    spelled = f"(irreps_in1[{in1.index}] = {in1}, irreps_in2[{in2.index}] = {in2}, irreps_out[{out.index}] = {out})"
    _check_parity_and_triangle_rules(where, in1.ir, in2.ir, out.ir, spelled)
    try:
        mode = find_mode(instruction.connection_mode)
        sizes = find_axis_sizes(mode, in1.mul, in2.mul, out.mul, instruction.has_weight)
    except PlanError as error:
        raise PlanError(f"{where}: {error} {spelled}") from None
    return _InstructionWithSegments(mode, sizes, (in1, in2, out))


def _check_parity_and_triangle_rules(where: str, ir1: Irrep, ir2: Irrep, ir3: Irrep, described_segments: str) -> None:
    if ir1.p * ir2.p != ir3.p:
        wanted = "even" if ir1.p * ir2.p == 1 else "odd"
        raise PlanError(
            f"{where}: the parity of the output must be the product of the input parities, {wanted}: change the output "
            f"to {ir3.l}{wanted[0]}, or leave the instruction out {described_segments}"
        )
    if not abs(ir1.l - ir2.l) <= ir3.l <= ir1.l + ir2.l:
        raise PlanError(
            f"{where}: the triangle rule |l1 - l2| <= l3 <= l1 + l2 asks for an output degree between "
            f"{abs(ir1.l - ir2.l)} and {ir1.l + ir2.l}, got {ir3.l}: name an output in that range, or leave the "
            f"instruction out {described_segments}"
        )


def _parse_variances(name: str, values: Sequence[float] | None, irreps: Irreps) -> tuple[float, ...]:
    if values is None:
        return (1.0,) * len(irreps)
    try:
        variances = tuple(float(v) for v in values)
    except (TypeError, ValueError):
        raise PlanError(f"{name} must be a list of numbers, one per entry of the irreps, got {values!r}") from None
    if len(variances) != len(irreps):
        raise PlanError(
            f"{name} needs one variance for each of the {len(irreps)} entries of {irreps}, got {len(variances)}"
        )
    for n, value in enumerate(variances):
        if not (math.isfinite(value) and value >= 0.0):
            raise PlanError(f"{name}[{n}] must be finite and not negative (it is a variance), got {value}")
    return variances


def _make_path_scale(
    segments: _InstructionWithSegments, instruction: Instruction, variances: tuple[tuple[float, ...], ...]
) -> PathScale:
    in1, in2, out = segments.legs
    return PathScale(
        i_out=out.index,
        dims=(in1.ir.dim, in2.ir.dim, out.ir.dim),
        fan_in=fan_in(segments.mode.fan_in, segments.sizes),
        variance_in=variances[0][in1.index] * variances[1][in2.index],
        variance_out=variances[2][out.index],
        path_weight=instruction.path_weight,
    )


def _make_plan_of_single_path(plan: Plan, path: Path) -> Plan:
    return plan.remade(
        irreps_in1=str(path.in1),
        irreps_in2=str(path.in2),
        irreps_out=str(path.out),
        instructions=[(0, 0, 0, path.mode.name, path.weight is not None)],
        in1_var=None,
        in2_var=None,
        out_var=None,
    )


def _read_json_instruction(field: str, entry: list) -> tuple:
    i_in1, i_in2, i_out, mode, has_weight, path_weight = entry
    known = isinstance(mode, str) and mode in MODES
    positions = [read_json_index(field, i) for i in (i_in1, i_in2, i_out)]
    check_field(known, field, f"mode must be one of {', '.join(MODES)}", mode)
    check_field(type(has_weight) is bool, field, "has_weight must be true or false", has_weight)
    return (*positions, mode, has_weight, read_json_number(field, path_weight))


PRODUCT = Maker(
    "tpgen.plan/1",
    make_plan,
    _describe_irreps_and_weights,
    readers={
        "irreps_in1": read_json_irreps,
        "irreps_in2": read_json_irreps,
        "irreps_out": read_json_irreps,
        "instructions": make_json_tuple_reader(_read_json_instruction, 6, "instructions"),
        "in1_var": make_json_list_reader(read_json_number, "numbers"),
        "in2_var": make_json_list_reader(read_json_number, "numbers"),
        "out_var": make_json_list_reader(read_json_number, "numbers"),
        "irrep_normalization": make_json_name_reader(IRREP_NORMALIZATIONS),
        "path_normalization": make_json_name_reader(PATH_NORMALIZATIONS),
        "shared_weights": read_json_boolean,
    },
    plan_of_path=_make_plan_of_single_path,
)
PlanMaker = Callable[..., Plan]
