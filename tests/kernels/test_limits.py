"""Every number that decides which code is written, or which way a call takes, is met from both sides.

`LIMITS` patches such numbers to values around what a small product, layer or polynomial has, so that small kernels take
each way; `BESIDE` says why the others are not here.  A number that is in neither fails a test.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tpgen
from tests.attacks.test_products import assert_alike, derivatives
from tests.kernels.plans import multiplicities
from tests.kernels.test_products import errors, on_threads
from tests.polynomials import operands_of, slow
from tpgen.base.errors import PlanError
from tpgen.form.call import MAX_LEVELS, Call
from tpgen.form.form import form_of
from tpgen.form.reference import reference_product
from tpgen.form.sampling import random_operands
from tpgen.kernels.runtime.description import description_of_plan
from tpgen.kernels.sweep.terms import path_terms
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.plan import OF_MONOMIALS, Plan
from tpgen.planner.presets import fully_connected
from tpgen.planner.product import make_plan

ROOT = Path(tpgen.__file__).parent
MASKS = (8, 2, 7, 15, 1, 4)  # forwards, each gradient alone, all of them, and with the value


@pytest.fixture
def patched(unoptimised: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Set numbers by module and name; nothing is remembered."""

    def patch(values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            module, _, own = name.rpartition(".")
            before = getattr(import_module(f"tpgen.{module}"), own)
            for at, other in list(sys.modules.items()):  # those that import the number too
                if at.startswith("tpgen.") and vars(other).get(own) is before:
                    monkeypatch.setattr(other, own, value)
        tpgen.caches().clear()

    yield patch
    monkeypatch.undo()
    tpgen.caches().clear()


# -- plans -------------------------------------------------------------------------------------------------------------


def three(*modes: str, weighted: bool = True, shared: bool = False) -> Plan:
    """Three paths of some modes in turn, which share inputs and an output."""
    mode = [modes[n % len(modes)] for n in range(3)]
    ends = [multiplicities(m, weighted, 5, 2 if len({*modes} & {"uuu"}) == 0 else 5) for m in mode]
    in1, in2, out = ("+".join(f"{end[n]}x{ir}" for end in ends) for n, ir in enumerate(("1o", "1o", "1e")))
    return make_plan(in1, in2, out, [(n, n, n, m, weighted) for n, m in enumerate(mode)], shared_weights=shared)


def mixing(shared: bool) -> Plan:
    return fully_connected("5x0e + 3x1o", "0e + 1o", "9x0e + 3x1o", shared_weights=shared)


def scalars(mul: int = 6) -> Plan:
    """A product with five scalars, into copies that fill vectors or none."""
    return fully_connected("2x1o + 3x0e", "5x0e", f"{mul}x1o + 4x0e + 3x1o")


def layer(shared: Any = True) -> Plan:
    return make_linear_plan("9x0e + 5x1o", "8x0e + 3x1o", shared_weights=shared)


def contraction() -> Plan:
    return tpgen.SymmetricContraction("2x0e + 2x1o", "2x0e + 2x1o", 2).plan


CHANNELS: dict[str, Callable[[], Plan]] = {
    "uuu": lambda: three("uuu"),
    "uuu, unweighted": lambda: three("uuu", weighted=False),
    "uvu": lambda: three("uvu"),
    "uvu, shared": lambda: three("uvu", shared=True),
    "uvv": lambda: three("uvv"),
    "uvuv": lambda: three("uvuv"),
    "uuu and uvu": lambda: three("uuu", "uvu"),
}
MIXED = {"uvw": lambda: mixing(False), "uvw, shared": lambda: mixing(True)}
PRODUCTS = {"uvu": CHANNELS["uvu"], "uvu, shared": CHANNELS["uvu, shared"], **MIXED}
LAYERS = {"layer": layer, "layer by row": lambda: layer(False)}
BY_ELEMENT = {"layer by element": lambda: layer("element")}
POLYNOMIALS = {"polynomial": contraction}

# -- limits ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limit:
    """A number, values on both sides of what some plans have, and what else must be so for a plan to reach it."""

    name: str
    values: tuple[Any, ...]
    plans: Mapping[str, Callable[[], Plan]]
    beside: tuple[tuple[str, Any], ...] = ()
    rows: int = 21
    threads: int = 1
    writes: bool = True  # whether texts of kernels differ


MANY = (("kernels.placement.channel._MANY", 1),)
LIMITS = [
    Limit("kernels.placement.channel._MANY", (2, 3, 4), CHANNELS),
    Limit("kernels.placement.channel._TOGETHER", (1, 2, 3, 4), {"uvu": CHANNELS["uvu"], "uuu": CHANNELS["uuu"]}, MANY),
    Limit("kernels.placement.channel._GROUP", (1, 2, 8), {"uvu": CHANNELS["uvu"], "uuu": CHANNELS["uuu"]}, MANY),
    Limit("kernels.placement.channel._GROUP_STAGED", (1, 200, 10**6), {"uvu": CHANNELS["uvu"]}, MANY),
    Limit("kernels.placement.batch._BLOCK", (1, 150, 10**6), MIXED),
    Limit("kernels.placement.batch._OF_SCALARS", (4, 5, 6), {"scalars": scalars, "wide": lambda: scalars(16)}),
    Limit("kernels.placement.batch._STAGED", (1, 9, 10**6), {"uvw": MIXED["uvw"]}),
    Limit("kernels.placement.planning._FILLED", (0.1, 4, 10**6), {"uvu": CHANNELS["uvu"]}),
    Limit("kernels.placement.planning._LARGE", (1, 15, 10**6), {"uvw, shared": MIXED["uvw, shared"]}),
    Limit("kernels.placement.matrix._TILES", ((96, 6), (6,), (12,)), {**LAYERS, **BY_ELEMENT}, rows=100),
    Limit("kernels.placement.matrix._TILE_NUMBERS", (1, 400, 10**9), {**LAYERS, **BY_ELEMENT}, rows=100),
    Limit("kernels.placement.matrix._SUMMED_ROWS", (1, 100, 10**6), {"layer": layer}, rows=300, threads=2),
    Limit("kernels.placement.values._GRAIN", (1, 500, 10**9), {**PRODUCTS, **LAYERS}, rows=50, threads=2),
    Limit("kernels.placement.values._SUMS", (1, 100, 2**24), {"uvu, shared": PRODUCTS["uvu, shared"]}, rows=50),
    Limit("kernels.placement.values.MOST_BLOCKS", (1, 2, 32), {"uvw, shared": MIXED["uvw, shared"]}, rows=70),
    Limit("kernels.placement.values.WORTH_THREADS", (0, 1000, 10**9), PRODUCTS, rows=50, threads=2),
    Limit("kernels.placement.polynomial._SPAN", (1, 6, 7, 64), POLYNOMIALS, rows=7),
    Limit("kernels.cpp.polynomial._WORTH", (0, 1 << 40), POLYNOMIALS, rows=40, threads=2),
    Limit("kernels.runtime.targets._FUSED_ENTRIES", (0, 17, 18, 600), {"uvu": CHANNELS["uvu"]}, writes=False),
    Limit("kernels.runtime.forms._WORTH_ASKING", (0, 2**62), PRODUCTS, writes=False),
]
# every value for the first plan of a number; for the others the largest and the smallest in turn
CASES = [
    (limit, kind, value)
    for limit in LIMITS
    for n, kind in enumerate(limit.plans)
    for value in ((limit.values[-(n % 2)],) if n else limit.values)
]


def often(limit: Limit, kind: str, value: Any) -> bool:
    """Whether a case is of every run: the first value for the first plan of a number, and all sides of the first."""
    return kind == next(iter(limit.plans)) and (value == limit.values[0] or limit is LIMITS[0])


def named(case: tuple[Limit, str, Any], *marks: Any) -> Any:
    limit, kind, value = case
    return pytest.param(*case, bool(marks), id=f"{limit.name}={value}, {kind}{', every' * bool(marks)}", marks=marks)


@pytest.mark.parametrize(
    "limit, kind, value, every",
    [*(named(case) for case in CASES if often(*case)), *(named(case, pytest.mark.slow) for case in CASES)],
)
def test_both_sides_agree(limit: Limit, kind: str, value: Any, every: bool, patched) -> None:
    patched({**dict(limit.beside), limit.name: value})
    on_threads(limit.threads, lambda: check(limit.plans[kind](), limit.rows, every))


@pytest.mark.parametrize("limit", [limit for limit in LIMITS if limit.writes], ids=lambda limit: limit.name)
def test_the_values_are_on_both_sides(limit: Limit, patched) -> None:
    texts = set()
    for value in limit.values:
        patched({**dict(limit.beside), limit.name: value})
        texts.add(tuple(text for make in limit.plans.values() for text in sources(make())))
    assert len(texts) > 1


def sources(plan: Plan) -> list[str]:
    description = description_of_plan(plan)
    return [description.source(one, torch.float64).text for one in description.calls()]


def check(plan: Plan, rows: int, every: bool) -> None:
    """Compare a plan's kernels with the slow definition: edges to second derivatives, rows where ``every``."""
    if plan.maker.form == OF_MONOMIALS:
        return polynomial(plan, rows)
    if plan.operand("w").rows == "element":
        return by_element(plan, rows)
    if len(plan.inputs) == 1:
        return product(plan, rows)
    for mask in MASKS if every else MASKS[:2]:
        found = errors(plan, "mul_ir", rows, torch.float64, mask)
        assert all(error < 1e-11 for error in found.values()), (mask, found)
    convolution(plan, rows, every)
    return product(plan, rows) if every else None


def module_of(plan: Plan, **options: Any) -> Any:
    made = tpgen.Linear if len(plan.inputs) == 1 else tpgen.TensorProduct
    return made.from_plan(plan, internal_weights=False, strategy="kernel", **options).double()


def given(plan: Plan, rows: int) -> list[Tensor]:
    names = [o.name for o in plan.inputs] + ["w"]
    return list(random_operands(plan, rows, names, dtype=torch.float64).values())


def product(plan: Plan, rows: int) -> None:
    module, tensors = module_of(plan), given(plan, rows)
    for order in (1, 2):
        wanted = derivatives(lambda *x: reference_product(plan, *x), tensors, order)
        assert_alike(derivatives(module, tensors, order), wanted, torch.float64)


def convolution(plan: Plan, edges: int, every: bool) -> None:
    module = tpgen.TensorProductConv.from_plan(plan, internal_weights=False, strategy="kernel").double()
    nodes, (x, y, w) = 5, given(plan, edges)
    src, dst = torch.randint(nodes, (2, edges), generator=torch.Generator().manual_seed(1))
    x = x[:nodes]

    def definition(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        messages = reference_product(plan, x[src], y, w)
        return messages.new_zeros(nodes, messages.shape[1]).index_add(0, dst, messages)

    for order in (0, 2):
        wanted = derivatives(definition, (x, y, w), order)
        assert_alike(derivatives(lambda *t: module(*t, src, dst), (x, y, w), order), wanted, torch.float64)
    if plan.shared_weights or not plan.weight_numel or not every:
        return
    half, rest = -(-edges // 2), edges // 2  # two edges to a row of weights

    def pairs(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return definition(x, y, torch.cat([w, w[:rest]]))

    wanted = derivatives(pairs, (x, y, w[:half]), 2)
    assert_alike(derivatives(lambda *t: module.forward_pairs(*t, src, dst), (x, y, w[:half]), 2), wanted, torch.float64)


def by_element(plan: Plan, rows: int) -> None:
    module, shared = module_of(plan), plan.remade(shared_weights=False)
    x, w = torch.randn(rows, plan.irreps_in.dim).double(), torch.randn(3, plan.weight_numel).double()
    index = torch.arange(rows) * 7 % 3
    wanted = derivatives(lambda x, w: reference_product(shared, x, w[index]), (x, w), 2)
    assert_alike(derivatives(lambda x, w: module(x, w, index=index), (x, w), 2), wanted, torch.float64)


def polynomial(plan: Plan, rows: int) -> None:
    elements, channels = 3, 5
    module = tpgen.Polynomial.from_plan(
        plan, channels, num_elements=elements, internal_weights=False, strategy="kernel"
    ).double()
    exact, index = operands_of(plan, rows, elements, channels, grad=False), torch.arange(rows) % elements
    wanted = derivatives(lambda *x: slow(plan, x, index), exact, 2)

    def found(x: Tensor, *w: Tensor) -> Tensor:
        return module(x, index=index, weights=w).flatten(1)

    assert_alike(derivatives(found, exact, 2), wanted, torch.float64)


# -- the real numbers, and limits that refuse --------------------------------------------------------------------------

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "mode, paths",
    [("uuu", 33), *(pytest.param(*case, marks=SLOW) for case in [("uuu", 32), ("uvu", 32), ("uvu", 33), ("uuu", 120)])],
)
def test_many_paths(mode: str, paths: int, patched) -> None:
    patched({})
    entries = zip(multiplicities(mode, True, 2, 2), ("1o", "0e", "1o"), strict=True)
    ends = ("+".join([f"{mul}x{ir}"] * paths) for mul, ir in entries)
    plan = make_plan(*ends, [(n, n, n, mode, True) for n in range(paths)], shared_weights=False)
    check(plan, 9, paths != 33)


def pairs() -> Plan:
    return make_plan("5x1o", "5x1o", "10x1e", [(0, 0, 0, "uvu<v", True)])


def entries_of(plan: Plan) -> int:
    return sum(len(term.entries) for term in path_terms(form_of(plan)))


def operations_of(plan: Plan) -> int:
    return description_of_plan(plan).sweep(description_of_plan(plan).calls()[0]).operations


@pytest.mark.parametrize(
    "name, make, size",
    [
        ("kernels.placement.planning.MAX_ENTRIES", pairs, entries_of),
        ("kernels.placement.planning.MAX_PAIRS", pairs, lambda _: 10),
        ("kernels.runtime.targets._COMFORTABLE", contraction, operations_of),
    ],
)
def test_what_is_too_large_is_a_graph(name: str, make: Any, size: Callable[[Plan], int], patched) -> None:
    plan, found = make(), []
    at = size(plan)
    for value in (at - 1, at, at + 1):
        patched({name: value})
        module = module_for(plan)
        found.append(module.choice.strategy)
    assert found == [module._graph, "kernel", "kernel"]


def module_for(plan: Plan) -> Any:
    if plan.maker.form == OF_MONOMIALS:
        return tpgen.Polynomial.from_plan(plan, 2, num_elements=2)
    return tpgen.TensorProduct.from_plan(plan)


def test_levels_end() -> None:
    one = Call.parse("x -> out")
    for _ in range(MAX_LEVELS):
        one = one.pushed_forward([True] + [False] * (len(one.given) - 1))
    with pytest.raises(PlanError, match=f"up to order {MAX_LEVELS}"):
        one.pushed_forward([True] + [False] * (len(one.given) - 1))


# -- the table is whole ------------------------------------------------------------------------------------------------

SPEED = "what is worth its time; the ways are compared in "
GPU = "launches and steps of GPUs: kernels of many shapes run in an emulator, tests/kernels/cuda"
NODES = "tests/kernels/test_nodes.py"
BESIDE: dict[str, str] = {
    "form.call.MAX_LEVELS": "test_levels_end",
    "form.contraction.PLANNING_ROWS": "orders of contraction are compared for it: values are the same in any order",
    "form.polynomial._NOISE": "what cancels in a sum of coefficients, of one part in 1e10",
    "functions.batch_norm._PARTS": "of rows, tests/functions/test_batch_norm.py",
    "functions.batch_norm._ROWS": "of rows, tests/functions/test_batch_norm.py",
    "functions.bessel._START": "where splines of lengths begin, tests/networks/conversion/operations/test_splines.py",
    "functions.silu.WORTH_SILU": SPEED + "tests/functions/test_silu.py",
    "functions.spline.SLOPE_ERROR": "an error that is measured, tests/functions/test_spline.py",
    "functions.spline._STEPS": "sizes that are tried in turn, tests/functions/test_spline.py",
    "functions.spline._WORST": "the part of a step where slopes err most",
    "kernels.build.build._MOST_UNITS": "units of one source, tests/kernels/build/test_units.py",
    "kernels.build.build._UNITS_PER_CORE": "units of one source, tests/kernels/build/test_units.py",
    "kernels.build.compiler._OLDEST_GCC": "tests/kernels/test_build.py",
    "kernels.build.compiler._WHOLE_GCC": "compilers on both sides build kernels, tests/kernels/test_compilers.py",
    "kernels.build.processor._GET_VECTOR_LENGTH": "a question to Linux",
    "kernels.rows.BEYOND": "the number of a fault",
    "kernels.cpp.nodes._VECTORS_BESIDE_SUMS": "registers; every dimension is met, " + NODES,
    "kernels.placement.nodes.NODES_AT_A_TIME": NODES,
    "kernels.placement.nodes.NODE_ROWS": NODES,
    "kernels.placement.nodes._SUMS": NODES,
    "kernels.cpp.nodes._REGISTERS_OF_NODE": "registers; every dimension is met, " + NODES,
    "kernels.placement.nodes.FEWEST_SCALARS": NODES,
    "kernels.placement.nodes._ROWS": NODES,
    "kernels.placement.nodes._SUMMED_ROWS": NODES,
    "kernels.cpp.polynomial._MOVED": "a part of what _WORTH is compared with",
    "kernels.placement.planning.MAX_ENTRIES": "test_what_is_too_large_is_a_graph",
    "kernels.placement.planning.MAX_PAIRS": "test_what_is_too_large_is_a_graph",
    "kernels.rows.CHECKED": "a bit",
    "kernels.rows.NARROW": "a bit",
    "kernels.runtime.launched._CALLS": GPU,
    "kernels.runtime.memory.LARGE": "results on used pages, tests/kernels/test_memory.py",
    "kernels.runtime.native.identity._WITHOUT_ARGUMENTS": "a flag of Python",
    "kernels.runtime.native.runtime.FEW": "tensors of an operator, tests/kernels/runtime/native/test_runtime.py",
    "kernels.runtime.native.runtime.NO_NUMBER": "no number of a kernel",
    "kernels.runtime.native.words._OF_PYTHON": "a flag of Python",
    "kernels.runtime.polynomials.LARGEST": "tests/kernels/test_refusals.py",
    "kernels.runtime.targets._COMFORTABLE": "test_what_is_too_large_is_a_graph",
    "kernels.sweep.monomials._DIGITS": "coefficients that agree are one, tests/kernels/sweep/test_monomials.py",
}
FOLDERS = ("kernels", "form", "nn", "functions")


def numbers(path: Path) -> Iterator[str]:
    """Names of a module in capitals whose values are written as numbers, or as tuples of these."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or not is_number(node.value):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = (n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))
        yield from (f"{module}.{name}" for name in names if name.isupper())


def is_number(value: ast.AST | None) -> bool:
    if isinstance(value, (ast.Tuple, ast.BinOp, ast.UnaryOp)):
        return all(is_number(x) for x in ast.iter_child_nodes(value) if isinstance(x, ast.expr))
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def test_every_number_is_here() -> None:
    found = {name for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) for name in numbers(path)}
    own = {name for name in found if not name.startswith("kernels.cuda.")}  # of GPUs: see `GPU`
    known = {limit.name for limit in LIMITS} | set(BESIDE)
    assert own - known == set(), "met from no side: give them a Limit, or say why not in BESIDE"
    assert known - own == set(), "numbers that are no more"
