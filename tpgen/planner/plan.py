"""Plan a product: from irreps and instructions to paths.

`make_plan` derives every fact about a product exactly once: segments, axis sizes, weight slices, coefficients.
What it returns is frozen; the stages after it only read.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from e3nn.o3 import Irrep, Irreps

from tpgen.errors import PlanError, unknown
from tpgen.notebook import Shown
from tpgen.planner.coupling import nonzeros
from tpgen.planner.instruction import BuiltInstruction, Instruction, parse_instructions, parse_irreps
from tpgen.planner.modes import Mode, axis_sizes, find_mode
from tpgen.planner.normalization import (
    IRREP_NORMALIZATIONS,
    PATH_NORMALIZATIONS,
    Factors,
    PathScale,
    fan_in,
    normalization_factors,
)
from tpgen.planner.plan_table import plan_html, plan_table

FORMAT = "tpgen.plan/1"  # of the JSON text


@dataclass(frozen=True)
class Segment:
    """``mul`` copies of one irrep inside a flat operand: entries ``start`` to ``stop``."""

    index: int  # position in the irreps
    start: int
    mul: int
    ir: Irrep

    @property
    def stop(self) -> int:
        return self.start + self.mul * self.ir.dim

    def __str__(self) -> str:
        return f"{self.mul}x{self.ir}"


@dataclass(frozen=True)
class WeightSlice:
    """Where the weights of a path stand in the flat weight, and their shape."""

    start: int
    shape: tuple[int, ...]

    @property
    def stop(self) -> int:
        return self.start + prod(self.shape)


@dataclass(frozen=True)
class Path:
    """What one instruction makes the machine compute."""

    index: int  # of the instruction
    mode: Mode
    sizes: tuple[tuple[str, int], ...]  # multiplicity axes
    in1: Segment
    in2: Segment
    out: Segment
    weight: WeightSlice | None
    coefficient: float
    factors: Factors = field(repr=False)

    @property
    def ls(self) -> tuple[int, int, int]:
        """Degrees (l1, l2, l3) of the coupling."""
        return self.in1.ir.l, self.in2.ir.l, self.out.ir.l

    @property
    def nonzeros(self) -> int:
        """Coupling entries that are not zero."""
        return nonzeros(*self.ls)

    @property
    def dense(self) -> int:
        """All coupling entries."""
        return self.in1.ir.dim * self.in2.ir.dim * self.out.ir.dim

    @property
    def flops(self) -> int:
        """Operations per row: each non-zero coupling entry once for every combination of input copies,
        then the weight, a multiply and an add each."""
        sizes = dict(self.sizes)
        copies = prod(sizes[a] for a in set(self.mode.in1 + self.mode.in2))
        weight = prod(sizes.values()) * self.out.ir.dim if self.weight else 0
        return 2 * (copies * self.nonzeros + weight)


@dataclass(frozen=True)
class Plan(Shown):
    """A product, planned.  Equal plans compute the same function; `digest` is their stable name.

    Build one with `make_plan` or a preset.  ``paths`` holds what is computed (paths without a single
    element are dropped), ``instructions`` everything that was asked for.
    """

    irreps_in1: Irreps
    irreps_in2: Irreps
    irreps_out: Irreps
    instructions: tuple[Instruction, ...]
    in1_var: tuple[float, ...]
    in2_var: tuple[float, ...]
    out_var: tuple[float, ...]
    irrep_normalization: str
    path_normalization: str
    shared_weights: bool
    paths: tuple[Path, ...] = field(compare=False, repr=False)
    weight_slices: tuple[WeightSlice | None, ...] = field(compare=False, repr=False)  # by instruction

    @cached_property
    def weight_numel(self) -> int:
        """Number of weights (of each row, where they are not shared)."""
        return max((s.stop for s in self.weight_slices if s is not None), default=0)

    @cached_property
    def reached(self) -> tuple[bool, ...]:
        """For every output segment, whether some path with a coefficient writes it."""
        live = {path.out.index for path in self.paths if path.coefficient != 0.0}
        return tuple(index in live for index in range(len(self.irreps_out)))

    @property
    def flops(self) -> int:
        """Operations per row of the forward product."""
        return sum(path.flops for path in self.paths)

    def row_bytes(self, itemsize: int = 4) -> int:
        """Fewest bytes moved per row: every input read once, the output written once."""
        weights = 0 if self.shared_weights else self.weight_numel
        return itemsize * (self.irreps_in1.dim + self.irreps_in2.dim + weights + self.irreps_out.dim)

    @cached_property
    def digest(self) -> str:
        """Stable content hash: 16 hexadecimal digits, the same in every process."""
        return digest_of(self.to_json())

    def to_json(self) -> str:
        """The plan as one line of JSON, keys in a fixed order; `plan_from_json` reads it back."""
        return json.dumps(_fields(self), ensure_ascii=True, allow_nan=False)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __str__(self) -> str:
        return plan_table(self)

    _repr_html_ = plan_html


def _fields(plan: Plan) -> dict[str, Any]:
    """What a plan was made from; everything else follows from it."""
    return {
        "format": FORMAT,
        "irreps_in1": str(plan.irreps_in1),
        "irreps_in2": str(plan.irreps_in2),
        "irreps_out": str(plan.irreps_out),
        "instructions": [list(instruction[:6]) for instruction in plan.instructions],
        "in1_var": list(plan.in1_var),
        "in2_var": list(plan.in2_var),
        "out_var": list(plan.out_var),
        "irrep_normalization": plan.irrep_normalization,
        "path_normalization": plan.path_normalization,
        "shared_weights": plan.shared_weights,
    }


def digest_of(text: str) -> str:
    """First 16 hexadecimal digits of the SHA-256 of a plan's JSON text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_plan(
    irreps_in1: object,
    irreps_in2: object,
    irreps_out: object,
    instructions: Iterable[Sequence],
    *,
    in1_var: Sequence[float] | None = None,
    in2_var: Sequence[float] | None = None,
    out_var: Sequence[float] | None = None,
    irrep_normalization: str = "component",
    path_normalization: str = "element",
    shared_weights: bool = True,
) -> Plan:
    """Plan the product of two representations.

    Parameters are those of `e3nn.o3.TensorProduct`; ``instructions`` are tuples
    ``(i_in1, i_in2, i_out, mode, has_weight[, path_weight])``.

    Raises `PlanError` that names the instruction and the rule it breaks.

    >>> plan = make_plan("8x1o", "1x1o", "8x0e + 8x1e", [(0, 0, 0, "uvu", True), (0, 0, 1, "uvu", True)])
    >>> plan.weight_numel, [path.weight.start for path in plan.paths]
    (16, [0, 8])
    """
    irreps = (
        parse_irreps(irreps_in1, "irreps_in1"),
        parse_irreps(irreps_in2, "irreps_in2"),
        parse_irreps(irreps_out, "irreps_out"),
    )
    variances = (
        _variances("in1_var", in1_var, irreps[0]),
        _variances("in2_var", in2_var, irreps[1]),
        _variances("out_var", out_var, irreps[2]),
    )
    check_known("irrep_normalization", irrep_normalization, IRREP_NORMALIZATIONS)
    check_known("path_normalization", path_normalization, PATH_NORMALIZATIONS)
    asked = parse_instructions(instructions)
    built = irrep_normalization == path_normalization == "none"
    _check_not_built(asked, built)
    legs = [segments(i) for i in irreps]
    bound = [_bind(index, instruction, legs) for index, instruction in enumerate(asked)]
    scales = [_scale(b, b_asked, variances) for b, b_asked in zip(bound, asked, strict=True)]
    factors = normalization_factors(scales, irrep_normalization, path_normalization)
    slices = _weight_slices(bound, asked)
    return Plan(
        *irreps,
        tuple(_planned(a, b.path_shape, built) for a, b in zip(asked, bound, strict=True)),
        *variances,
        irrep_normalization,
        path_normalization,
        bool(shared_weights),
        paths=tuple(
            Path(index, b.mode, tuple(b.sizes.items()), *b.legs, slices[index], f.coefficient, f)
            for index, (b, f) in enumerate(zip(bound, factors, strict=True))
            if all(s.mul > 0 for s in b.legs) and prod(b.sizes.values()) > 0
        ),
        weight_slices=slices,
    )


def check_known(what: str, name: object, known: Collection[str]) -> None:
    """Raises `PlanError` that lists what is known."""
    if not isinstance(name, str) or name not in known:
        raise PlanError(unknown(what, name, known))


def _check_not_built(asked: list[Instruction], built: bool) -> None:
    for index, instruction in enumerate(asked):
        if isinstance(instruction, BuiltInstruction) and not built:
            raise PlanError(
                f"instruction {index} {instruction} is of a plan without normalisation: its path_weight holds the "
                "whole coefficient, which would be normalised once more; take the whole plan over with "
                "TensorProduct.from_plan(product.plan), or give irrep_normalization='none' and "
                "path_normalization='none'"
            )


def _planned(asked: Instruction, path_shape: tuple[int, ...], built: bool) -> Instruction:
    kind = BuiltInstruction if built else Instruction
    return kind(*asked[:6], path_shape)


@dataclass(frozen=True)
class _Bound:
    """An instruction with its segments and axis sizes looked up."""

    mode: Mode
    sizes: dict[str, int]
    legs: tuple[Segment, Segment, Segment]

    @property
    def path_shape(self) -> tuple[int, ...]:
        return tuple(self.sizes[a] for a in self.mode.weight)


def segments(irreps: Irreps) -> list[Segment]:
    """The segments that irreps cut a flat operand into."""
    found: list[Segment] = []
    start = 0
    for index, (mul, ir) in enumerate(irreps):
        found.append(Segment(index, start, mul, ir))
        start = found[-1].stop
    return found


def _bind(index: int, instruction: Instruction, legs: list[list[Segment]]) -> _Bound:
    """Look an instruction up in the irreps and check every rule, naming the instruction where one is broken."""
    where = f"instruction {index} {instruction}"
    chosen: list[Segment] = []
    for name, i, segments in zip(("in1", "in2", "out"), instruction[:3], legs, strict=True):
        if not 0 <= i < len(segments):
            raise PlanError(
                f"{where}: i_{name} = {i} is out of range: irreps_{name} has {len(segments)} of them, counted from 0"
            )
        chosen.append(segments[i])
    in1, in2, out = chosen
    spelled = f"(irreps_in1[{in1.index}] = {in1}, irreps_in2[{in2.index}] = {in2}, irreps_out[{out.index}] = {out})"
    _check_selection_rules(where, in1.ir, in2.ir, out.ir, spelled)
    try:
        mode = find_mode(instruction.connection_mode)
        sizes = axis_sizes(mode, in1.mul, in2.mul, out.mul, instruction.has_weight)
    except PlanError as error:
        raise PlanError(f"{where}: {error} {spelled}") from None
    return _Bound(mode, sizes, (in1, in2, out))


def _check_selection_rules(where: str, ir1: Irrep, ir2: Irrep, ir3: Irrep, spelled: str) -> None:
    if ir1.p * ir2.p != ir3.p:
        wanted = "even" if ir1.p * ir2.p == 1 else "odd"
        raise PlanError(
            f"{where}: the parity of the output must be the product of the input parities, {wanted}: change the output "
            f"to {ir3.l}{wanted[0]}, or leave the instruction out {spelled}"
        )
    if not abs(ir1.l - ir2.l) <= ir3.l <= ir1.l + ir2.l:
        raise PlanError(
            f"{where}: the triangle rule |l1 - l2| <= l3 <= l1 + l2 asks for an output degree between "
            f"{abs(ir1.l - ir2.l)} and {ir1.l + ir2.l}, got {ir3.l}: name an output in that range, or leave the "
            f"instruction out {spelled}"
        )


def _variances(name: str, values: Sequence[float] | None, irreps: Irreps) -> tuple[float, ...]:
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
    for index, value in enumerate(variances):
        if not (math.isfinite(value) and value >= 0.0):
            raise PlanError(f"{name}[{index}] must be finite and not negative (it is a variance), got {value}")
    return variances


def _scale(bound: _Bound, asked: Instruction, variances: tuple[tuple[float, ...], ...]) -> PathScale:
    in1, in2, out = bound.legs
    return PathScale(
        i_out=out.index,
        dims=(in1.ir.dim, in2.ir.dim, out.ir.dim),
        fan_in=fan_in(bound.mode.fan_in, bound.sizes),
        variance_in=variances[0][in1.index] * variances[1][in2.index],
        variance_out=variances[2][out.index],
        path_weight=asked.path_weight,
    )


def _weight_slices(bound: list[_Bound], asked: list[Instruction]) -> tuple[WeightSlice | None, ...]:
    """Weights stand one after the other in instruction order; unweighted instructions take no room."""
    slices: list[WeightSlice | None] = []
    start = 0
    for b, a in zip(bound, asked, strict=True):
        slices.append(WeightSlice(start, b.path_shape) if a.has_weight else None)
        start += prod(b.path_shape) if a.has_weight else 0
    return tuple(slices)


PlanMaker = Callable[..., Plan]
