"""The smallest target: a sweep run statement by statement by plain PyTorch, the definition that writers answer to.

Every value is a tensor with an axis for the rows and one for each copy letter of its path, of length one where it does
not depend on the letter.  So a product is a product of tensors, and there are no loops, lanes or scratch to get wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tpgen.form.form import Form, LetteredSegment, Term
from tpgen.form.polynomial import flatten_operand, unflatten_operand
from tpgen.kernels.arguments import Kernel, KernelCall, KernelSpec, dispatch_by_form
from tpgen.kernels.runtime.pairs import gather_operand_rows, sum_to_operand_rows
from tpgen.kernels.runtime.targets import KERNEL_TARGETS, KernelTarget
from tpgen.kernels.sweep.monomials import PolynomialSweep, values_read
from tpgen.kernels.sweep.statements import (
    Component,
    Local,
    SweepStage,
    TableEntry,
    Tabulate,
    Value,
    ValueMemory,
    evaluate_sum,
    run_statements,
)
from tpgen.kernels.sweep.sweep import Sweep, make_sweep, path_terms
from tpgen.kernels.sweep.terms import BETWEEN, INDEX, S, operand_of
from tpgen.planner.plan import Operand

# -- products ----------------------------------------------------------------------------------------------------------


def interpret(sweep: Sweep, form: Form, operands: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The open slots of a sweep for operands of rows ``(rows, dim)`` and shared ones ``(dim,)``; rows of ``x2`` count.

    >>> from tpgen.form.form import form_of
    >>> from tpgen.kernels.sweep.sweep import make_sweep, path_terms
    >>> from tpgen.planner.product import make_plan
    >>> form = form_of(make_plan("2x0e", "0e", "2x0e", [(0, 0, 0, "uvu", False)]))
    >>> sweep = make_sweep(path_terms(form), ("out",), channels=("u",))
    >>> x1, x2 = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0]])
    >>> interpret(sweep, form, {"x1": x1, "x2": x2})["out"]
    tensor([[3., 6.]], dtype=torch.float64)
    """
    given = {name: torch.atleast_2d(x).double() for name, x in operands.items()}
    rows = given["x2"].shape[0]
    results = {
        name: given["x2"].new_zeros(rows if form.operand(name).row else 1, form.operand(name).dim)
        for name in sweep.opened
    }
    tables = {s.target: s for table in sweep.tables for s in table}
    for path in sweep.paths:
        values = _Values(path.term, form, given, results, tables, rows)
        for stage in path.stages:
            values.run(stage)
    return {name: x if form.operand(name).row else x[0] for name, x in results.items()}


class _Values(dict[Value, Tensor]):
    """The values of one path, found when a statement asks for them."""

    def __init__(
        self,
        term: Term,
        form: Form,
        given: Mapping[str, Tensor],
        results: Mapping[str, Tensor],
        tables: Mapping[TableEntry, Tabulate],
        rows: int,
    ) -> None:
        self.term, self.form, self.given, self.results = term, form, given, results
        self.tables, self.rows = tables, rows
        self.letters = "".join(a for a, _ in term.copies)

    def __missing__(self, value: Value) -> Tensor:
        assert not isinstance(value, Local)
        if isinstance(value, TableEntry):
            self[value] = evaluate_sum(self.tables[value].terms, self)
        else:
            self[value] = self._component(value)
        return self[value]

    def run(self, stage: SweepStage) -> None:
        """The statements of a stage at every row, and every copy of its letters."""
        sizes = [n if a in stage.letters else 1 for a, n in self.term.copies]
        for component, value in run_statements(stage.statements, self).items():
            whole = value.expand(self.rows, *sizes)
            if component.operand in BETWEEN:
                self._keep(component, whole, self.term.inputs)
            elif component.operand == S:
                self._keep(component, whole, stage.letters[:-1])  # channels are innermost
            else:
                self._add(component, whole)

    def _component(self, c: Component) -> Tensor:
        """One component of an operand, its copies on their axes."""
        part, letters = self._part(self.given[c.operand], c)
        if (pair := self._pair(operand_of(c.operand))) is not None:
            part, letters = part[:, pair], "p"
        present = [a for a in self.letters if a in letters]
        part = part.permute(0, *(1 + letters.index(a) for a in present))
        return part.reshape(-1, *(self.term.size(a) if a in letters else 1 for a in self.letters))

    def _add(self, c: Component, value: Tensor) -> None:
        """Sum over the copies and rows that the operand does not have, and add."""
        part, letters = self._part(self.results[c.operand], c)
        pair = self._pair(c.operand)
        own = letters if pair is None else "p"
        lacking = [n for n, a in enumerate(self.letters, 1) if a not in own]
        whole = value.sum(lacking) if lacking else value
        present = [a for a in self.letters if a in own]
        whole = whole.permute(0, *(1 + present.index(a) for a in own))
        whole = whole if part.shape[0] == whole.shape[0] else whole.sum(0, keepdim=True)
        if pair is None:
            part += whole
        else:
            part.index_add_(1, pair, whole)

    def _keep(self, c: Component, value: Tensor, kept: str) -> None:
        """A value for a later stage, at every copy of some letters."""
        axes = [n for n, a in enumerate(self.letters, 1) if a not in kept]
        self[c] = value.sum(axes, keepdim=True) if axes else value

    def _part(self, tensor: Tensor, c: Component) -> tuple[Tensor, str]:
        """A component's numbers as they stand in an operand, and the letters of their axes."""
        operand = operand_of(c.operand)
        leg: LetteredSegment | None = self.term.leg(operand)
        assert leg is not None
        start, stop = self.form.operand(operand).segments[leg.segment]
        part = tensor[:, start:stop].unflatten(1, [self.term.size(a) for a in leg.letters])
        index = INDEX.get(operand, "")
        if not index:
            return part, leg.letters
        return part.select(1 + leg.letters.index(index), c.index), leg.letters.replace(index, "")

    def _pair(self, operand: str) -> Tensor | None:
        """The copies of an input that its pairs take, where the mode runs over pairs."""
        if not self.term.pairs or operand not in ("x1", "x2"):
            return None
        return torch.triu_indices(self.term.pairs, self.term.pairs, 1)[0 if operand == "x1" else 1]


# -- polynomials -------------------------------------------------------------------------------------------------------

Shape = tuple[int, int, int]  # rows (or elements), components, channels


def interpret_polynomial(
    sweep: PolynomialSweep, given: Mapping[str, Tensor], shapes: Mapping[str, Shape], index: Tensor
) -> dict[str, Tensor]:
    """The open slots of a sweep, by name, in the ``shapes`` asked for.

    ``given`` are the tensors by slot, ``[row, component, channel]``, or ``[element, component, channel]`` for
    weights, with the element of every row in ``index``.
    """
    weights = {v.operand for v in values_read(sweep.prologue) | values_read(sweep.epilogue) if isinstance(v, Component)}
    rows = {slot: x[index] if slot in weights else x for slot, x in given.items()}
    memory: ValueMemory = {Component(slot, 0, i): x[:, i] for slot, x in rows.items() for i in range(x.shape[1])}
    opened = run_statements(sweep.statements, memory)
    summed = {s.target.operand for s in sweep.epilogue}
    return {slot: _collected(slot, shape, opened, index if slot in summed else None) for slot, shape in shapes.items()}


def _collected(slot: str, shape: Shape, opened: Mapping[Component, Tensor], index: Tensor | None) -> Tensor:
    """A slot's components as one tensor; summed over the rows of an element, or over channels, where it has fewer."""
    like = next(iter(opened.values()))
    rows = shape[0] if index is None else len(index)
    parts = [torch.as_tensor(opened.get(Component(slot, 0, i), like.new_zeros(()))) for i in range(shape[1])]
    channels = max((p.shape[-1] for p in parts if p.dim()), default=shape[2])
    whole = torch.stack([p.expand(rows, channels) for p in parts], 1)
    if index is not None:
        whole = whole.new_zeros(shape[0], *whole.shape[1:]).index_add(0, index, whole)
    return whole.sum(-1, keepdim=True) if shape[2] < channels else whole


# -- as kernels --------------------------------------------------------------------------------------------------------


def interpreted(spec: KernelSpec) -> Kernel:
    """A product's sweep as it stands: rows gathered, the sweep, and rows that meet summed."""
    form = spec.description.form
    opened, raised = spec.description.computed_and_cotangent_operands(spec.call)
    sweep = make_sweep(path_terms(form), opened, raised=raised)
    names = [str(slot) for slot in spec.call.given]

    def run(call: KernelCall) -> int:
        index = {one.rule.operand: one for one in call.indices}
        gathered = {
            slot: gather_operand_rows(index[operand_of(slot)], x, call.rows) if operand_of(slot) in index else x
            for slot, x in zip(names, call.given, strict=True)
        }
        found = interpret(sweep, form, gathered)
        for name, result in zip(opened, call.opened, strict=True):
            result.copy_(sum_to_operand_rows(index[name], found[name]) if name in index else found[name])
        return 0

    return run


def interpreted_polynomial(spec: KernelSpec) -> Kernel:
    """A polynomial's sweep as it stands."""
    plan, slots, sweep = spec.description.plan, spec.call, spec.description.sweep(spec.call)

    def run(call: KernelCall) -> int:
        index = call.indices[0].tensor
        pairs = zip(slots.given, call.given, strict=True)
        tensors = {str(slot): _components(plan.operand(slot.operand), x.double()) for slot, x in pairs}
        results = [plan.operand(slot.operand) for slot in slots.opened]
        shapes = {str(slot): _shape(o, call) for slot, o in zip(slots.opened, results, strict=True)}
        if index is None:
            index = torch.arange(call.rows) if call.sizes.elements == call.rows else torch.zeros(call.rows).long()
        elif index.numel() and not 0 <= int(index.min()) <= int(index.max()) < call.sizes.elements:
            return 2
        found = interpret_polynomial(sweep, tensors, shapes, index)
        for slot, o, x in zip(slots.opened, results, call.opened, strict=True):
            value = found[str(slot)]
            x.copy_((value if o.weights else flatten_operand(o, value.transpose(1, 2))).reshape(x.shape))
        return 0

    return run


def _components(o: Operand, x: Tensor) -> Tensor:
    """A tensor as ``[row or element, component, channel]``."""
    return unflatten_operand(o, x).transpose(1, 2)


def _shape(o: Operand, call: KernelCall) -> tuple[int, int, int]:
    return call.sizes.elements if o.weights else call.rows, o.dim, call.channels if o.channels else 1


INTERPRETER = KernelTarget(
    device="cpu",
    about="plain PyTorch",
    missing=lambda _device: None,
    obstacle=lambda *_: None,
    load=dispatch_by_form(interpreted, interpreted_polynomial),
    empty=lambda shape, dtype, device: torch.empty(shape, dtype=dtype, device=device),
    remedy="",
    language="Python",
    text=lambda *_: "",
    workspace=lambda *_: 0,
)
TARGETS = {**KERNEL_TARGETS, "interpreter": INTERPRETER}
