r"""Plan a linear layer: every output irrep is a sum of input copies of the same irrep.

.. math:: z_{w,i} = \sum_p \alpha_p \sum_u W_p[u, w]\, x_{u,i} \; (+\, b_w)

Components are never mixed (Schur's lemma), so a path is a matrix over copies and needs no coupling.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

from e3nn.o3 import Irreps

from tpgen.drawing.path_map import path_picture
from tpgen.errors import PlanError, PlanIndexError
from tpgen.notebook import Shown, preformatted
from tpgen.planner.instruction import parse_irreps
from tpgen.planner.linear_table import linear_map, linear_plan_lines
from tpgen.planner.normalization import PATH_NORMALIZATIONS, PathScale, normalization_factors
from tpgen.planner.plan import Segment, WeightSlice, check_known, digest_of, segments

FORMAT = "tpgen.linear/1"
NORMALIZATIONS = tuple(name for name in PATH_NORMALIZATIONS if name != "none")  # those that e3nn has


class LinearInstruction(NamedTuple):
    """One instruction with e3nn's fields: ``in[i_in]`` to ``out[i_out]``, or a bias of ``out[i_out]`` (``i_in`` -1).

    ``path_shape`` is the shape of its weights and ``path_weight`` the coefficient, as in e3nn.
    """

    i_in: int
    i_out: int
    path_shape: tuple[int, ...]
    path_weight: float


@dataclass(frozen=True)
class LinearPath:
    """What one instruction makes the machine compute: a matrix over the copies of an irrep."""

    index: int  # of the instruction
    in1: Segment
    out: Segment
    weight: WeightSlice
    coefficient: float

    @property
    def flops(self) -> int:
        """Operations per row, a multiply and an add for every weight and component."""
        return 2 * prod(self.weight.shape) * self.out.ir.dim


@dataclass(frozen=True)
class LinearPlan(Shown):
    """A linear layer, planned.  Equal plans compute the same function; `digest` is their stable name.

    Build one with `make_linear_plan`.  ``pairs`` are the ``(i_in, i_out)`` that were asked for; ``paths`` what is
    computed (those without a single weight are dropped).
    """

    irreps_in: Irreps
    irreps_out: Irreps
    pairs: tuple[tuple[int, int], ...]
    biases: tuple[bool, ...]  # by output segment
    f_in: int | None
    f_out: int | None
    path_normalization: str
    shared_weights: bool
    paths: tuple[LinearPath, ...] = field(compare=False, repr=False)
    instructions: tuple[LinearInstruction, ...] = field(compare=False, repr=False)  # pairs, then biases
    weight_slices: tuple[WeightSlice, ...] = field(compare=False, repr=False)  # by pair

    @cached_property
    def weight_numel(self) -> int:
        """Number of weights (of each pair of channels, of each row where they are not shared)."""
        return max((s.stop for s in self.weight_slices), default=0)

    @cached_property
    def bias_numel(self) -> int:
        """Number of biases (of each output channel)."""
        return sum(segment.mul for segment in self.biased)

    @cached_property
    def biased(self) -> tuple[Segment, ...]:
        """Output segments that have biases."""
        return tuple(s for s, biased in zip(segments(self.irreps_out), self.biases, strict=True) if biased)

    @cached_property
    def reached(self) -> tuple[bool, ...]:
        """For every output segment, whether a path or a bias writes it."""
        live = {path.out.index for path in self.paths} | {s.index for s in self.biased if s.mul}
        return tuple(n in live for n in range(len(self.irreps_out)))

    @cached_property
    def flat(self) -> LinearPlan:
        """The same map without channels and biases: ``f_in`` channels of 8x1o are 8 f_in copies of 1o."""
        if self.f_in is None and not self.bias_numel:
            return self
        return make_linear_plan(
            Irreps([((self.f_in or 1) * mul, ir) for mul, ir in self.irreps_in]),
            Irreps([((self.f_out or 1) * mul, ir) for mul, ir in self.irreps_out]),
            self.pairs,
            path_normalization=self.path_normalization,
            shared_weights=self.shared_weights,
        )

    @property
    def flops(self) -> int:
        """Operations per row."""
        return (self.f_in or 1) * (self.f_out or 1) * sum(path.flops for path in self.paths)

    @cached_property
    def digest(self) -> str:
        """Stable content hash: 16 hexadecimal digits, the same in every process."""
        return digest_of(self.to_json())

    def to_json(self) -> str:
        """The plan as JSON text; `linear_plan_from_json` reads it back."""
        return json.dumps(_fields(self), ensure_ascii=True, allow_nan=False)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __str__(self) -> str:
        return "\n".join(text for text, _ in linear_plan_lines(self))

    def _repr_html_(self) -> str:
        return preformatted(str(self)) + path_picture(linear_map(self))


def _fields(plan: LinearPlan) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "irreps_in": str(plan.irreps_in),
        "irreps_out": str(plan.irreps_out),
        "pairs": [list(pair) for pair in plan.pairs],
        "biases": list(plan.biases),
        "f_in": plan.f_in,
        "f_out": plan.f_out,
        "path_normalization": plan.path_normalization,
        "shared_weights": plan.shared_weights,
    }


def make_linear_plan(
    irreps_in: object,
    irreps_out: object,
    pairs: Iterable[Sequence[int]] | None = None,
    biases: bool | Sequence[bool] | None = False,
    f_in: int | None = None,
    f_out: int | None = None,
    path_normalization: str = "element",
    shared_weights: bool = True,
) -> LinearPlan:
    """Plan a linear layer.

    Parameters are those of `e3nn.o3.Linear`: ``pairs`` are its instructions ``(i_in, i_out)``, by default all that
    join equal irreps; ``biases`` is one flag for all scalar outputs (0e), or one for each entry of ``irreps_out``.

    Raises `PlanError` that names the instruction, or the bias, and the rule it breaks.

    >>> plan = make_linear_plan("4x0e + 3x1o + 2x0e", "2x1o + 8x0e")
    >>> [tuple(i[:3]) for i in plan.instructions]
    [(0, 1, (4, 8)), (1, 0, (3, 2)), (2, 1, (2, 8))]
    """
    inputs, outputs = segments(parse_irreps(irreps_in, "irreps_in")), segments(parse_irreps(irreps_out, "irreps_out"))
    check_known("path_normalization", path_normalization, NORMALIZATIONS)
    channels = _channels(f_in, f_out)
    bound = _every(inputs, outputs) if pairs is None else _bind(pairs, inputs, outputs)
    flags = _biases(biases, outputs)
    coefficients = _coefficients(bound, channels[0] or 1, path_normalization)
    shapes = [(source.mul, target.mul) for source, target in bound]
    slices = _slices(shapes)
    return LinearPlan(
        parse_irreps(irreps_in, "irreps_in"),
        parse_irreps(irreps_out, "irreps_out"),
        tuple((source.index, target.index) for source, target in bound),
        flags,
        *channels,
        path_normalization,
        bool(shared_weights),
        paths=tuple(
            LinearPath(n, source, target, slices[n], coefficients[n])
            for n, (source, target) in enumerate(bound)
            if prod(shapes[n]) > 0
        ),
        instructions=(
            *(
                LinearInstruction(source.index, target.index, shapes[n], coefficients[n])
                for n, (source, target) in enumerate(bound)
            ),
            *(
                LinearInstruction(-1, s.index, (s.mul,), 1.0)
                for s, biased in zip(outputs, flags, strict=True)
                if biased
            ),
        ),
        weight_slices=slices,
    )


_Bound = tuple[Segment, Segment]


def _every(inputs: list[Segment], outputs: list[Segment]) -> list[_Bound]:
    return [(source, target) for source in inputs for target in outputs if source.ir == target.ir]


def _bind(pairs: Iterable[Sequence[int]], inputs: list[Segment], outputs: list[Segment]) -> list[_Bound]:
    if not isinstance(pairs, Iterable):
        raise PlanError(f"instructions must be a list of tuples (i_in, i_out), got {pairs!r}")
    return [_bind_one(n, pair, inputs, outputs) for n, pair in enumerate(pairs)]


def _bind_one(n: int, pair: Sequence[int], inputs: list[Segment], outputs: list[Segment]) -> _Bound:
    """Look an instruction up in the irreps and check every rule, naming the instruction where one is broken."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        built = hasattr(pair, "path_shape")
        why = "; this one is of a built layer: give [(i.i_in, i.i_out) for i in instructions if i.i_in >= 0]"
        raise PlanError(f"instruction {n}: expected (i_in, i_out), got {pair!r}{why if built else ''}")
    for what, i, known in (("in", pair[0], inputs), ("out", pair[1], outputs)):
        if not hasattr(i, "__index__") or isinstance(i, bool):
            raise PlanError(f"instruction {n}: i_{what} must be an integer, got {i!r}")
        if not 0 <= i < len(known):
            raise PlanIndexError(
                f"instruction {n} {tuple(pair)}: i_{what} = {i} is out of range: irreps_{what} has {len(known)} "
                "entries, counted from 0"
            )
    source, target = inputs[pair[0]], outputs[pair[1]]
    if source.ir != target.ir:
        raise PlanError(
            f"instruction {n} {tuple(pair)}: a linear layer joins equal irreps, got irreps_in[{source.index}] = "
            f"{source} and irreps_out[{target.index}] = {target}: leave the instruction out, or use a tensor product"
        )
    return source, target


def _channels(f_in: int | None, f_out: int | None) -> tuple[int | None, int | None]:
    if (f_in is None) != (f_out is None):
        raise PlanError(f"f_in and f_out go together: give both numbers of channels or none, got {f_in} and {f_out}")
    for name, value in (("f_in", f_in), ("f_out", f_out)):
        if value is not None and (type(value) is not int or value < 1):
            raise PlanError(f"{name} must be a number of channels, 1 or more, got {value!r}")
    return f_in, f_out


def _biases(biases: bool | Sequence[bool] | None, outputs: list[Segment]) -> tuple[bool, ...]:
    if biases is None or isinstance(biases, bool):
        return tuple(bool(biases) and s.ir.is_scalar() for s in outputs)
    if not isinstance(biases, Sequence) or isinstance(biases, str):
        raise PlanError(f"biases: must be True, False or a list of them, got {biases!r}")
    flags = tuple(biases)
    if len(flags) != len(outputs):
        raise PlanError(
            f"biases: give one flag for each of the {len(outputs)} entries of irreps_out, or a single one, "
            f"got {len(flags)}"
        )
    for segment, flag in zip(outputs, flags, strict=True):
        if flag not in (True, False):
            raise PlanError(f"biases[{segment.index}]: must be True or False, got {flag!r}")
        if flag and not segment.ir.is_scalar():
            raise PlanError(
                f"biases[{segment.index}]: only scalars (0e) can have a bias, as anything else would not be "
                f"equivariant, and irreps_out[{segment.index}] = {segment}: set it to False"
            )
    return tuple(bool(flag) for flag in flags)


def _coefficients(bound: list[_Bound], f_in: int, path_normalization: str) -> list[float]:
    """Those of a product with the scalar 1 that sums ``f_in`` times as many copies."""
    scales = [PathScale(target.index, (1, 1, 1), f_in * source.mul, 1.0, 1.0, 1.0) for source, target in bound]
    return [factors.coefficient for factors in normalization_factors(scales, "none", path_normalization)]


def _slices(shapes: list[tuple[int, int]]) -> tuple[WeightSlice, ...]:
    """Weights stand one after the other in the order of the instructions."""
    starts = accumulate((prod(shape) for shape in shapes[:-1]), initial=0)
    return tuple(WeightSlice(start, shape) for start, shape in zip(starts, shapes, strict=False))
