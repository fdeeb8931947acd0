"""Are the kernels of this machine's GPU right: the checks of `make gpu`; `gpu_device_checks` has those of CUDA itself.

Each is a generator of findings: what was checked, whether it holds, and a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import cycle
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu_build import FIRST, TWICE, Wanted, wanted_of
from benchmarks.gpu_times import BACKWARD, convolution, product_of_edges, product_of_rows
from tpgen.base.errors import TpgenError
from tpgen.emitter.polynomial import emit_polynomial
from tpgen.form.reference import reference_product
from tpgen.form.sampling import find_operand_shape, random_operands
from tpgen.kernels.runtime.ops import describe, kernel_polynomial
from tpgen.kernels.runtime.polynomials import forward_call
from tpgen.nn.linear import Linear
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.plan import OUT, Plan
from tpgen.planner.presets import channelwise
from tpgen.planner.problems import POLYNOMIALS, PROBLEMS, Problem
from tpgen.planner.product import make_plan

Finding = tuple[str, bool, str]
Layout = Literal["mul_ir", "ir_mul"]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}
# Copies of both inputs and the output.
MODES = {
    "uvu": (40, 2, 40), "uvv": (3, 40, 40), "uuu": (40, 40, 40), "uvuv": (40, 2, 80),
    "uvw": (12, 3, 9), "uuw": (12, 12, 9), "u<vw": (6, 6, 9), "uvu<v": (6, 6, 15),
}  # fmt: skip
ONLY_WEIGHTED = ("uvw", "uuw", "u<vw")
REPETITIONS = 100
CROWDED = channelwise("40x0e+40x1o", "0e+1o", "0e+1o", shared_weights=True)  # around nodes of very many edges
polynomial_of_rows: Callable[..., Tensor] = kernel_polynomial


def plans() -> Iterator[tuple[str, Plan]]:
    """Every mode, weighted or not, with weights of each row or shared."""
    for mode, (a, b, c) in MODES.items():
        for weighted, shared in ((True, True), (True, False), (False, True)):
            if weighted or mode not in ONLY_WEIGHTED:
                paths = [(0, 0, 0, mode, weighted), (1, 0, 1, mode, weighted), (1, 1, 2, mode, weighted)]
                irreps = (f"{a}x0e+{a}x1o", f"{b}x1o+{b}x2e", f"{c}x1o+{c}x1e+{c}x3o")
                kind = ("shared" if shared else "rows") if weighted else "no weights"
                yield f"{mode}, {kind}", make_plan(*irreps, paths, shared_weights=shared)


class Case(NamedTuple):
    """A product to check."""

    name: str
    plan: Plan
    layout: Layout
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.name}, {self.layout}, {str(self.dtype).removeprefix('torch.')}"

    @property
    def twice(self) -> bool:
        """Whether gradients of gradients are checked: bfloat16 rounds too much for them."""
        return self.dtype != torch.bfloat16


def products() -> Iterator[Case]:
    """Every mode in every dtype; layouts take turns."""
    layouts: Iterator[Layout] = cycle(("mul_ir", "ir_mul", "ir_mul", "mul_ir"))
    for name, plan in plans():
        for dtype in TOLERANCE:
            yield Case(name, plan, next(layouts), dtype)


def products_of_edges() -> Iterator[Case]:
    """Every mode; dtypes and layouts take turns, so that each mode has several."""
    layouts: Iterator[Layout] = cycle(("mul_ir", "ir_mul", "mul_ir", "ir_mul", "ir_mul"))
    dtypes = cycle((torch.float64, torch.float32, torch.bfloat16, torch.float32))
    for name, plan in plans():
        yield Case(name, plan, next(layouts), next(dtypes))


def kernels_to_build() -> Iterator[Wanted]:
    """The kernels that these checks call, which take longest to compile."""
    for cases, indexed in ((products_of_edges(), True), (products(), False)):
        for case in cases:
            yield from wanted_of(case.plan, case.layout, case.dtype, TWICE if case.twice else FIRST, indexed)
    yield from wanted_of(CROWDED, "mul_ir", torch.float64, TWICE, True)


def values(device: str) -> Iterator[Finding]:
    """Forward, gradients and second-order gradients of every mode against float64 on the CPU."""
    for case in products():
        yield finding(str(case), partial(compared, case.plan, case.layout, case.dtype, device), TOLERANCE[case.dtype])


def finding(what: str, pairs_of: Callable[[], Iterable[tuple[Tensor, Tensor]]], tolerance: float) -> Finding:
    """One case; what goes wrong in it is its own failure, and the others go on."""
    try:
        error = max(relative(*pair) for pair in pairs_of())
    except Exception as fault:
        return what, False, f"{type(fault).__name__}: {fault}"
    return what, error < tolerance, f"{error:.1e} of {tolerance:.0e}"


def compared(plan: Plan, layout: str, dtype: torch.dtype, device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Results of a kernel and of the slow definition, of the same numbers."""
    options: dict[str, Any] = {"layout": layout}
    given = [x.to(dtype) for x in random_operands(plan, 37, (*BACKWARD, "out")).values()]
    here = derivatives(TensorProduct.from_plan(plan, strategy="kernel", **options), given, device, dtype)
    there = derivatives(TensorProduct.from_plan(plan, strategy="einsum", **options), given, "cpu", torch.float64)
    return zip(here, there[: len(here)], strict=True)  # bfloat16 has no second order


def derivatives(product: TensorProduct, given: list[Tensor], device: str, dtype: torch.dtype) -> list[Tensor]:
    """The product, its gradients, and those of a sum of their squares; not these in bfloat16, which rounds too much."""
    product = product.to(device=device, dtype=dtype)
    x1, x2, w, g = (x.to(device=device, dtype=dtype) for x in given)
    inputs = [x.requires_grad_() for x in (x1, x2, w) if x.numel()]
    out = product(x1, x2, w) if w.numel() else product(x1, x2)
    first = torch.autograd.grad(out, inputs, g, create_graph=True)
    return [out, *first, *(second_order(first, inputs) if dtype != torch.bfloat16 else [])]


def second_order(first: Sequence[Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Gradients of the sum of squares of gradients."""
    squares = torch.stack([x.square().sum() for x in first]).sum()
    return [x for x in torch.autograd.grad(squares, inputs, allow_unused=True) if x is not None]


def polynomials(device: str) -> Iterator[Finding]:
    """Every named polynomial with its gradients, and linear layers, against float64 on the CPU."""
    for problem in POLYNOMIALS.values():
        for dtype in (torch.float64, torch.float32):
            what = f"{problem.name}, {str(dtype).removeprefix('torch.')}"
            yield finding(what, partial(polynomials_compared, problem, dtype, device), 10 * TOLERANCE[dtype])
    plan = make_linear_plan("12x0e+7x1o", "9x0e+33x1o")
    for layout in ("mul_ir", "ir_mul"):
        both = partial(layers_compared, plan, layout, device)
        yield finding(f"a linear layer, {layout}", both, TOLERANCE[torch.float64])


def polynomials_compared(problem: Problem, dtype: torch.dtype, device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Results of a kernel, and of matrix products in float64, which need no kernels and no compiler."""
    plan = problem.plan
    given = [x.to(dtype).double() for x in random_polynomial_operands(plan, 50, problem.channels, problem.elements)]
    index = torch.arange(50) % problem.elements if problem.elements > 1 else None
    graph = emit_polynomial(plan, "einsum", index is not None).module().to(dtype=torch.float64)
    slow = of_polynomial(lambda inputs, rows: graph(*inputs, *([] if rows is None else [rows])), given, index)
    call = plan.to_json(), str(forward_call(plan))
    there = [x.to(device, dtype) for x in given], None if index is None else index.to(device)
    return zip(of_polynomial(lambda inputs, rows: polynomial_of_rows(inputs, rows, *call), *there), slow, strict=True)


def layers_compared(plan: Plan, layout: str, device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Results of a layer by a kernel, and by matrix products on the CPU."""
    return zip(of_linear(plan, layout, device, "kernel"), of_linear(plan, layout, "cpu", "einsum"), strict=True)


def of_polynomial(
    compute: Callable[[list[Tensor], Tensor | None], Tensor], given: list[Tensor], index: Tensor | None
) -> list[Tensor]:
    """A polynomial, its gradients, and those of a sum of their squares."""
    inputs = [x.detach().requires_grad_() for x in given]
    out = compute(inputs, index)
    first = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
    return [out, *first, *torch.autograd.grad(torch.stack([x.square().sum() for x in first]).sum(), inputs)]


def of_linear(plan: Plan, layout: str, device: str, strategy: str) -> list[Tensor]:
    """A layer and its gradients."""
    layer = Linear.from_plan(plan, False, strategy=strategy, layout=layout).to(device, torch.float64)
    torch.manual_seed(0)
    shapes = (60, plan.irreps_in.dim), (plan.weight_numel,)
    inputs = [torch.randn(shape, dtype=torch.float64).to(device).requires_grad_() for shape in shapes]
    out = layer(*inputs)
    return [out, *torch.autograd.grad(out.square().sum(), inputs)]


def relative(found: Tensor, wanted: Tensor) -> float:
    want = wanted.detach().double()
    return float((found.detach().cpu().double() - want).abs().max() / want.abs().max().clamp_min(1e-300))


def edges(device: str) -> Iterator[Finding]:
    """Convolutions and their gradients of both orders against float64 on the CPU, and an index out of range."""
    for case in products_of_edges():
        given, graph = convolution(case.plan, 400, device, case.dtype, case.layout)
        run = partial(convolutions, case.plan, given, graph, case.layout, case.twice)
        yield finding(f"convolution, {case}", run, TOLERANCE[case.dtype])
    yield finding("convolution, a node of very many edges, int32", partial(crowded, device), TOLERANCE[torch.float64])
    plan = channelwise("40x0e+40x1o", "0e+1o+2e", "0e+1o+2e", shared_weights=False)
    given, graph = convolution(plan, 40, device)
    yield refused(given, graph)
    yield agrees("and the device goes on working", lambda: product_of_edges(*given, **graph).isfinite().all())


def crowded(device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Half of all edges lead to one node, half come from another; indices are int32, and weights shared by all."""
    given, graph = convolution(CROWDED, 6000, device, torch.float64)
    graph["edge_dst"][::2], graph["edge_src"][1::2] = 0, 7
    ends = {name: graph[name].int() for name in ("edge_src", "edge_dst")}
    return convolutions(CROWDED, given, graph | ends)


def refused(given: list[Tensor], graph: dict[str, Any]) -> Finding:
    """An index out of range is an error that says its value, before anything is launched."""
    what, out = "an index out of range is refused", graph["num_nodes"]
    try:
        product_of_edges(*given, **graph | {"edge_dst": graph["edge_dst"].clone().fill_(out)})
    except TpgenError as error:
        return what, f"got {out} to {out}" in str(error), str(error)
    except Exception as fault:
        return what, False, f"{type(fault).__name__}: {fault}"
    return what, False, "no error"


def agrees(what: str, holds: Callable[[], Any], note: str = "") -> Finding:
    """Whether something holds; what goes wrong in it is its own failure."""
    try:
        return what, bool(holds()), note
    except Exception as fault:
        return what, False, f"{type(fault).__name__}: {fault}"


def convolutions(
    plan: Plan, given: list[Tensor], graph: dict[str, Any], layout: Layout = "mul_ir", twice: bool = True
) -> Iterator[tuple[Tensor, Tensor]]:
    """Results of a kernel, and of the definition, of the same numbers."""
    far = graph | {key: graph[key].cpu() for key in ("edge_src", "edge_dst")}
    slow = convolved([x.to("cpu", torch.float64) for x in given], far, partial(defined, plan, layout), twice)
    return zip(convolved(given, graph, twice=twice), slow, strict=True)


def defined(plan: Plan, layout: Layout, x1: Tensor, x2: Tensor, w: Tensor, **graph: Any) -> Tensor:
    """A convolution by its definition, which needs no kernels and no compiler."""
    found = reference_product(plan, x1[graph["edge_src"]], x2, w, layout=layout)
    return found.new_zeros(graph["num_nodes"], found.shape[1]).index_add(0, graph["edge_dst"], found)


def convolved(
    given: list[Tensor], graph: dict[str, Any], compute: Callable[..., Tensor] = product_of_edges, twice: bool = False
) -> list[Tensor]:
    """A convolution and its gradients, and those of these."""
    x1, x2, w = (x.detach().requires_grad_(x.numel() > 0) for x in given)
    inputs = [x for x in (x1, x2, w) if x.numel()]
    out = compute(x1, x2, w, **graph)
    g = _cosines(out.numel(), out.dtype, out.device).view_as(out)
    first = torch.autograd.grad(out, inputs, g, create_graph=twice)
    return [out, *first, *(second_order(first, inputs) if twice else [])]


@cache
def _cosines(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    # made on the CPU, as a device's cosine is another; kept, as a CUDA graph cannot record the copy
    return torch.arange(count, dtype=torch.float64).cos().to(device, dtype)


def repetitions(device: str) -> Iterator[Finding]:
    """The same bits every time, where threads may race."""
    plan = channelwise("96x0e+48x1o+16x2e", "0e+1o+2e", "0e+1o+2e", shared_weights=True)
    given, graph = convolution(plan, 2000, device)
    first = convolved(given, graph)
    again = (convolved(given, graph) for _ in range(REPETITIONS))
    yield agrees(
        f"{REPETITIONS} repetitions of a convolution give the same bits",
        lambda: all(torch.equal(a, b) for found in again for a, b in zip(first, found, strict=True)),
    )
    mixing = PROBLEMS["article"].plan
    rows = list(random_operands(mixing, 500, (*BACKWARD, "out"), device=device, dtype=torch.float32).values())
    one = mixed(mixing, rows)
    yield agrees(
        f"{REPETITIONS} repetitions of a product that mixes copies give the same bits",
        lambda: all(
            torch.equal(a, b) for _ in range(REPETITIONS) for a, b in zip(one, mixed(mixing, rows), strict=True)
        ),
    )


def mixed(plan: Plan, given: list[Tensor]) -> list[Tensor]:
    """A product and its gradients."""
    inputs = [x.detach().requires_grad_() for x in given[:3]]
    out = product_of_rows(*inputs, description=describe(plan))
    return [out, *torch.autograd.grad(out, inputs, given[3])]


CHECKS: dict[str, Callable[[str], Iterator[Finding]]] = {
    "edges": edges,
    "polynomials": polynomials,
    "repetitions": repetitions,
    "values": values,  # the longest by far
}


def random_polynomial_operands(plan: Plan, rows: int, channels: int, elements: int = 1) -> list[Tensor]:
    """Inputs and weights in the order of the plan, in float64."""
    shapes = [find_operand_shape(o, rows, channels, elements) for o in plan.operands if o.name != OUT]
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]
