r"""The multilinear form of a product, with one open operand.

.. math::

    L(x_1, x_2, w, g) = \sum_p \alpha_p \sum w_p\, x_1[a,i]\, x_2[b,j]\, C_p[i,j,k]\, g[c,k]

- the product is :math:`L` with ``out`` open, the gradient of an operand is :math:`L` with that operand open;
- ``right`` is :math:`L` with ``x1`` and ``out`` merged into one operand, and that one open;
- a derivative of any of these is again one of these, so the family is closed.

>>> from tpgen.planner.plan import make_plan
>>> form = make_form(make_plan("8x1o", "1o", "8x1e", [(0, 0, 0, "uvu", True)]))
>>> print(form)
out[8x1e] of x1, x2, w
  path 0: 1.73205 * einsum('zui,zvj,uv,ijk->zuk', x1, x2, w, _w3j_1_1_1)
>>> print(form.open("x2"))
x2[1x1o] of x1, w, out
  path 0: 1.73205 * einsum('zui,uv,zuk,ijk->zvj', x1, w, out, _w3j_1_1_1)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from tpgen.errors import EmitError, unknown
from tpgen.form.contraction import BATCH, Contraction, Coupling, Delta, Factor, Ones, Pairs
from tpgen.planner.plan import Path, Plan

LAYOUTS: dict[str, str] = {
    # order of a segment's axes in memory: copies outside, or copies innermost
    "mul_ir": "{mul}{ir}",
    "ir_mul": "{ir}{mul}",
}
Layout = str | tuple[str, str, str]


@dataclass(frozen=True)
class Operand:
    """A flat operand: its segments tile ``dim`` entries.  ``row`` operands have a batch axis, others are shared."""

    name: str
    segments: tuple[tuple[int, int], ...]  # start, stop
    row: bool = True
    text: str = ""

    @property
    def dim(self) -> int:
        return self.segments[-1][1] if self.segments else 0


@dataclass(frozen=True)
class Leg:
    """What a term reads of one operand: a segment, seen with these axes in memory order."""

    operand: str
    segment: int
    letters: str


@dataclass(frozen=True)
class Term:
    """One path of the form."""

    path: int  # index of the instruction
    legs: tuple[Leg, ...]
    coupling: Coupling
    sizes: tuple[tuple[str, int], ...]
    coefficient: float
    pairs: int = 0  # copies of each input, where the mode runs over their pairs

    def leg(self, operand: str) -> Leg | None:
        return next((leg for leg in self.legs if leg.operand == operand), None)


@dataclass(frozen=True)
class Form:
    """The form with its operands in groups, one group open.

    A group is one operand, or several that stand as one tensor with an axis for each (``right``).
    """

    operands: tuple[Operand, ...]
    terms: tuple[Term, ...]
    groups: tuple[tuple[str, ...], ...]
    opened: tuple[str, ...]
    plan: Plan
    layout: tuple[str, str, str]

    def operand(self, name: str) -> Operand:
        return next(o for o in self.operands if o.name == name)

    @cached_property
    def closed(self) -> tuple[tuple[str, ...], ...]:
        """The groups that are given, in order."""
        return tuple(g for g in self.groups if g != self.opened)

    def row(self, group: tuple[str, ...]) -> bool:
        """Whether the group has a batch axis."""
        return any(self.operand(name).row for name in group)

    def open(self, *group: str) -> Form:
        """The same form with another group open: a derivative of this one, the cotangent standing where it was open."""
        if group not in self.groups:
            raise EmitError(unknown("operand", "*".join(group), ("*".join(g) for g in self.groups)))
        return replace(self, opened=group)

    def merge(self, *names: str) -> Form:
        """The same form with operands joined into one group, and that group open."""
        rest = tuple(g for g in self.groups if not set(g) & set(names))
        return replace(self, groups=(names, *rest), opened=names)

    @cached_property
    def live_terms(self) -> tuple[Term, ...]:
        """Terms that reach the open group (an unweighted path has no gradient for the weights)."""
        return tuple(t for t in self.terms if all(t.leg(name) for name in self.opened) and t.coefficient != 0.0)

    def contraction(self, term: Term) -> Contraction:
        """The einsum of one term, before any rewrite."""
        sizes = dict(term.sizes)
        deltas: list[Factor] = []
        factors: list[Factor] = []
        for group in self.closed:
            legs = [leg for name in group if (leg := term.leg(name))]
            if legs:
                factors.append(Factor("*".join(group), self._letters(group, legs, sizes, deltas)))
        output = self._letters(self.opened, [leg for name in self.opened if (leg := term.leg(name))], sizes, deltas)
        constants = [Factor(term.coupling, "ijk"), *deltas]
        if term.pairs:
            constants += [Factor(Pairs(term.pairs, second=False), "pa"), Factor(Pairs(term.pairs, second=True), "pb")]
        covered = {a for f in (*factors, *constants) for a in f.letters}
        constants += [Factor(Ones(sizes[a]), a) for a in output if a not in covered and a != BATCH]
        return Contraction((*factors, *constants), output, tuple(sizes.items()), term.coefficient)

    def _letters(self, group: tuple[str, ...], legs: list[Leg], sizes: dict[str, int], deltas: list[Factor]) -> str:
        """Letters of a group; a letter that two of its legs share becomes two letters and a delta."""
        letters = BATCH if self.row(group) else ""
        for leg in legs:
            for a in leg.letters:
                if a in letters:
                    deltas.append(Factor(Delta(sizes[a]), a + a.upper()))
                    sizes[a.upper()] = sizes[a]
                    a = a.upper()
                letters += a
        return letters

    def __str__(self) -> str:
        opened = "*".join(f"{name}[{self.operand(name).text}]" for name in self.opened)
        head = f"{opened} of {', '.join('*'.join(g) for g in self.closed)}"
        return "\n".join([head, *(f"  path {t.path}: {self.contraction(t)}" for t in self.live_terms)])


def make_form(plan: Plan, layout: Layout = "mul_ir") -> Form:
    """The form of a planned product, with ``out`` open.

    ``layout`` is the order of axes in each segment, one name for all of in1, in2 and out or one for each.
    """
    layouts = split_layout(layout)
    irreps = {"x1": plan.irreps_in1, "x2": plan.irreps_in2, "out": plan.irreps_out}
    operands = tuple(
        Operand(name, tuple((s.start, s.stop) for s in i.slices()), text=str(i)) for name, i in irreps.items()
    )
    # unweighted instructions take no segment: offsets of the weights exist once, in the plan
    slices = [s for s in plan.weight_slices if s is not None]
    weights = Operand("w", tuple((s.start, s.stop) for s in slices), not plan.shared_weights, str(plan.weight_numel))
    position = {s.start: index for index, s in enumerate(slices) if s.stop > s.start}
    return Form(
        operands=(operands[0], operands[1], weights, operands[2]),
        terms=tuple(_term(path, layouts, position) for path in plan.paths),
        groups=(("x1",), ("x2",), ("w",), ("out",)),
        opened=("out",),
        plan=plan,
        layout=layouts,
    )


def right_form(plan: Plan, layout: Layout = "mul_ir") -> Form:
    """The form of ``right``: x1 and out stand as one matrix, and that matrix is open."""
    return make_form(plan, layout).merge("x1", "out")


def split_layout(layout: Layout) -> tuple[str, str, str]:
    """One layout name per operand (in1, in2, out).

    >>> split_layout("mul_ir")
    ('mul_ir', 'mul_ir', 'mul_ir')
    """
    names = (layout,) * 3 if isinstance(layout, str) else tuple(layout)
    if len(names) != 3:
        raise EmitError(f"layout: give one name, or one each for in1, in2 and out, got {layout!r}")
    for name in names:
        if name not in LAYOUTS:
            raise EmitError(unknown("layout", name, LAYOUTS))
    return names


def _term(path: Path, layouts: tuple[str, str, str], weight_position: dict[int, int]) -> Term:
    mode = path.mode
    # a paired mode reads copies a and b; the pair p selects them
    multiplicities = ("a", "b", mode.out) if mode.paired else (mode.in1, mode.in2, mode.out)
    legs = [
        Leg(name, segment.index, LAYOUTS[layout].format(mul=mul, ir=ir))
        for name, segment, mul, ir, layout in zip(
            ("x1", "x2", "out"), (path.in1, path.in2, path.out), multiplicities, "ijk", layouts, strict=True
        )
    ]
    if path.weight is not None:
        legs.insert(2, Leg("w", weight_position[path.weight.start], mode.weight))
    sizes = dict(path.sizes)
    if mode.paired:
        sizes.update(a=path.in1.mul, b=path.in2.mul)
    sizes.update(i=path.in1.ir.dim, j=path.in2.ir.dim, k=path.out.ir.dim)
    return Term(
        path.index,
        tuple(legs),
        Coupling(*path.ls),
        tuple(sizes.items()),
        path.coefficient,
        pairs=path.in1.mul if mode.paired else 0,
    )


def group_dim(form: Form, group: tuple[str, ...]) -> tuple[int, ...]:
    """Shape of a group's tensor without the batch: one axis per operand."""
    return tuple(form.operand(name).dim for name in group)
