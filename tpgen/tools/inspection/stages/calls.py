"""Requests of polynomials and of any subject."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import torch
from torch import nn
from typing_extensions import Unpack

from tpgen.base.errors import EmitError, TpgenError
from tpgen.base.locks import cached_property
from tpgen.compiler.config import DirectionOptions
from tpgen.emitter.emit import Emission
from tpgen.emitter.polynomial import emit_polynomial
from tpgen.form.call import Call
from tpgen.form.polynomial import PolynomialForm, Variable, make_scalar_form
from tpgen.form.sampling import find_operand_shape
from tpgen.kernels.rows import ELEMENTS, RowRules
from tpgen.kernels.runtime.polynomials import POLYNOMIAL_CALLS, parse_polynomial_call
from tpgen.kernels.sweep.monomials import COEFFICIENTS, PolynomialSweep, make_polynomial_sweep
from tpgen.kernels.sweep.statements import Component, Computation, Value
from tpgen.nn.modules import list_size_keywords
from tpgen.nn.planned import PlannedModule
from tpgen.planner.plan import OF_MONOMIALS, OF_PATHS, OUT, Plan
from tpgen.tools.inspection.stages.request import GRAPHS, Line, Request

Terms = frozenset[int]


def _find_terms_of_monomial(plan: Plan, factors: Sequence[Variable]) -> tuple[int, ...]:
    weights = {o.name for o in plan.weights}
    named = {f.tensor for f in factors} & weights
    if named:
        return tuple(n for n, term in enumerate(plan.terms) if term.weight in named)
    bound = Counter(f.tensor for f in factors if f.tensor != OUT)
    reached = next(f.component for f in factors if f.tensor == OUT)
    return tuple(
        n for n in _find_unweighted_terms_of_component(plan, reached) if Counter(plan.terms[n].inputs) == bound
    )


def _find_unweighted_terms_of_component(plan: Plan, component: int) -> list[int]:
    # the terms without weights that write a component of the output
    slices = plan.out.irreps.slices()
    free = [(n, term) for n, term in enumerate(plan.terms) if term.weight is None]
    return [n for n, t in free if t.i_out is None or component in range(*slices[t.i_out].indices(plan.out.dim))]


def _find_terms_of_statements(plan: Plan, statements: Sequence[Computation]) -> list[tuple[int, ...]]:
    weights = {o.name: frozenset(_find_terms_of_monomial(plan, [Variable(o.name, 0)])) for o in plan.weights}
    known: dict[Value, Terms] = {}
    found: list[Terms] = []
    for statement in statements:
        target, read = statement.target, statement.factors
        terms: Terms = frozenset().union(*(known.get(v, weights.get(_operand_name(v), frozenset())) for v in read))
        if not terms and _operand_name(target) == OUT and isinstance(target, Component):
            terms = frozenset(_find_unweighted_terms_of_component(plan, target.index))
        if _operand_name(target) in ("", COEFFICIENTS):
            known[target] = known.get(target, frozenset()) | terms
        found.append(terms)
    wanted: dict[Value, Terms] = {}
    for n in reversed(range(len(statements))):
        found[n] = found[n] or wanted.get(statements[n].target, frozenset())
        for value in statements[n].factors:
            wanted[value] = wanted.get(value, frozenset()) | found[n]
    return [tuple(sorted(terms)) for terms in found]


def _operand_name(value: Value) -> str:
    return value.operand if isinstance(value, Component) else ""


@dataclass(frozen=True)
class PolynomialRequest(Request):
    """A polynomial's call to inspect, with options."""

    channels: int = 32
    elements: int = 1  # weights are chosen row by row where there are more

    _not_asked: ClassVar[tuple[str, ...]] = ("plan", "direction", "layout", "streams")
    _said: ClassVar[str] = "of a polynomial: "
    shared: ClassVar[str] = "all terms"  # products of components are shared between them

    def list_stage_directions(self, stage_kind: str = "") -> tuple[str, ...]:
        """Calls that a kind of stage (``graphs``, ``kernels``) can show."""
        return POLYNOMIAL_CALLS[:1] if stage_kind == GRAPHS else POLYNOMIAL_CALLS

    def check_direction(self, stage: str, stage_kind: str) -> None:
        """Raise `EmitError` if a stage cannot show the call."""
        call = self.call  # or it is none
        if call != parse_polynomial_call(self.plan, "forward") and stage_kind == GRAPHS:
            self._check_stage_has_direction(stage, stage_kind)

    @cached_property
    def call(self) -> Call:
        return parse_polynomial_call(self.plan, self.direction)

    @property
    def form(self) -> PolynomialForm:
        return make_scalar_form(self.plan)

    @property
    def form_lines(self) -> list[Line]:
        """Monomials as text, with indices of terms."""
        return [(str(m), _find_terms_of_monomial(self.plan, m.factors)) for m in self.form.monomials]

    def emit_program(self, backend: str | None = None) -> Emission:
        """Emit the forward program as an fx graph."""
        strategy = replace(self, backend=backend or self.backend).choice.strategy
        return emit_polynomial(self.plan, strategy, self.elements > 1)

    @property
    def described(self) -> str:
        """Plan as JSON, for kernel calls."""
        return self.plan.to_json()

    def find_argument_shape(self, argument: str) -> tuple[int, ...] | None:
        """Shape of an argument's tensor; None for the argument ``index``."""
        if argument == "index":
            return None
        return find_operand_shape(self.plan.operand(argument), self.rows, self.channels, self.elements)

    @property
    def indexed(self) -> int:
        """Number of elements."""
        return self.elements

    @property
    def sweep_lines(self) -> list[Line]:
        """Lines of a kernel's statements, with indices of terms."""
        sweep = self.kernels.sweep(self.call)
        parts = {name: getattr(sweep, name) for name in ("prologue", "rows", "epilogue")}
        served = iter(
            _find_terms_of_statements(self.plan, [statement for part in parts.values() for statement in part])
        )
        lines: list[Line] = [(str(sweep).split("\n")[0], ())]
        for name, statements in parts.items():
            lines += [(f"{name}:", ())] if statements else []
            lines += [(f"  {statement}", next(served)) for statement in statements]
        return lines

    @property
    def _rules(self) -> RowRules:
        return (ELEMENTS,)

    @property
    def title(self) -> str:
        return f"{', '.join(f'{o.name}: {o.irreps}' for o in self.plan.inputs)} -> {self.plan.out.irreps}"

    @property
    def layouts(self) -> tuple[str, ...]:
        return tuple(o.layout for o in self.plan.operands if not o.weights)

    @property
    def schedule_names(self) -> dict[int, str]:
        """Names of kernel schedules by path."""
        return dict.fromkeys(self.plan.by_instruction, "channel")

    @property
    def module_options(self) -> dict[str, Any]:
        sizes = list_size_keywords(self.plan, self.channels, self.elements)
        return {**sizes, "strategy": self.strategy, "backend": self.backend}

    def _make_sweep(self, call: str) -> PolynomialSweep:
        return make_polynomial_sweep(
            self.form, parse_polynomial_call(self.plan, call), frozenset(o.name for o in self.plan.weights)
        )

    @property
    def flops(self) -> int:
        sweep = self._make_sweep("forward")
        return self.channels * (self.rows * sweep.operations + self.elements * sweep.once)

    def count_bytes(self, nodes: int | None = None) -> int:
        """Bytes of all operands and result."""
        shapes = [find_operand_shape(o, self.rows, self.channels, self.elements) for o in self.plan.operands]
        return self.dtype.itemsize * sum(map(prod, shapes))

    @property
    def explanation_fields(self) -> dict[str, Any]:
        """Sizes and counts for an `Explanation`."""
        weights = {o.name for o in self.plan.weights}
        sweeps = {name: self._make_sweep(name) for name in POLYNOMIAL_CALLS[:2]}
        return {
            "channels": self.channels,
            "elements": self.elements,
            "monomials": len({tuple(f for f in m.factors if f.tensor not in weights) for m in self.form.monomials}),
            "coefficients": sweeps["forward"].coefficients,
            "operations": {name: sweep.operations for name, sweep in sweeps.items()},
        }


REQUESTS: dict[str, type[Request]] = {OF_PATHS: Request, OF_MONOMIALS: PolynomialRequest}


def make_request(plan: Plan, direction: str = "forward", **options: Any) -> Request:
    """Make the request that inspects a direction of a plan."""
    kind = REQUESTS[plan.maker.form]
    kind.check_option_names(options)
    made = kind(plan, direction, **options)
    if made.elements != 1 and not plan.by_element:
        raise EmitError("elements: no index chooses weights of this plan; leave it out")
    return made


Inspected = nn.Module | Plan


def _plan_of_subject(subject: Any) -> Plan | None:
    found = subject if isinstance(subject, Plan) else getattr(subject, "plan", None)
    return found if isinstance(found, Plan) else None


def resolve_request(subject: Inspected, **options: Unpack[DirectionOptions]) -> Request:
    """Make the request that inspects a module or plan, with strategy ``auto`` resolved.

    >>> from tpgen.planner.presets import channelwise
    >>> resolve_request(channelwise("8x1o", "1o", "0e"), strategy="einsum").strategy
    'einsum'
    """
    _check_dtype_and_device(options)
    plan = _plan_of_subject(subject)
    if plan is None:
        raise _subject_error("give a tpgen TensorProduct, a Linear, a polynomial, or the plan of one", subject)
    own = subject.inspection_options() if isinstance(subject, PlannedModule) else {}
    request = make_request(plan, **{**own, **options})
    return replace(request, strategy=request.choice.strategy)


def _subject_error(rule: str, subject: object) -> TpgenError:
    return TpgenError(f"{rule}, not {type(subject).__name__}; {_suggest_inspectable_subject(subject)}")


_SHOWN = 4  # products of a network that an error names


def _check_dtype_and_device(options: Mapping[str, object]) -> None:
    if not isinstance(options.get("dtype", torch.float32), torch.dtype):
        raise TpgenError(f"dtype is a torch.dtype like torch.float32, got {options['dtype']!r}")
    try:
        torch.empty(0, device=options.get("device", "cpu"))  # type: ignore[call-overload]
    except (RuntimeError, AssertionError, TypeError) as error:
        raise TpgenError(f"device {options['device']!r} cannot be used here: {str(error).splitlines()[0]}") from None


def _suggest_inspectable_subject(subject: object) -> str:
    if isinstance(subject, str):
        return f"a named product is tpgen.planner.problems.find_problem({subject!r}).plan"
    modules = subject.named_modules() if isinstance(subject, nn.Module) else ()
    held = [path for path, module in modules if path and _plan_of_subject(module)]
    if held:
        more = ", …" if len(held) > _SHOWN else ""
        return (
            f"it holds {len(held)} product{'s' * (len(held) > 1)} ({', '.join(held[:_SHOWN])}{more}): give one, as in "
            f"network.get_submodule({held[0]!r}); explain_network of tpgen.tools.inspection explains all"
        )
    return "tpgen.convert makes products of e3nn's"
