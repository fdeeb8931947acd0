r"""The multilinear form of a product or linear layer, with one open slot.

.. math::
    L(x_1, x_2, w, g) = \sum_p α_p \sum w_p\, x_1[a,i]\, x_2[b,j]\, C_p[i,j,k]\, g[c,k]

Open is ``out`` of a product, ``x1`` with ``out`` of ``right``.  Row z of a convolution reads ``x1[src[z]]`` and adds to
``out[dst[z]]``.

>>> from tpgen.planner.product import make_plan
>>> form = form_of(make_plan("8x1o", "1o", "8x1e", [(0, 0, 0, "uvu", True)]))
>>> print(form)
out[8x1e] of x1, x2, w
  path 0: 1.73205 * einsum('zui,zvj,uv,ijk->zuk', x1, x2, w, _w3j_1_1_1)
>>> print(form.open("x2"))
x2[1x1o] of x1, w, out
  path 0: 1.73205 * einsum('zui,uv,zuk,ijk->zvj', x1, w, out, _w3j_1_1_1)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from tpgen.base.drawing.path_map import PathMap, Route, draw_first_paths
from tpgen.base.errors import EmitError, unknown
from tpgen.base.locks import cached_property
from tpgen.base.notebook import Shown, div_lines, html_table
from tpgen.form.contraction import BATCH, Contraction, Coupling, Delta, Factor, Ones, Pairs
from tpgen.planner.modes import Mode
from tpgen.planner.plan import OUT, ROW, SHARED, Path, Plan

LAYOUTS: dict[str, str] = {
    # order of a segment's axes in memory: copies outside, or copies innermost
    "mul_ir": "{mul}{ir}",
    "ir_mul": "{ir}{mul}",
}
Layout = str | tuple[str, ...]

SlotNames = tuple[str, ...]  # the operands that one tensor stands for: one, or several that are axes of it (``right``)


@dataclass(frozen=True)
class FlatOperand:
    """Operand as flat rows: segments that tile ``dim`` entries.

    ``rows``: ``row`` (one per row), ``shared`` (one for all), or the name of an index: row z has ``index[z]``.
    """

    name: str
    segments: tuple[tuple[int, int], ...]  # start, stop
    rows: str = ROW
    text: str = ""

    @property
    def dim(self) -> int:
        return self.segments[-1][1] if self.segments else 0

    @property
    def row(self) -> bool:
        """Whether the operand has a batch axis."""
        return self.rows != SHARED

    @property
    def index(self) -> str | None:
        """Name of the row index, or None."""
        return None if self.rows in (ROW, SHARED) else self.rows

    @property
    def labels(self) -> tuple[str, ...]:
        """Irrep (or length) of each segment as text."""
        irreps = tuple(self.text.split("+"))
        numbers = tuple(str(stop - start) for start, stop in self.segments)
        return irreps if len(irreps) == len(numbers) and "x" in self.text else numbers


@dataclass(frozen=True)
class LetteredSegment:
    """Segment of an operand in a term's einsum, with one letter per axis."""

    operand: str
    segment: int
    letters: str


@dataclass(frozen=True)
class CouplingEntry:
    """Non-zero ``C[i, j, k]`` times the path's coefficient."""

    i: int
    j: int
    k: int
    value: float

    def at(self, letter: str) -> int:
        """The index i, j or k, by letter."""
        return int(getattr(self, letter))


@dataclass(frozen=True)
class Term:
    """One path: the sum over copies and entries of ``value * w * x1[i] * x2[j] * g[k]``."""

    path: int  # index of the instruction
    text: str
    mode: Mode
    legs: tuple[LetteredSegment, ...]
    constants: tuple[Factor, ...]
    sizes: tuple[tuple[str, int], ...]
    coefficient: float

    def leg(self, operand: str) -> LetteredSegment | None:
        return next((leg for leg in self.legs if leg.operand == operand), None)

    def segment(self, operand: str) -> int:
        """Index of the operand's segment."""
        return next(leg.segment for leg in self.legs if leg.operand == operand)

    def size(self, letters: str) -> int:
        sizes = dict(self.sizes)
        return prod(sizes[a] for a in letters)

    def reaches(self, opened: tuple[str, ...]) -> bool:
        """Whether the term reads any operand in ``opened``."""
        return any(self.leg(slot) for slot in opened)

    @property
    def weighted(self) -> bool:
        return self.leg("w") is not None

    @property
    def mixes(self) -> bool:
        """Whether weights mix copies of coupled inputs."""
        return bool(self.mode.mixing) and self.leg("x2") is not None

    @property
    def copies(self) -> tuple[tuple[str, int], ...]:
        """Letters and sizes of multiplicities."""
        return tuple((a, n) for a, n in self.sizes if a in self.mode.weight)

    @property
    def inputs(self) -> str:
        """Letters of the inputs' multiplicities."""
        return "".join(dict.fromkeys(self.mode.in1 + self.mode.in2))

    @property
    def coupling(self) -> Coupling:
        """The path's 3j symbol."""
        return next(f.source for f in self.constants if isinstance(f.source, Coupling))

    @property
    def pairs(self) -> int:
        """Copies per input in a mode of pairs, else 0."""
        return next((f.source.size for f in self.constants if isinstance(f.source, Pairs)), 0)

    @cached_property
    def entries(self) -> tuple[CouplingEntry, ...]:
        """Non-zeros of the coupling (for one input: identity), times the coefficient."""
        if self.leg("x2") is None:
            return tuple(CouplingEntry(n, 0, n, self.coefficient) for n in range(self.size("k")))
        c = self.coupling.array()
        return tuple(
            CouplingEntry(int(i), int(j), int(k), float(c[i, j, k]) * self.coefficient)
            for i, j, k in zip(*c.nonzero(), strict=True)
        )


@dataclass(frozen=True)
class Form(Shown):
    """Multilinear form that computes its open slot from the other slots."""

    operands: tuple[FlatOperand, ...]
    terms: tuple[Term, ...]
    slots: tuple[SlotNames, ...]
    opened: SlotNames
    plan: Plan
    layout: tuple[str, ...]

    def operand(self, name: str) -> FlatOperand:
        return next(o for o in self.operands if o.name == name)

    @cached_property
    def given(self) -> tuple[SlotNames, ...]:
        """All slots but the open one."""
        return tuple(s for s in self.slots if s != self.opened)

    @cached_property
    def indices(self) -> tuple[str, ...]:
        """Names of row indices."""
        return tuple(dict.fromkeys(o.index for o in self.operands if o.index))

    def index(self, slot: SlotNames) -> str | None:
        """The slot's row index, or None."""
        return self.operand(slot[0]).index

    def row(self, slot: SlotNames) -> bool:
        """Whether the slot has a batch axis."""
        return any(self.operand(name).row for name in slot)

    def shape(self, slot: SlotNames) -> tuple[int, ...]:
        """Shape of the slot's tensor, without batch."""
        return tuple(self.operand(name).dim for name in slot)

    def open(self, *slot: str) -> Form:
        """The form that computes the derivative by a slot; the former open slot takes a cotangent."""
        if slot not in self.slots:
            raise EmitError(unknown("operand", "*".join(slot), ("*".join(s) for s in self.slots)))
        return replace(self, opened=slot)

    def merge(self, *names: str) -> Form:
        """Join operands into one open slot."""
        rest = tuple(s for s in self.slots if not set(s) & set(names))
        return replace(self, slots=(names, *rest), opened=names)

    def index_rows(self, **indices: str) -> Form:
        """Set row indices of operands: ``form.index_rows(x1="src", out="dst")``."""
        return replace(
            self, operands=tuple(replace(o, rows=indices[o.name]) if o.name in indices else o for o in self.operands)
        )

    def keep_terms_that_read(self, *slots: SlotNames) -> Form:
        """Keep only terms that read all the slots."""
        names = [name for slot in slots for name in slot]
        return replace(self, terms=tuple(t for t in self.terms if all(t.leg(name) for name in names)))

    @cached_property
    def live_terms(self) -> tuple[Term, ...]:
        """Non-zero terms that reach the open slot."""
        return tuple(t for t in self.terms if all(t.leg(name) for name in self.opened) and t.coefficient != 0.0)

    def contraction(self, term: Term) -> Contraction:
        """Einsum of one term for the open slot, before rewrites."""
        sizes = dict(term.sizes)
        deltas: list[Factor] = []
        factors: list[Factor] = []
        for slot in self.given:
            legs = [leg for name in slot if (leg := term.leg(name))]
            if legs:
                factors.append(Factor("*".join(slot), self._einsum_letters_of_slot(slot, legs, sizes, deltas)))
        output = self._einsum_letters_of_slot(
            self.opened, [leg for name in self.opened if (leg := term.leg(name))], sizes, deltas
        )
        constants = [*term.constants, *deltas]
        covered = {a for f in (*factors, *constants) for a in f.letters}
        constants += [Factor(Ones(sizes[a]), a) for a in output if a not in covered and a != BATCH]
        return Contraction((*factors, *constants), output, tuple(sizes.items()), term.coefficient)

    def _einsum_letters_of_slot(
        self, slot: SlotNames, legs: list[LetteredSegment], sizes: dict[str, int], deltas: list[Factor]
    ) -> str:
        letters = BATCH if self.row(slot) else ""
        for leg in legs:
            for a in leg.letters:
                if a in letters:
                    deltas.append(Factor(Delta(sizes[a]), a + a.upper()))
                    sizes[a.upper()] = sizes[a]
                    a = a.upper()
                letters += a
        return letters

    def _describe_open_and_given_slots(self) -> str:
        opened = "*".join(f"{name}[{self.operand(name).text}]" for name in self.opened)
        at = "".join(f", {o.name} at {o.index}" for o in self.operands if o.index)
        return f"{opened} of {', '.join('*'.join(s) for s in self.given)}{at}"

    def __str__(self) -> str:
        return "\n".join(
            [
                self._describe_open_and_given_slots(),
                *(f"  path {t.path}: {self.contraction(t)}" for t in self.live_terms),
            ]
        )

    @property
    def path_map(self) -> PathMap:
        """Diagram of paths from given to open segments."""

        def list_segment_labels_by_operand(slots: Iterable[SlotNames]) -> dict[str, tuple[str, ...]]:
            return {name: self.operand(name).labels for slot in slots for name in slot}

        operands, results = list_segment_labels_by_operand(self.given), list_segment_labels_by_operand([self.opened])
        routes = []
        for t in self.live_terms:
            ends = [(leg.operand, leg.segment) for leg in t.legs]
            begins, reaches = (tuple(e for e in ends if e[0] in side) for side in (operands, results))
            cost = prod(size for _, size in t.sizes)
            routes.append(Route(t.path, begins, reaches, f"path {t.path}: {self.contraction(t)}", cost))
        return PathMap(operands, results, tuple(routes), "products in all, those with zero too")

    def _repr_html_(self) -> str:
        rows = [("path", "einsum"), *((t.path, self.contraction(t)) for t in self.live_terms)]
        said = div_lines(f"{self._describe_open_and_given_slots()} (open: {'*'.join(self.opened)})")
        return said + html_table(rows, left=(1,)) + draw_first_paths(self.path_map)


def form_of(plan: Plan, layout: Layout = "mul_ir") -> Form:
    """The form that computes ``out`` of a product or linear layer without channels (`Plan.flat`).

    ``layout``: axis order of segments, one name for all, or one per input and output.

    >>> from tpgen.planner.linear import make_linear_plan
    >>> print(form_of(make_linear_plan("8x1o", "4x1o")).open("w"))
    w[32] of x1, out
      path 0: 0.353553 * einsum('zui,zwk,ik->uw', x1, out, _eye_3)
    """
    plan, layouts = plan.flat, expand_layout(plan, layout)
    # unweighted instructions take no segment: offsets of the weights exist once, in the plan
    slices = [s for s in plan.weight_slices if s is not None]
    position = {s.start: index for index, s in enumerate(slices) if s.stop > s.start}
    weights = tuple((s.start, s.stop) for s in slices)
    return Form(
        operands=tuple(
            FlatOperand(o.name, weights, o.rows, str(o.dim))
            if o.weights
            else FlatOperand(o.name, tuple((s.start, s.stop) for s in o.irreps.slices()), o.rows, str(o.irreps))
            for o in plan.operands
        ),
        terms=tuple(_make_term_of_path(path, layouts, position) for path in plan.paths),
        slots=tuple((o.name,) for o in plan.operands),
        opened=(OUT,),
        plan=plan,
        layout=layouts,
    )


def right_form(plan: Plan, layout: Layout = "mul_ir") -> Form:
    """The form of ``right``: ``x1`` and ``out`` in one open slot."""
    return form_of(plan, layout).merge("x1", "out")


def conv_form(plan: Plan, layout: Layout = "mul_ir") -> Form:
    """The form of a convolution: x1 indexed by ``src``, out by ``dst``.

    >>> from tpgen.planner.presets import channelwise
    >>> str(conv_form(channelwise("4x0e", "0e", "0e"))).split("\\n")[0]
    'out[4x0e] of x1, x2, w, x1 at src, out at dst'
    """
    return form_of(plan, layout).index_rows(x1="src", out="dst")


def expand_layout(plan: Plan, layout: Layout) -> tuple[str, ...]:
    """A layout name for each input and the output.

    >>> from tpgen.planner.linear import make_linear_plan
    >>> expand_layout(make_linear_plan("8x1o", "4x1o"), "ir_mul")
    ('ir_mul', 'ir_mul')
    """
    ends = [o.name for o in (*plan.inputs, plan.out)]
    names = (layout,) * len(ends) if isinstance(layout, str) else tuple(layout)
    if len(names) != len(ends):
        raise EmitError(f"layout: give one name, or one for each of {', '.join(ends)}, got {layout!r}")
    for name in names:
        if name not in LAYOUTS:
            raise EmitError(unknown("layout", name, LAYOUTS))
    return names


def _make_term_of_path(path: Path, layouts: tuple[str, ...], weight_position: dict[int, int]) -> Term:
    mode, components = path.mode, "ij"[: len(path.inputs)] + "k"
    # a paired mode reads copies a and b; the pair p selects them
    copies = ("a", "b", mode.out) if mode.paired else tuple(filter(None, (mode.in1, mode.in2, mode.out)))
    legs = [
        LetteredSegment(leg.operand, leg.at.index, LAYOUTS[layout].format(mul=mul, ir=ir))
        for leg, mul, ir, layout in zip(path.legs, copies, components, layouts, strict=True)
    ]
    if path.weight is not None:
        legs.insert(-1, LetteredSegment(path.weight.operand, weight_position[path.weight.start], mode.weight))
    sizes = dict(path.sizes)
    if mode.paired:
        sizes.update(a=path.in1.mul, b=path.in2.mul)
    sizes.update((ir, leg.dim) for ir, leg in zip(components, path.legs, strict=True))
    constants = [Factor(Coupling(*path.ls) if len(path.ls) == 3 else Delta(path.legs[0].dim), components)]
    if mode.paired:
        constants += [Factor(Pairs(path.in1.mul, second), "p" + copy) for second, copy in ((False, "a"), (True, "b"))]
    text = f"{' x '.join(map(str, path.inputs))} -> {path.out} ({mode.name or mode.weight})"
    return Term(path.index, text, mode, tuple(legs), tuple(constants), tuple(sizes.items()), path.coefficient)
