"""Kernels of the named problems, by family: what tests of machine code and of memory go over."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from tpgen.form.form import form_of
from tpgen.kernels.cuda.chips import chip_of
from tpgen.kernels.cuda.generate import CudaSource, generate_cuda
from tpgen.kernels.cuda.placement import place_form, place_polynomial
from tpgen.kernels.runtime.polynomials import POLYNOMIAL_CALLS, describe_polynomial, parse_polynomial_call
from tpgen.planner.plan import Plan
from tpgen.planner.problems import LINEARS, POLYNOMIALS, PROBLEMS

FORWARD, BACKWARD = ("out",), ("x1", "x2", "w")
LAYOUTS = ("mul_ir", "ir_mul")
TO_THE_LIBRARY = {"self-connection", "mace-linear", "nequip-linear"}  # which large matrices are left to
_CHANNELS = ("channelwise", "elementwise", "roofline")


@dataclass(frozen=True)
class Kernel:
    """One kernel of a product, a convolution (``indexed``) or a linear layer."""

    problem: str
    opened: tuple[str, ...]
    layout: str = "mul_ir"
    indexed: bool = False
    dtype: str = "float32"

    @property
    def plan(self) -> Plan:
        return (PROBLEMS | LINEARS)[self.problem].plan

    @property
    def family(self) -> str:
        if self.problem in LINEARS:
            return "linear"
        if PROBLEMS[self.problem].suite not in _CHANNELS:
            return "mixing"
        return "convolutions" if self.indexed else "products"

    def source(self, arch: int) -> CudaSource:
        form = form_of(self.plan, self.layout)
        return generate_cuda(place_form(form, self.dtype, self.opened, chip_of(arch), self.indexed))

    def __str__(self) -> str:
        parts = (self.problem, "+".join(self.opened), self.layout, "conv" if self.indexed else "rows", self.dtype)
        return "-".join(parts)


@dataclass(frozen=True)
class Call:
    """The kernels of one call of a polynomial."""

    problem: str
    call: str
    dtype: str = "float32"

    family = "polynomials"

    def source(self, arch: int) -> CudaSource:
        plan = POLYNOMIALS[self.problem].plan
        sweep = describe_polynomial(plan).sweep(parse_polynomial_call(plan, self.call))
        return generate_cuda(place_polynomial(plan, sweep, self.dtype, chip_of(arch)))

    def __str__(self) -> str:
        return f"{self.problem}-{self.call}-{self.dtype}"


KERNELS = [
    *(
        Kernel(name, opened, layout, indexed)
        for name, layout, opened, indexed in product(PROBLEMS, LAYOUTS, (FORWARD, BACKWARD), (False, True))
        if name not in TO_THE_LIBRARY
    ),
    *(
        Kernel(name, opened, layout)
        for name, layout, opened in product(LINEARS, LAYOUTS, (FORWARD, BACKWARD))
        if name not in TO_THE_LIBRARY
    ),
]
POLYNOMIAL_CALLS = [Call(name, call) for name, call in product(POLYNOMIALS, POLYNOMIAL_CALLS)]
# Of every family some, for `make test`; all stand in `make test-all`.
QUICK = [
    Kernel("mace-large", BACKWARD),
    Kernel("mixed-mul", BACKWARD, "ir_mul", True),
    Kernel("nequip-aspirin", FORWARD, "ir_mul"),
    Kernel("roofline-777", FORWARD, indexed=True),
    Kernel("elementwise", BACKWARD),
    Kernel("diffdock-l1", FORWARD, indexed=True),
    Kernel("tetris-1", BACKWARD, "ir_mul"),
    Kernel("article", BACKWARD),
    Kernel("mace-readout", BACKWARD),
]
QUICK_CALLS = [Call("mace-contraction", "second"), Call("turned", "backward"), Call("small-contraction", "forward")]
