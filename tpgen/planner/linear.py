"""Plan a linear layer between copies of equal irreps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

from e3nn.o3 import Irreps

from tpgen.base.errors import PlanError, check_known
from tpgen.base.remember import remembered
from tpgen.planner.instruction import parse_irreps, parse_segment_index, select_segment
from tpgen.planner.modes import MATRIX
from tpgen.planner.normalization import PATH_NORMALIZATIONS, Factors, PathScale, find_path_factors
from tpgen.planner.plan import ELEMENT, OUT, ROW, SHARED, Leg, Maker, Path, Plan, Segment, list_segments
from tpgen.planner.product import lay_out_weights, list_operands
from tpgen.planner.strict import (
    make_json_list_reader,
    make_json_name_reader,
    make_json_null_reader,
    make_json_tuple_reader,
    read_json_boolean,
    read_json_index,
    read_json_irreps,
    read_json_weight_sharing,
)

LINEAR_NORMALIZATIONS = tuple(name for name in PATH_NORMALIZATIONS if name != "none")  # those that e3nn has


class LinearInstruction(NamedTuple):
    """Instruction ``in[i_in]`` to ``out[i_out]`` (``i_in`` -1: bias); ``path_weight``: the coefficient."""

    i_in: int
    i_out: int
    path_shape: tuple[int, ...]
    path_weight: float


def make_linear_plan(
    irreps_in: Irreps | str,
    irreps_out: Irreps | str,
    pairs: Iterable[Sequence[int]] | None = None,
    biases: bool | Sequence[bool] | None = False,
    f_in: int | None = None,
    f_out: int | None = None,
    path_normalization: str = "element",
    shared_weights: bool | str = True,
) -> Plan:
    """Plan a linear layer, with the parameters of `e3nn.o3.Linear`.

    ``pairs``: ``(i_in, i_out)``, by default all equal irreps; ``biases``: one flag for all scalar outputs (0e), or one
    per output.  Beyond e3nn: ``path_normalization="none"`` (coefficients 1) and ``shared_weights="element"`` (rows of
    one element, by an index, share weights).

    Raises `PlanError` naming the broken rule.

    >>> plan = make_linear_plan("4x0e + 3x1o + 2x0e", "2x1o + 8x0e")
    >>> [tuple(i[:3]) for i in plan.instructions]
    [(0, 1, (4, 8)), (1, 0, (3, 2)), (2, 1, (2, 8))]
    """
    ends = {"x1": parse_irreps(irreps_in, "irreps_in"), OUT: parse_irreps(irreps_out, "irreps_out")}
    inputs, outputs = map(list_segments, ends.values())
    check_known("path_normalization", [path_normalization], tuple(PATH_NORMALIZATIONS), PlanError)
    channels, rows = _check_channel_counts(f_in, f_out), _parse_weight_sharing(shared_weights)
    if pairs is None:
        bound = [(a, b) for a in inputs for b in outputs if a.ir == b.ir]
    elif isinstance(pairs, Iterable):
        bound = [_select_input_and_output_segments(n, pair, inputs, outputs) for n, pair in enumerate(pairs)]
    else:
        raise PlanError(f"instructions must be a list of tuples (i_in, i_out), got {pairs!r}")
    legs = [(Leg.on("x1", a), Leg.on(OUT, b)) for a, b in bound]
    flags = _parse_bias_flags(biases, outputs)
    factors = _find_normalization_factors_of_pairs(bound, channels[0] or 1, path_normalization)
    shapes = [(source.mul, target.mul) for source, target in bound]
    slices = lay_out_weights(shapes)
    arguments = {
        "irreps_in": ends["x1"],
        "irreps_out": ends[OUT],
        "pairs": tuple((source.index, target.index) for source, target in bound),
        "biases": flags,
        "f_in": channels[0],
        "f_out": channels[1],
        "path_normalization": path_normalization,
        "shared_weights": shared_weights if rows == ELEMENT else rows == SHARED,
    }
    biased = tuple(s for s, flag in zip(outputs, flags, strict=True) if flag)
    found = zip(bound, shapes, factors, strict=True)
    return Plan(
        LINEAR,
        arguments,
        instructions=(
            *(LinearInstruction(a.index, b.index, shape, f.coefficient) for (a, b), shape, f in found),
            *(LinearInstruction(-1, s.index, (s.mul,), 1.0) for s in biased),
        ),
        operands=list_operands(ends, slices, rows),
        paths=tuple(
            Path(n, MATRIX, (("u", a.mul), ("w", b.mul)), legs[n], slices[n], f.coefficient, f)
            for n, ((a, b), f) in enumerate(zip(bound, factors, strict=True))
            if prod(shapes[n]) > 0
        ),
        weight_slices=slices,
        biased=biased,
    )


@remembered("plans of matrix products", entries=256)
def make_matrix_plan(inputs: int, outputs: int) -> Plan:
    """Plan rows times a weight matrix, without normalisation.

    >>> make_matrix_plan(8, 4).paths[0].coefficient
    1.0
    """
    return make_linear_plan(f"{inputs}x0e", f"{outputs}x0e", path_normalization="none")


def _fold_channels_and_drop_biases(plan: Plan) -> Plan:
    # f_in channels of 8x1o are 8 f_in copies of 1o
    if plan.f_in is None and not plan.bias_numel:
        return plan
    return plan.remade(
        irreps_in=Irreps([((plan.f_in or 1) * mul, ir) for mul, ir in plan.irreps_in]),
        irreps_out=Irreps([((plan.f_out or 1) * mul, ir) for mul, ir in plan.irreps_out]),
        biases=False,
        f_in=None,
        f_out=None,
    )


def _describe_irreps_and_weights(plan: Plan) -> str:
    shared = "shared" if plan.operand("w").rows == SHARED else f"per {plan.operand('w').rows}"
    channels = "" if plan.f_in is None else f", {plan.f_in} -> {plan.f_out} channels"
    biases = f", {plan.bias_numel} biases" if plan.bias_numel else ""
    return (
        f"{plan.irreps_in} -> {plan.irreps_out}{channels}\n"
        f"{plan.path_normalization} normalisation, {plan.weight_numel} weights {shared}{biases}"
    )


def _make_plan_of_single_path(plan: Plan, path: Path) -> Plan:
    return plan.remade(irreps_in=str(path.in1), irreps_out=str(path.out), pairs=None, biases=False)


LINEAR = Maker(
    "tpgen.linear/1",
    make_linear_plan,
    _describe_irreps_and_weights,
    readers={
        "irreps_in": read_json_irreps,
        "irreps_out": read_json_irreps,
        "pairs": make_json_tuple_reader(
            lambda where, entry: tuple(read_json_index(where, i) for i in entry), 2, "instructions"
        ),
        "biases": make_json_list_reader(read_json_boolean, "flags"),
        "f_in": make_json_null_reader(read_json_index),
        "f_out": make_json_null_reader(read_json_index),
        "path_normalization": make_json_name_reader(PATH_NORMALIZATIONS),
        "shared_weights": read_json_weight_sharing,
    },
    plan_of_path=_make_plan_of_single_path,
    flat=_fold_channels_and_drop_biases,
)


_SegmentPair = tuple[Segment, Segment]


def _select_input_and_output_segments(
    instruction_index: int, pair: Sequence[int], inputs: list[Segment], outputs: list[Segment]
) -> _SegmentPair:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        built = hasattr(pair, "path_shape")
        why = "; this one is of a built layer: give [(i.i_in, i.i_out) for i in instructions if i.i_in >= 0]"
        raise PlanError(f"instruction {instruction_index}: expected (i_in, i_out), got {pair!r}{why if built else ''}")
    source, target = (
        select_segment(
            f"instruction {instruction_index} {tuple(pair)}",
            end,
            parse_segment_index(f"instruction {instruction_index}", f"i_{end}", i),
            segments,
        )
        for end, i, segments in (("in", pair[0], inputs), ("out", pair[1], outputs))
    )
    if source.ir != target.ir:
        raise PlanError(
            f"instruction {instruction_index} {tuple(pair)}: a linear layer joins equal irreps, got "
            f"irreps_in[{source.index}] = {source} and irreps_out[{target.index}] = {target}: "
            "leave the instruction out, or use a tensor product"
        )
    return source, target


def _parse_weight_sharing(shared_weights: bool | str) -> str:
    # name how rows find their weights: all have the same, each its own, or an index says the element of each
    if not isinstance(shared_weights, str):
        return SHARED if shared_weights else ROW
    if shared_weights != ELEMENT:
        raise PlanError(f"shared_weights must be True, False or 'element', got {shared_weights!r}")
    return shared_weights


def _check_channel_counts(f_in: int | None, f_out: int | None) -> tuple[int | None, int | None]:
    if (f_in is None) != (f_out is None):
        raise PlanError(f"f_in and f_out go together: give both numbers of channels or none, got {f_in} and {f_out}")
    for name, value in (("f_in", f_in), ("f_out", f_out)):
        if value is not None and (type(value) is not int or value < 1):
            raise PlanError(f"{name} must be a number of channels, 1 or more, got {value!r}")
    return f_in, f_out


def _parse_bias_flags(biases: bool | Sequence[bool] | None, output_segments: list[Segment]) -> tuple[bool, ...]:
    if biases is None or isinstance(biases, bool):
        return tuple(bool(biases) and s.ir.is_scalar() for s in output_segments)
    if not isinstance(biases, Sequence) or isinstance(biases, str):
        raise PlanError(f"biases: must be True, False or a list of them, got {biases!r}")
    flags = tuple(biases)
    if len(flags) != len(output_segments):
        raise PlanError(
            f"biases: give one flag for each of the {len(output_segments)} entries of irreps_out, or a single one, "
            f"got {len(flags)}"
        )
    for segment, flag in zip(output_segments, flags, strict=True):
        if flag not in (True, False):
            raise PlanError(f"biases[{segment.index}]: must be True or False, got {flag!r}")
        if flag and not segment.ir.is_scalar():
            raise PlanError(
                f"biases[{segment.index}]: only scalars (0e) can have a bias, as anything else would not be "
                f"equivariant, and irreps_out[{segment.index}] = {segment}: set it to False"
            )
    return tuple(bool(flag) for flag in flags)


def _find_normalization_factors_of_pairs(
    segment_pairs: list[_SegmentPair], f_in: int, path_normalization: str
) -> list[Factors]:
    # those of a product with the scalar 1 that sums f_in times as many copies
    scales = [PathScale(target.index, (1, 1, 1), f_in * source.mul, 1.0, 1.0, 1.0) for source, target in segment_pairs]
    return find_path_factors(scales, "none", path_normalization)
