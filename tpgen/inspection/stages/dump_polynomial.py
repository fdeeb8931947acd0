"""The text of every stage of a polynomial, as `tpgen.inspection.stages.dump` writes those of products.

>>> from tpgen.planner.polynomial_problems import POLYNOMIALS
>>> plan = POLYNOMIALS["harmonics"].plan
>>> print(dump_polynomial(plan, ["sweep"])["sweep.forward.txt"].splitlines()[0])
x one -> out: 60 operations a row
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

import torch

from tpgen.compiler.autotune import choose_polynomial_strategy
from tpgen.emitter.emit import Emission
from tpgen.emitter.polynomial import emit_polynomial
from tpgen.errors import EmitError, unknown
from tpgen.form.polynomial import form_of
from tpgen.inspection.stages.cuda import ptx_of, sass_of, shown_chip
from tpgen.kernels.cuda.polynomials.generate import CudaPolynomialSource, generate_polynomial
from tpgen.kernels.libraries.compiler import DTYPES
from tpgen.kernels.polynomial.call import Call
from tpgen.kernels.polynomial.runtime import CALLS, PolynomialKernels, kernels_of, named_call
from tpgen.planner.polynomial_plan import PolynomialPlan


@dataclass(frozen=True)
class PolynomialRequest:
    """One call of a polynomial, and how it is to be written."""

    plan: PolynomialPlan
    call: str = "forward"
    strategy: str = "auto"
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    elements: int = 1  # weights are chosen row by row where there are more

    @property
    def calls(self) -> Call:
        return named_call(self.plan, self.call)

    @property
    def kernels(self) -> PolynomialKernels:
        return kernels_of(self.plan.to_json())

    def emission(self) -> Emission:
        strategy = choose_polynomial_strategy(self.plan, self.strategy, self.dtype, self.device).strategy
        return emit_polynomial(self.plan, strategy, self.elements > 1)

    def cuda(self) -> CudaPolynomialSource:
        """The CUDA kernels of the call, for this machine's GPU or a named one."""
        return generate_polynomial(self.plan, self.kernels.sweep(self.calls), DTYPES[self.dtype], shown_chip())

    def said(self, text: str) -> str:
        """A graph without the polynomial's JSON, which a kernel is called with: its digest stands there."""
        written = self.plan.to_json()
        short = text.replace(repr(written), f"<{self.plan.digest}>").replace(written, f"<{self.plan.digest}>")
        return text if short == text else f"# this strategy is one kernel: see the stage cpp\n{short}"


@dataclass(frozen=True)
class PolynomialStage:
    """How a stage is written as text, what a file of it is called, and whether it differs from call to call."""

    write: Callable[[PolynomialRequest], str]
    suffix: str
    about: str
    by_call: bool = False


POLYNOMIAL_STAGES: dict[str, PolynomialStage] = {
    "plan": PolynomialStage(lambda r: str(r.plan), "txt", "what is computed: tensors, terms, paths"),
    "form": PolynomialStage(lambda r: str(form_of(r.plan)), "txt", "the scalar form: its monomials"),
    "graph": PolynomialStage(lambda r: r.said(str(r.emission())), "txt", "the fx graph: each node and its role"),
    "code": PolynomialStage(lambda r: r.said(r.emission().code.strip()), "py", "the fx graph as Python source"),
    "sweep": PolynomialStage(
        lambda r: str(r.kernels.sweep(r.calls)), "txt", "the statements of one row and one channel", True
    ),
    "placement": PolynomialStage(
        lambda r: str(r.kernels.placement(r.calls, r.dtype)), "txt", "where a kernel computes that", True
    ),
    "cpp": PolynomialStage(lambda r: r.kernels.source(r.calls, r.dtype).text, "cpp", "the generated C++ kernel", True),
    "cuda": PolynomialStage(lambda r: r.cuda().text, "cu", "the generated CUDA C++ kernels; needs no GPU", True),
    "ptx": PolynomialStage(lambda r: ptx_of(r.cuda()), "ptx", "the virtual instructions that NVRTC makes of it", True),
    "sass": PolynomialStage(lambda r: sass_of(r.cuda()), "sass", "the GPU's own instructions, by nvdisasm", True),
}


def dump_polynomial(
    plan: PolynomialPlan, stages: Iterable[str], calls: Iterable[str] = ("forward",), **options: object
) -> dict[str, str]:
    """Texts of several stages and calls, by file name; ``options`` are the other fields of `PolynomialRequest`.

    Calls are ``forward``, ``backward``, ``second``, ``"all"`` of these, or any in full.  A stage that is the same
    for all calls comes once.  Raises `EmitError` for an unknown stage or option, `PlanError` for what is no call.
    """
    for name in options:
        if name not in _OPTIONS:
            raise EmitError(f"of a polynomial: {unknown('option', name, _OPTIONS)}")
    chosen = [(name, find_polynomial_stage(name)) for name in stages]
    asked = list(dict.fromkeys(name for call in calls for name in (CALLS if call == "all" else (call,))))
    files = {}
    for name, stage in chosen:
        for call in asked if stage.by_call else asked[:1]:
            file = f"{name}.{_named(call)}.{stage.suffix}" if stage.by_call else f"{name}.{stage.suffix}"
            files[file] = stage.write(PolynomialRequest(plan, call, **options))  # type: ignore[arg-type]
    return files


_OPTIONS = tuple(field.name for field in fields(PolynomialRequest) if field.name not in ("plan", "call"))


def _named(call: str) -> str:
    """A call as part of a file's name."""
    return call.replace("->", "to").replace(" ", "_")


def find_polynomial_stage(name: str) -> PolynomialStage:
    """The stage of that name, or an `EmitError` that lists the known ones."""
    if name not in POLYNOMIAL_STAGES:
        raise EmitError(f"of a polynomial: {unknown('stage', name, POLYNOMIAL_STAGES)}")
    return POLYNOMIAL_STAGES[name]
