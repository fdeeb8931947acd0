"""Products by name, with the path order of e3nn, MACE and NequIP."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import comb

from e3nn.o3 import Irrep, Irreps
from typing_extensions import TypedDict, Unpack

from tpgen.base.errors import PlanError, unknown
from tpgen.planner.instruction import parse_irreps
from tpgen.planner.plan import Plan
from tpgen.planner.product import PlanMaker, make_plan


class _SquareKeywords(TypedDict, total=False):
    in1_var: Sequence[float] | None
    in2_var: Sequence[float] | None
    out_var: Sequence[float] | None
    path_normalization: str
    shared_weights: bool


class PresetKeywords(_SquareKeywords, total=False):
    """Keywords of presets other than `tensor_square`."""

    irrep_normalization: str


def fully_connected(
    irreps_in1: Irreps | str, irreps_in2: Irreps | str, irreps_out: Irreps | str, **options: Unpack[PresetKeywords]
) -> Plan:
    """Plan all allowed paths; weights mix all copies: mode ``uvw``.

    >>> len(fully_connected("0e+1o", "0e+1o", "0e+1o").paths)
    4
    """
    in1, in2 = parse_irreps(irreps_in1, "irreps_in1"), parse_irreps(irreps_in2, "irreps_in2")
    out = parse_irreps(irreps_out, "irreps_out")
    instructions = [
        (i1, i2, i_out, "uvw", True)
        for i1, (_, ir1) in enumerate(in1)
        for i2, (_, ir2) in enumerate(in2)
        for i_out, (_, ir_out) in enumerate(out)
        if ir_out in ir1 * ir2
    ]
    return make_plan(in1, in2, out, instructions, **options)


def channelwise(
    irreps_in1: Irreps | str, irreps_in2: Irreps | str, irreps_filter: Irreps | str, **options: Unpack[PresetKeywords]
) -> Plan:
    """Plan the convolution product of MACE and NequIP: mode ``uvu``, into irreps of the filter.

    One output segment per path, sorted.  Weights are per row by default.

    >>> str(channelwise("8x0e+8x1o", "0e+1o", "0e+1o").irreps_out)
    '8x0e+8x0e+8x1o+8x1o'
    """
    in1, in2 = parse_irreps(irreps_in1, "irreps_in1"), parse_irreps(irreps_in2, "irreps_in2")
    allowed = {ir for _, ir in parse_irreps(irreps_filter, "irreps_filter")}
    found = list(_list_allowed_segment_pairs(in1, in2, allowed))
    out, position = _sorted_irreps_and_positions([(in1[i1].mul, ir) for i1, _, ir in found])
    instructions = sorted(
        ((i1, i2, position[n], "uvu", True) for n, (i1, i2, _) in enumerate(found)),
        key=lambda instruction: instruction[2],
    )
    options.setdefault("shared_weights", False)
    return make_plan(in1, in2, out, instructions, **options)


def elementwise(
    irreps_in1: Irreps | str,
    irreps_in2: Irreps | str,
    filter_ir_out: Iterable[object] | None = None,
    **options: Unpack[PresetKeywords],
) -> Plan:
    """Plan copy u times copy u of both inputs: mode ``uuu``, unweighted.

    >>> str(elementwise("2x1o", "2x1o", ["0e"]).irreps_out)
    '2x0e'
    """
    in1, in2 = parse_irreps(irreps_in1, "irreps_in1").simplify(), parse_irreps(irreps_in2, "irreps_in2").simplify()
    allowed = _parse_irrep_filter(filter_ir_out)
    if in1.num_irreps != in2.num_irreps:
        raise PlanError(
            f"an elementwise product pairs the irreps one by one, so both inputs must have as many: "
            f"{in1} has {in1.num_irreps}, {in2} has {in2.num_irreps}"
        )
    cut1, cut2 = _split_irreps_to_equal_multiplicities(list(in1), list(in2))
    out: list[tuple[int, Irrep]] = []
    instructions = []
    for i, ((mul, ir1), (_, ir2)) in enumerate(zip(cut1, cut2, strict=True)):
        for ir in ir1 * ir2:
            if allowed is None or ir in allowed:
                instructions.append((i, i, len(out), "uuu", False))
                out.append((mul, ir))
    return make_plan(Irreps(cut1), Irreps(cut2), Irreps(out), instructions, **options)


def full(
    irreps_in1: Irreps | str,
    irreps_in2: Irreps | str,
    filter_ir_out: Iterable[object] | None = None,
    **options: Unpack[PresetKeywords],
) -> Plan:
    """Plan every pair of copies of both inputs: mode ``uvuv``, unweighted, outputs sorted.

    >>> str(full("2x1o", "3x0e").irreps_out)
    '6x1o'
    """
    in1, in2 = parse_irreps(irreps_in1, "irreps_in1").simplify(), parse_irreps(irreps_in2, "irreps_in2").simplify()
    found = list(_list_allowed_segment_pairs(in1, in2, _parse_irrep_filter(filter_ir_out)))
    out, position = _sorted_irreps_and_positions([(in1[i1].mul * in2[i2].mul, ir) for i1, i2, ir in found])
    instructions = [(i1, i2, position[n], "uvuv", False) for n, (i1, i2, _) in enumerate(found)]
    return make_plan(in1, in2, out, instructions, **options)


def tensor_square(
    irreps_in: Irreps | str,
    irreps_out: Irreps | str | None = None,
    filter_ir_out: Iterable[object] | None = None,
    irrep_normalization: str = "component",
    **options: Unpack[_SquareKeywords],
) -> Plan:
    """Plan a tensor times itself, each symmetric pair once.

    Without ``irreps_out``: unweighted, one segment per path (``uvuv``, ``uvu<v``, ``uuu``).  With: fully connected,
    weighted (``uvw``, ``u<vw``, ``uuw``).

    >>> str(tensor_square("1o").irreps_out)
    '1x0e+1x2e'
    """
    in1 = parse_irreps(irreps_in, "irreps_in").simplify()
    if irrep_normalization not in _SQUARE_SCALES:
        raise PlanError(unknown("irrep_normalization", irrep_normalization, _SQUARE_SCALES))
    if irreps_out is None:
        found = list(
            _list_symmetric_instructions(
                in1, ("uvuv", "uvu<v", "uuu"), irrep_normalization, _parse_irrep_filter(filter_ir_out)
            )
        )
        copies = {"uvuv": lambda n, m: n * m, "uvu<v": lambda n, m: comb(n, 2), "uuu": lambda n, m: n}
        out, position = _sorted_irreps_and_positions(
            [(copies[mode](in1[i].mul, in1[j].mul), ir) for i, j, mode, ir, _ in found]
        )
        instructions = [(i1, i2, position[n], mode, False, scale) for n, (i1, i2, mode, _, scale) in enumerate(found)]
    else:
        if filter_ir_out is not None:
            raise PlanError("give either irreps_out or filter_ir_out: irreps_out already says which outputs are wanted")
        out = parse_irreps(irreps_out, "irreps_out").simplify()
        instructions = [
            (i1, i2, i_out, mode, True, scale)
            for i1, i2, mode, ir, scale in _list_symmetric_instructions(
                in1, ("uvw", "u<vw", "uuw"), irrep_normalization, None
            )
            for i_out, (_, ir_out) in enumerate(out)
            if ir_out == ir
        ]
        # weights stand in the order (in1, in2, out); within one triple pairs come before the diagonal
        instructions.sort(key=lambda instruction: instruction[:3])
    # the symmetric normalisation stands in the path weights already
    return make_plan(in1, in1, out, instructions, irrep_normalization="none", **options)


def _list_symmetric_instructions(
    irreps: Irreps, modes: tuple[str, str, str], normalization: str, allowed: set[Irrep] | None
) -> Iterator[tuple[int, int, str, Irrep, float]]:
    """Yield (i1, i2, mode, irrep, scale); ``modes``: of two segments, two copies, one copy with itself."""
    apart, pairs, same = modes
    generic, diagonal = _SQUARE_SCALES[normalization]
    for i1, i2, ir in _list_allowed_segment_pairs(irreps, irreps, allowed):
        (mul, ir1), (_, ir2) = irreps[i1], irreps[i2]
        if i1 < i2:
            yield i1, i2, apart, ir, generic(ir1, ir2, ir)
        elif i1 == i2:
            if mul > 1:
                yield i1, i1, pairs, ir, generic(ir1, ir2, ir)
            if ir.l % 2 == 0:
                yield i1, i1, same, ir, diagonal(ir1, ir)


# Scale of a product of two independent vectors, and of a vector with itself: <x_i x_i x_j x_j> is not <x_i x_i><x_j
# x_j>, so the scalar of a square and its higher degrees have other variances.
_SQUARE_SCALES = {
    "component": (
        lambda ir1, ir2, ir: ir.dim,
        lambda ir1, ir: ir.dim / (ir1.dim + 2) if ir.l == 0 else ir.dim / 2,
    ),
    "norm": (
        lambda ir1, ir2, ir: ir1.dim * ir2.dim,
        lambda ir1, ir: ir.dim * ir1.dim if ir.l == 0 else ir1.dim * (ir1.dim + 2) / 2,
    ),
    "none": (lambda ir1, ir2, ir: 1, lambda ir1, ir: 1),
}


def _list_allowed_segment_pairs(
    in1: Irreps, in2: Irreps, allowed: set[Irrep] | None
) -> Iterator[tuple[int, int, Irrep]]:
    for i1, (_, ir1) in enumerate(in1):
        for i2, (_, ir2) in enumerate(in2):
            yield from ((i1, i2, ir) for ir in ir1 * ir2 if allowed is None or ir in allowed)


def _parse_irrep_filter(filter_ir_out: Iterable[object] | None) -> set[Irrep] | None:
    if filter_ir_out is None:
        return None
    try:
        return {Irrep(ir) for ir in filter_ir_out}
    except (ValueError, TypeError) as error:
        raise PlanError(f"filter_ir_out must hold irreps like '0e' or '1o', got {filter_ir_out!r} ({error})") from None


def _sorted_irreps_and_positions(segments: list[tuple[int, Irrep]]) -> tuple[Irreps, tuple[int, ...]]:
    out, position, _ = Irreps(segments).sort()
    return out, position


def _split_irreps_to_equal_multiplicities(
    left: list[tuple[int, Irrep]], right: list[tuple[int, Irrep]]
) -> tuple[list[tuple[int, Irrep]], list[tuple[int, Irrep]]]:
    # lists of (mul, ir)
    cut_left, cut_right = [], []
    while left and right:
        (mul1, ir1), (mul2, ir2) = left.pop(0), right.pop(0)
        mul = min(mul1, mul2)
        cut_left.append((mul, ir1))
        cut_right.append((mul, ir2))
        if mul1 > mul:
            left.insert(0, (mul1 - mul, ir1))
        if mul2 > mul:
            right.insert(0, (mul2 - mul, ir2))
    return cut_left, cut_right


PRESETS: dict[str, PlanMaker] = {
    preset.__name__: preset for preset in (fully_connected, channelwise, elementwise, full, tensor_square)
}
