"""Explain a polynomial: what each path couples and costs, how it is written, what the machine allows.

>>> from tpgen.inspection.costs.roofline import Ceilings
>>> from tpgen.planner.polynomial_problems import POLYNOMIALS
>>> found = explain_polynomial(
...     POLYNOMIALS["small-contraction"].plan, strategy="einsum", channels=8, ceilings=Ceilings(1e10, 1e11))
>>> found.paths[0].term, found.paths[0].output, found.bound
('x x x', '1x0e', 'memory')
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any, TypedDict

import torch

from tpgen.compiler.autotune import choose_polynomial_strategy
from tpgen.emitter.polynomial import emit_polynomial
from tpgen.errors import TpgenError
from tpgen.form.polynomial import form_of
from tpgen.form.sampling import polynomial_shape, random_polynomial_operands
from tpgen.inspection.costs.gpu import OnGpu, polynomial_on
from tpgen.inspection.costs.measured import both_seconds
from tpgen.inspection.costs.roofline import Ceilings, UnderCeilings, machine_ceilings
from tpgen.inspection.costs.roofline_picture import roofline
from tpgen.kernels.polynomial.load import Sizes
from tpgen.kernels.polynomial.runtime import named_call
from tpgen.kernels.polynomial.sweep import PolynomialSweep, make_sweep
from tpgen.nn.polynomial_module import PolynomialModule
from tpgen.notebook import Shown, preformatted
from tpgen.planner.polynomial_plan import OUT, PolynomialPlan
from tpgen.text import duration, quantity, table

ROWS, CHANNELS = 1000, 32  # unless given
_SECONDS = 0.25  # for each measured time


@dataclass(frozen=True)
class PolynomialPathExplanation:
    """One path of one term: the tensors that meet, the output they reach, and the constant between them."""

    term: str
    output: str
    path: int
    weight: str  # where its weight stands; empty: it has none
    constant: str
    entries: int
    monomials: int  # products of components, each once
    dense: int

    @property
    def density(self) -> float:
        """Share of the constant's entries that are not zero."""
        return self.entries / self.dense


@dataclass(frozen=True)
class PolynomialExplanation(Shown, UnderCeilings):
    """A polynomial, explained; times are for the whole batch and in seconds."""

    polynomial: str
    digest: str
    rows: int
    channels: int
    elements: int
    dtype: str
    device: str
    strategy: str
    reason: str
    paths: tuple[PolynomialPathExplanation, ...]
    monomials: int  # of the form: pairs of a product of components and an output
    coefficients: int  # different numbers among what multiplies them
    operations: dict[str, int]  # of a row and channel, for each call
    flops: int  # of the batch, forward
    bytes: int  # of the batch: each operand once
    ceilings: Ceilings | None
    forward_seconds: float | None = None  # measured
    backward_seconds: float | None = None  # measured, forward and backward
    on_gpu: OnGpu | None = None

    def to_json(self) -> str:
        """Everything that is known, as JSON; what was not measured is null."""
        return json.dumps({**asdict(self), **self.derived}, indent=1)

    def _repr_html_(self) -> str:
        return preformatted(str(self)) + roofline(self, ())

    def __str__(self) -> str:
        weights = "shared weights" if self.elements == 1 else f"{self.elements} elements"
        head = [
            f"{self.polynomial}   (plan {self.digest}, {len(self.paths)} paths)",
            f"{self.rows:,} rows of {self.channels} channels, {weights}, {self.dtype}, {self.device}",
            f"strategy {self.strategy}: {self.reason}",
        ]
        rows = [list(_COLUMNS), *([cell(path) for cell in _COLUMNS.values()] for path in self.paths)]
        facts = polynomial_facts(self)
        width = max(map(len, facts))
        ends = [f"{name:{width}}  {text}" for name, text in facts.items()]
        return "\n".join([*head, "", table(rows, left=range(4)), "", *ends])


_COLUMNS: dict[str, Callable[[PolynomialPathExplanation], str]] = {
    "term": lambda p: p.term,
    "out": lambda p: p.output,
    "weight": lambda p: p.weight or "-",
    "constant": lambda p: p.constant,
    "entries": lambda p: f"{p.entries}/{p.dense} {100 * p.density:.1f} %",
    "monomials": lambda p: str(p.monomials),
}


def polynomial_facts(found: PolynomialExplanation) -> dict[str, str]:
    """What is said of the polynomial as a whole, by name."""
    operations = ", ".join(f"{n:,} {name}" for name, n in found.operations.items())
    facts = {
        "monomials": f"{found.monomials} with {found.coefficients} different coefficients",
        "operations": f"{operations}, of a row and channel in the sweep",
        "for the batch": f"{quantity(found.flops, 'FLOP')}, {quantity(found.bytes, 'B')} with each operand once: "
        f"{found.intensity:.2f} FLOP/B",
        "ceilings": str(found.ceilings) if found.ceilings else "none",
    }
    if found.ceilings:
        facts["predicted"] = f"{duration(found.predicted_seconds)} forward at least: bound by {found.bound}"
    if found.on_gpu:
        facts[f"on {found.on_gpu.gpu}"] = found.on_gpu.least(found.flops, found.bytes)
    measured = f"{duration(found.forward_seconds)} forward, {duration(found.backward_seconds)} forward+backward"
    unmeasured = "nothing; measure=True (--measure) runs it"
    facts["measured"] = unmeasured if found.forward_seconds is None else measured
    if found.ceilings and found.ceilings.warning:
        facts["warning"] = found.ceilings.warning
    return facts


class PolynomialExplainOptions(TypedDict, total=False):
    """The keywords of `explain_polynomial`."""

    rows: int
    channels: int | None
    elements: int | None
    measure: bool
    ceilings: Ceilings | None
    gpu: str | None
    strategy: str | None
    dtype: torch.dtype | None
    device: str | None


def explain_polynomial(
    subject: PolynomialModule | PolynomialPlan,
    *,
    rows: int = ROWS,
    channels: int | None = None,
    elements: int | None = None,
    measure: bool = False,
    ceilings: Ceilings | None = None,
    gpu: str | None = None,
    strategy: str | None = None,
    dtype: torch.dtype | None = None,
    device: str | None = None,
) -> PolynomialExplanation:
    """Explain a module or a plan of a polynomial, for a batch of ``rows``.

    A module brings its channels, elements, strategy, dtype and device; of a plan they are 32, 1, ``auto``, float32 and
    the CPU unless given.  Operations are those of the kernels' sweep, whatever the strategy.  ``measure`` runs the
    forward and the backward pass; ``gpu`` names one (A100, H200, ...) to predict what its kernels should take.
    Raises `TpgenError` for a batch without rows, channels or elements.
    """
    given = {"channels": channels, "elements": elements, "strategy": strategy, "dtype": dtype, "device": device}
    own = {**_brought(subject), **{name: value for name, value in given.items() if value is not None}}
    for name, count in (("rows", rows), ("channels", own["channels"]), ("elements", own["elements"])):
        if count < 1:
            raise TpgenError(f"{name}: a batch has one or more, got {count}")
    plan = subject if isinstance(subject, PolynomialPlan) else subject.plan
    choice = choose_polynomial_strategy(plan, own["strategy"], own["dtype"], own["device"])
    reason = subject.choice.reason if isinstance(subject, PolynomialModule) and strategy is None else choice.reason
    sweeps = {name: _sweep(plan, name) for name in ("forward", "backward")}
    found = PolynomialExplanation(
        polynomial=f"{', '.join(f'{o.name}: {o.irreps}' for o in plan.inputs)} -> {plan.out.irreps}",
        digest=plan.digest,
        rows=rows,
        channels=own["channels"],
        elements=own["elements"],
        dtype=str(own["dtype"]).removeprefix("torch."),
        device=str(own["device"]),
        strategy=choice.strategy,
        reason=reason,
        paths=tuple(_paths(plan)),
        monomials=_monomials(plan),
        coefficients=sweeps["forward"].coefficients,
        operations={name: sweep.operations for name, sweep in sweeps.items()},
        flops=own["channels"] * (rows * sweeps["forward"].operations + own["elements"] * sweeps["forward"].once),
        bytes=_numbers(plan, rows, own["channels"], own["elements"]) * own["dtype"].itemsize,
        ceilings=ceilings or machine_ceilings(own["dtype"], str(own["device"])),
        on_gpu=polynomial_on(gpu, plan, Sizes(rows, own["elements"], own["channels"]), own["dtype"]) if gpu else None,
    )
    return _measured(found, plan, own["dtype"], ceilings) if measure else found


def _brought(subject: PolynomialModule | PolynomialPlan) -> dict[str, Any]:
    if isinstance(subject, PolynomialPlan):
        return {"channels": CHANNELS, "elements": 1, "strategy": "auto", "dtype": torch.float32, "device": "cpu"}
    like = subject._like
    return {
        "channels": subject.channels,
        "elements": subject.num_elements or 1,
        "strategy": subject.choice.strategy,
        "dtype": like.dtype,
        "device": str(like.device),
    }


def _sweep(plan: PolynomialPlan, call: str) -> PolynomialSweep:
    return make_sweep(form_of(plan), named_call(plan, call), frozenset(o.name for o in plan.weights))


def _paths(plan: PolynomialPlan) -> list[PolynomialPathExplanation]:
    return [
        PolynomialPathExplanation(
            term=" ".join(term.inputs),
            output=OUT if term.i_out is None else str(plan.out.irreps[term.i_out]),
            path=p,
            weight=f"{term.weight}[{p}]" if term.weight else "",
            constant="table" if term.table is not None else f"{term.basis} couplings",
            entries=len(path),
            monomials=len({key[1:] for key in path}),
            dense=_reached(plan, term.i_out) * prod(plan.operand(name).dim for name in term.inputs),
        )
        for term, paths in zip(plan.terms, plan.paths, strict=True)
        for p, path in enumerate(paths)
    ]


def _reached(plan: PolynomialPlan, i_out: int | None) -> int:
    """Components of the output that a term reaches."""
    return plan.out.dim if i_out is None else plan.out.irreps[i_out].dim


def _monomials(plan: PolynomialPlan) -> int:
    """Pairs of a product of components and an output, each once, whatever weights go with it."""
    weights = {o.name for o in plan.weights}
    return len({tuple(f for f in m.factors if f.tensor not in weights) for m in form_of(plan).monomials})


def _numbers(plan: PolynomialPlan, rows: int, channels: int, elements: int) -> int:
    """Numbers of all operands and the result, and the element of every row."""
    shapes = [polynomial_shape(o, rows, channels, elements) for o in plan.operands]
    return sum(map(prod, shapes))


def _measured(
    found: PolynomialExplanation, plan: PolynomialPlan, dtype: torch.dtype, given: Ceilings | None
) -> PolynomialExplanation:
    generator = torch.Generator().manual_seed(0)
    operands = random_polynomial_operands(
        plan, found.rows, found.channels, found.elements, generator=generator, dtype=dtype, device=found.device
    )
    indexed = found.elements > 1
    drawn = torch.randint(found.elements, (found.rows,), generator=generator).to(found.device)
    index = [drawn] if indexed else []
    program = emit_polynomial(plan, found.strategy, indexed).module().to(device=found.device, dtype=dtype)
    seconds, ceilings = both_seconds(lambda: program(*operands, *index), operands, dtype, found.device, _SECONDS)
    return replace(
        found,
        forward_seconds=seconds["forward"],
        backward_seconds=seconds["backward"],
        ceilings=given or ceilings,
    )
