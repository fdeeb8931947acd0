r"""Programs of paths for any call, higher derivatives included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tpgen.base.remember import remembered
from tpgen.form.call import Call, Slot
from tpgen.form.form import Term
from tpgen.form.polynomial import PolynomialForm, make_polynomial
from tpgen.kernels.sweep.monomials import make_polynomial_sweep, values_read
from tpgen.kernels.sweep.statements import (
    Accumulate,
    Component,
    Computation,
    Define,
    Load,
    Local,
    Product,
    Statement,
    SweepStage,
    TableEntry,
    Tabulate,
    Value,
)
from tpgen.kernels.sweep.tables import Table, make_tabulated_gradient
from tpgen.kernels.sweep.terms import BETWEEN, INDEX, D, MixingSides, P, S, operand_of

_TABLE = "T"  # the operand that stands for a table's entries; no operand of a product has this name


def make_path_stages(term: Term, call: Call, table: Table | None, channel: str) -> tuple[SweepStage, ...]:
    """Statements of a path: for every channel, then for sums over channels."""
    outside = "".join(a for a, _ in term.copies if a != channel)
    statements = VariableRenamer(term, table).rename_statements(_make_path_statements(term, call, table))
    inside = SweepStage(outside + channel, statements)
    # one sum for each entry of the table, or none
    summed = any(isinstance(s, Accumulate) and s.target.operand == S for s in statements)
    return (inside, SweepStage(outside, make_tabulated_gradient(term, table))) if table and summed else (inside,)


def make_table_statements(table: Table, call: Call, stages: Iterable[SweepStage]) -> tuple[Tabulate, ...]:
    """Statements that compute a table's entries, at every level that ``stages`` read."""
    read = {v.levels for s in stages for one in s.statements for v in one.factors if isinstance(v, TableEntry)}
    slots = [slot for slot in call.given if slot.operand == table.operand and slot.levels in read]
    return tuple(
        _move_table_statement_to_slot(s, slot) if slot.levels else s for slot in slots for s in table.statements
    )


def _move_table_statement_to_slot(statement: Tabulate, slot: Slot) -> Tabulate:
    # an entry of a table of another slot of its operand

    def value_at_slot(value: Value) -> Value:
        return replace(value, operand=str(slot)) if isinstance(value, Component) else value

    terms = tuple(Product(p.coefficient, tuple(map(value_at_slot, p.factors))) for p in statement.terms)
    return replace(statement, target=replace(statement.target, levels=slot.levels), terms=terms)


def _make_path_statements(term: Term, call: Call, table: Table | None) -> tuple[Computation, ...]:
    operands = {leg.operand for leg in term.legs}
    renamed = {table.operand: _TABLE} if table else {}

    def slots_of_term(slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
        return tuple(replace(s, operand=renamed.get(s.operand, s.operand)) for s in slots if s.operand in operands)

    form = _make_coupling_polynomial(term) if table is None else _make_table_polynomial(term, table)
    return _make_channel_statements(form, Call(slots_of_term(call.given), slots_of_term(call.opened)))


@remembered("programs of paths by levels")
def _make_channel_statements(form: PolynomialForm, call: Call) -> tuple[Computation, ...]:
    sides = [name for name in form.tensors if name not in ("w", _TABLE, "x2")]
    middle = [name for name in form.tensors if name in (_TABLE, "x2")]
    first = [name for name in form.tensors if name == "w"]
    orders = [(*first, side, *middle, *(s for s in sides if s != side)) for side in sides]
    return _renumber_locals(_merge_chained_sums(make_polynomial_sweep(form, call, orders=orders).rows))


def _merge_chained_sums(statements: tuple[Computation, ...]) -> list[Computation]:
    # join a sum with the statement behind it, which goes on with the sum, if nothing else reads the sum
    made: list[Computation] = []
    uses = Counter(value for s in statements for value in s.factors)
    for s in statements:
        before = made[-1] if made else None
        goes_on = isinstance(before, Define) and s.terms[0] == Product(1.0, (before.target,))
        if before and goes_on and uses[before.target] == 1:
            made[-1] = replace(s, terms=before.terms + s.terms[1:])
        else:
            made.append(s)
    return made


def _renumber_locals(statements: Iterable[Computation]) -> tuple[Computation, ...]:
    # names in the order of their statements, without gaps
    names: dict[Value, Value] = {}
    made: list[Computation] = []
    for s in statements:
        terms = tuple(Product(p.coefficient, tuple(names.get(f, f) for f in p.factors)) for p in s.terms)
        if isinstance(s, Define):
            names[s.target] = Local(f"v{len(names) + 1}")
        made.append(replace(s, target=names.get(s.target, s.target), terms=terms))
    return tuple(made)


def _make_coupling_polynomial(term: Term) -> PolynomialForm:
    # the path as a polynomial of what one channel has
    weight = (("w", 0),) if term.weighted else ()
    second = [(("x2", e.j),) if term.leg("x2") else () for e in term.entries]
    products = [(("x1", e.i), *y, *weight, ("out", e.k)) for e, y in zip(term.entries, second, strict=True)]
    return make_polynomial({factors: e.value for e, factors in zip(term.entries, products, strict=True)})


def _make_table_polynomial(term: Term, table: Table) -> PolynomialForm:
    weight = (("w", 0),) if term.weighted else ()
    return make_polynomial(
        {((table.vector, a), (_TABLE, n), *weight, ("out", k)): 1.0 for (a, k), n in table.places.items()}
    )


@dataclass(frozen=True)
class VariableRenamer:
    """Renames a polynomial's variables to operands, table entries and locals of a path."""

    term: Term
    table: Table | None = None
    local: str = "v"  # how the names of values begin
    written: tuple[str, str] = ("", "")  # what the gradient of an operand is called: P is that of D, and D that of P

    def rename_statements(self, statements: tuple[Computation, ...]) -> tuple[Statement, ...]:
        """Return renamed statements, after loads of components."""
        made = [self._rename_statement(s) for s in statements]
        read = [self._rename_value(v) for v in values_read(statements) if isinstance(v, Component)]
        components = [v for v in read if isinstance(v, Component)]
        return (*self._make_sorted_loads(components), *made)

    def _make_sorted_loads(self, components: list[Component]) -> Iterable[Load]:
        order = [*INDEX, "w", *BETWEEN]
        ranked = sorted(
            components, key=lambda c: (c.operand.partition(".")[2], order.index(operand_of(c.operand)), c.index)
        )
        return (Load(c, (self.term.path,)) for c in ranked)

    def _rename_statement(self, statement: Computation) -> Computation:
        terms = tuple(Product(p.coefficient, tuple(map(self._rename_value, p.factors))) for p in statement.terms)
        target = self._rename_value(statement.target)
        if isinstance(target, TableEntry):
            target = Component(S, self.term.path, target.index)
        elif isinstance(target, Component) and target.operand == self.written[0]:
            target = replace(target, operand=self.written[1])
        return replace(statement, target=target, terms=terms, paths=(self.term.path,))

    def _rename_value(self, value: Value) -> Value:
        if isinstance(value, Local):
            return Local(self.local + value.name[1:])
        assert isinstance(value, Component)
        operand, _, level = value.operand.partition(".")
        if operand == _TABLE:
            assert self.table is not None
            return TableEntry(self.table.number, value.index, sum(1 << int(n) - 1 for n in level))
        segment = self.term.path if operand in BETWEEN else self.term.segment(operand)
        return replace(value, segment=segment)


def make_mixing_stages(term: Term, opened: tuple[str, ...], sides: MixingSides) -> tuple[SweepStage, ...]:
    """Statements of a path that mixes copies, in stages, through P and D."""
    # P[q, k]   += sum_ij C x1 x2
    # out[w, k] += sum_q W[q, w] P[q, k]
    # dW[q, w]  += sum_k P[q, k] g[w, k]
    # D[q, k]   += sum_w W[q, w] g[w, k]
    # dx1, dx2   = the gradients of P at the cotangent D
    #
    # Input 1 and the output change places if copies mix first.
    near, far = sides.near, sides.far
    weight = (("w", 0),) if term.weighted else ()
    ends = [{"x1": e.i, "x2": e.j, "out": e.k} for e in term.entries]
    couplings = [((near, end[near]), ("x2", end["x2"]), (D, end[far])) for end in ends]
    coupling = make_polynomial({factors: e.value for e, factors in zip(term.entries, couplings, strict=True)})
    weights = make_polynomial({(*weight, (P, n), (far, n)): 1.0 for n in sorted({end[far] for end in ends})})
    gradients = tuple(o for o in (near, "x2") if o in opened)
    results = tuple(o for o in (far, "w") if o in opened and term.leg(o))
    copies = "".join(a for a, _ in term.copies if a in sides.copies)

    def make_stage(letters: str, naming: VariableRenamer, form: PolynomialForm, opens: tuple[str, ...]) -> SweepStage:
        call = Call(tuple(map(Slot, form.tensors)), tuple(map(Slot, opens)))
        return SweepStage(letters, naming.rename_statements(_make_channel_statements(form, call)))

    stages = [
        make_stage(copies, VariableRenamer(term, written=(D, P)), coupling, (D,) if results else ()),
        make_stage(
            copies + sides.mixed,
            VariableRenamer(term, local="q", written=(P, D)),
            weights,
            (*results, *(P for _ in gradients[:1])),
        ),
        make_stage(copies, VariableRenamer(term, local="h"), coupling, gradients),
    ]
    return tuple(made for made in stages if made.statements)
