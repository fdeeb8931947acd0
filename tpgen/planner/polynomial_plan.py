"""Plan an equivariant polynomial from terms with generated or given couplings."""

from __future__ import annotations

import keyword
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from e3nn.o3 import Irreps

from tpgen.base.errors import PlanError, unknown
from tpgen.base.remember import remembered
from tpgen.planner.equivariance import check_equivariant
from tpgen.planner.generalized import MAX_DEGREE, Entries, drop_dependent_paths, symmetrized_couplings
from tpgen.planner.modes import COPIES
from tpgen.planner.plan import ELEMENT, OF_MONOMIALS, OUT, Leg, Maker, Operand, Path, Plan, WeightSlice, list_segments
from tpgen.planner.strict import (
    check_field,
    make_json_list_reader,
    make_json_null_reader,
    make_json_tuple_reader,
    read_json_boolean,
    read_json_index,
    read_json_irreps,
    read_json_text,
    real,
)

_RESERVED_NAMES = ("self", "torch", "index")  # by generated programs
# Where the number of one component of one channel stands in a row.
_LAYOUTS = {
    "mul_ir": "segment by segment, in each one channel after the other (e3nn's)",
    "ir_mul": "component by component, in each one channel after the other",
    "channel": "channel by channel, in each all components (MACE's [row, channel, component])",
}


@dataclass(frozen=True)
class PolynomialTerm:
    """Term of a polynomial: a weighted product of named tensors.

    ``table``: ``((k, i, ..., j), value)`` per path, k in the whole output; None generates couplings into segment
    ``i_out``. ``basis``: ``chained`` (MACE's paths), ``natural`` (only parities (-1)^l) or ``independent``.
    """

    inputs: tuple[str, ...]
    i_out: int | None = None
    weight: str | None = None
    basis: str = "independent"
    table: tuple[tuple[tuple[tuple[int, ...], float], ...], ...] | None = None

    @property
    def user_arguments(self) -> tuple:
        """Fields that a user gives."""
        return self.inputs, self.i_out, self.weight, self.basis, self.table


BASES = ("independent", "chained", "natural")


def format_terms(plan: Plan) -> str:
    """Text with one line per operand, then per term."""
    lines = [str(o) for o in plan.operands]
    for n, term in enumerate(plan.terms):
        paths = plan.by_instruction[n]
        target = OUT if term.i_out is None else f"{OUT}[{term.i_out}] {plan.out.irreps[term.i_out]}"
        weighted = f" x {term.weight}" if term.weight else ""
        entries = sum(path.nonzeros for path in paths)
        lines.append(
            f"{' x '.join(term.inputs)}{weighted} -> {target} | {len(paths)} paths, {entries} entries, {paths[0].label}"
        )
    return "\n".join(lines)


def generated_couplings(
    factors: tuple[str, ...], output: str, tensor_names: tuple[str, ...], basis: str
) -> list[Entries]:
    """Cached couplings to an output irrep, one tensor name per factor."""
    return _list_couplings_of_grouped_factors(
        factors, output, tuple(tensor_names.index(s) for s in tensor_names), basis
    )


@remembered("couplings of polynomials")
def _list_couplings_of_grouped_factors(
    factors: tuple[str, ...], output: str, factor_groups: tuple[int, ...], basis: str
) -> list[Entries]:
    found = symmetrized_couplings(factors, output, factor_groups, natural_parity=basis == "natural")
    return drop_dependent_paths(found) if basis == "independent" else found


def make_polynomial_plan(operands: Iterable[Operand], terms: Iterable[PolynomialTerm]) -> Plan:
    """Plan a polynomial of ``operands``: inputs and, last, ``out``.

    Raises `PlanError` naming the operand or term.

    >>> x, out = Operand("x", Irreps("0e+1o")), Operand("out", Irreps("0e"))
    >>> print(make_polynomial_plan([x, out], [PolynomialTerm(("x", "x"), 0, weight="w")]))
    polynomial 2fef5f99c6ef2e85: 1 terms, 2 weights of a channel
    x: 1x0e+1x1o (row, mul_ir)
    w: 2x0e (weights, ir_mul)
    out: 1x0e (row, mul_ir)
    <BLANKLINE>
    term  in1  in2  out   constant               paths  weights  coupling  flops  bytes
       0  x    x    1x0e  independent couplings      2      0:2      4/32     12     20
    <BLANKLINE>
    2 paths, coupling 4/32 non-zero, per row and channel 12 flops, 20 bytes (each operand once)
    """
    operands, terms = tuple(operands), tuple(terms)
    if not operands:
        raise PlanError(f"operands: must hold the tensors and, last, {OUT!r}")
    *inputs, out = operands
    if out.name != OUT:
        raise PlanError(f"the last operand must be {OUT!r}, got {out.name!r}")
    names = _check_operands_and_map_by_name((*inputs, out))
    if not terms:
        raise PlanError("terms: give one at least: a polynomial without any is zero")
    for n, term in enumerate(terms):
        _check_term(n, term, names)
        _check_table_of_term(n, term, names)
    constants = [_list_coupling_entries_of_term(term, names) for term in terms]
    for n, (term, paths) in enumerate(zip(terms, constants, strict=True)):
        if not any(paths):
            raise PlanError(
                f"term {n} ({' x '.join(term.inputs)} -> {_name_term_output(term, out)}): no equivariant map exists "
                "(every coupling vanishes): drop the term, or change its output irrep"
            )
        if term.table is not None:
            check_equivariant(f"term {n}", [names[i].irreps for i in term.inputs], out.irreps, paths)
    return Plan(
        POLYNOMIAL,
        {"operands": (*inputs, out), "terms": terms},
        instructions=terms,
        operands=(*inputs, *_list_weight_operands(terms, constants), out),
        paths=tuple(
            _make_path(n, p, term, entries, names)
            for n, (term, paths) in enumerate(zip(terms, constants, strict=True))
            for p, entries in enumerate(paths)
        ),
    )


def _list_coupling_entries_of_term(term: PolynomialTerm, operands: Mapping[str, Operand]) -> list[Entries]:
    # (k, i, ..., j) -> value for each path, k a component of the whole output
    if term.table is not None:
        return [dict(path) for path in term.table]
    assert term.i_out is not None
    out = operands[OUT].irreps
    start = out.slices()[term.i_out].start
    factors = tuple(str(operands[name].irreps) for name in term.inputs)
    found = generated_couplings(factors, str(out[term.i_out].ir), term.inputs, term.basis)
    return [{(k + start, *rest): value for (k, *rest), value in path.items()} for path in found]


def _make_path(
    term_index: int, path_index: int, term: PolynomialTerm, entries: Entries, operands: Mapping[str, Operand]
) -> Path:
    out = operands[OUT]
    reached = Leg(OUT, out.dim) if term.i_out is None else Leg.on(OUT, list_segments(out.irreps)[term.i_out])
    return Path(
        index=term_index,
        mode=COPIES,
        sizes=(("u", 1),),
        legs=(*(Leg(name, operands[name].dim) for name in term.inputs), reached),
        weight=WeightSlice(path_index, (1,), term.weight) if term.weight else None,
        coefficient=1.0,
        entries=entries,
        label="table" if term.table is not None else f"{term.basis} couplings",
    )


def _check_operands_and_map_by_name(operands: Sequence[Operand]) -> dict[str, Operand]:
    names: dict[str, Operand] = {}
    for o in operands:
        if not _is_valid_operand_name(o.name):
            raise PlanError(
                f"operand {o.name!r}: a name must be an identifier of ASCII letters, digits and _, "
                f"no keyword of Python, and none of {', '.join(_RESERVED_NAMES)}"
            )
        if o.name in names:
            raise PlanError(
                f"operand {o.name!r} is given twice: names must differ; to repeat a tensor, repeat its name in a term"
            )
        if o.layout not in _LAYOUTS:
            raise PlanError(f"operand {o.name!r}: {unknown('layout', o.layout, _LAYOUTS)}")
        if o.dim == 0:
            raise PlanError(f"operand {o.name!r}: its irreps are empty; leave it out")
        names[o.name] = o
    if not names[OUT].channels:
        raise PlanError(f"operand {OUT!r}: the output has a number for every channel; it cannot be shared by them")
    return names


def _is_valid_operand_name(name: Any) -> bool:
    # whether a text can name an operand, in programs too
    plain = isinstance(name, str) and name.isidentifier() and name.isascii()
    return plain and not keyword.iskeyword(name) and name not in _RESERVED_NAMES


def _name_term_output(term: PolynomialTerm, out: Operand) -> str:
    return OUT if term.i_out is None else f"{out.irreps[term.i_out].ir}"


def _check_term(term_index: int, term: PolynomialTerm, operands: Mapping[str, Operand]) -> None:
    inputs = [name for name in operands if name != OUT]
    if isinstance(term.inputs, str):
        raise PlanError(f"term {term_index}: must have a tuple of names, such as {(term.inputs,)}, got {term.inputs!r}")
    if not 1 <= len(term.inputs) <= MAX_DEGREE:
        raise PlanError(f"term {term_index}: the degree must be 1 to {MAX_DEGREE}, got {len(term.inputs)} inputs")
    for name in term.inputs:
        if name not in inputs:
            raise PlanError(f"term {term_index}: {unknown('tensor', name, inputs)}")
    if term.basis not in BASES:
        raise PlanError(f"term {term_index}: {unknown('basis', term.basis, BASES)}")
    segments = len(operands[OUT].irreps)
    if term.table is None and (term.i_out is None or not 0 <= term.i_out < segments):
        raise PlanError(
            f"term {term_index}: i_out must be 0 to {segments - 1}, the segments of the output, got {term.i_out}"
        )
    if term.weight is not None and (not _is_valid_operand_name(term.weight) or term.weight in operands):
        raise PlanError(
            f"term {term_index}: {term.weight!r} cannot name its weights: it must be an identifier that no tensor has"
        )


def _check_table_of_term(term_index: int, term: PolynomialTerm, operands: Mapping[str, Operand]) -> None:
    sizes = [operands[OUT].dim, *(operands[name].dim for name in term.inputs)]
    for path in term.table or ():
        twice = [index for index, count in Counter(index for index, _ in path).items() if count > 1]
        if twice:
            raise PlanError(
                f"term {term_index}: the entry {twice[0]} is there twice: give one, with the sum of both values"
            )
        for at, value in path:
            if len(at) != len(sizes):
                raise PlanError(
                    f"term {term_index}: an entry has {len(sizes)} indices (the output's, then one for each of "
                    f"{', '.join(term.inputs)}), got {at}"
                )
            for axis, (i, size) in enumerate(zip(at, sizes, strict=True)):
                if not 0 <= i < size:
                    name = (OUT, *term.inputs)[axis]
                    raise PlanError(
                        f"term {term_index}: index {i} of {name} is out of range: it has components 0 to {size - 1}"
                    )
            if value != value or abs(value) == float("inf"):
                raise PlanError(f"term {term_index}: the entry {at} must be a finite number, got {value}")
    if term.table is not None and not any(value for path in term.table for _, value in path):
        raise PlanError(f"term {term_index}: every entry of its table is zero: leave the term out")


def _list_weight_operands(terms: Sequence[PolynomialTerm], paths_of_terms: Sequence[list[Entries]]) -> list[Operand]:
    # one operand for each name, with the paths of all its terms
    counts: dict[str, int] = {}
    for term, paths in zip(terms, paths_of_terms, strict=True):
        if term.weight is not None and counts.setdefault(term.weight, len(paths)) != len(paths):
            raise PlanError(
                f"weights {term.weight!r}: terms that share them must have equally many paths, "
                f"got {counts[term.weight]} and {len(paths)}: give them names of their own"
            )
    return [
        Operand(name, Irreps(f"{count}x0e"), "ir_mul", weights=True, rows=ELEMENT) for name, count in counts.items()
    ]


def sort_entries(entries: Any) -> tuple[tuple[tuple[int, ...], float], ...]:
    """Sort a path's entries, mapping or pairs, into tuples; `PlanError` if malformed."""
    pairs = entries.items() if isinstance(entries, Mapping) else entries
    return tuple(sorted(_parse_table_entry(index, value) for index, value in pairs))


def _parse_table_entry(indices: Any, value: Any) -> tuple[tuple[int, ...], float]:
    try:
        return tuple(operator.index(i) for i in indices), float(value)
    except (TypeError, ValueError):
        raise PlanError(
            f"table: an entry is whole numbers (k, i, ..., j) and a number, got {str(indices)[:40]}: {str(value)[:40]}"
        ) from None


def _make_plan_of_single_term(plan: Plan, path: Path) -> Plan:
    term = plan.terms[path.index]
    return make_polynomial_plan([o for o in (*plan.inputs, plan.out) if o.name in (*term.inputs, OUT)], [term])


def _describe_counts_and_operands(plan: Plan) -> str:
    weights = f", {plan.weight_numel} weights of a channel" if plan.weights else ""
    return f"{len(plan.terms)} terms{weights}\n" + "\n".join(map(str, plan.operands))


# far above any real polynomial, far below what could exhaust a machine before planning notices
_MAX_DIM = 256
MAX_TERMS = 1024


def _read_json_operand(field: str, entry: list) -> Operand:
    name, ends, layout, channels = entry
    found = Irreps(read_json_irreps(field, ends))
    rule = f"a channel has at most {_MAX_DIM} components"
    check_field(found.dim <= _MAX_DIM and len(found) <= _MAX_DIM, field, rule, found.dim)
    return Operand(
        read_json_text(field, name), found, read_json_text(field, layout), read_json_boolean(field, channels)
    )


def _read_json_term(field: str, entry: list) -> PolynomialTerm:
    inputs, i_out, weight, basis, table = entry
    names = make_json_list_reader(read_json_text, "names")(field, inputs)
    paths = make_json_null_reader(make_json_list_reader(_read_json_entries, "paths"))(field, table)
    return PolynomialTerm(
        tuple(names),
        make_json_null_reader(read_json_index)(field, i_out),
        make_json_null_reader(read_json_text)(field, weight),
        read_json_text(field, basis),
        None if paths is None else tuple(paths),
    )


def _read_json_entries(field: str, path: Any) -> tuple[tuple[tuple[int, ...], float], ...]:
    check_field(
        isinstance(path, list) and all(isinstance(e, list) and len(e) == 2 for e in path), field, _ENTRIES_RULE, path
    )
    return sort_entries(
        (tuple(make_json_list_reader(read_json_index, "indices")(field, at)), real(field, value)) for at, value in path
    )


_ENTRIES_RULE = "must be a list of entries, each its indices and a number"
POLYNOMIAL = Maker(
    "tpgen.polynomial/1",
    make_polynomial_plan,
    _describe_counts_and_operands,
    readers={
        "operands": make_json_tuple_reader(_read_json_operand, 4, "operands", MAX_TERMS),
        "terms": make_json_tuple_reader(_read_json_term, 5, "terms", MAX_TERMS),
    },
    plan_of_path=_make_plan_of_single_term,
    form=OF_MONOMIALS,
    sizes=("channels", "elements"),
    noun="term",
    unit="row and channel",
    separators=(",", ":"),
)
