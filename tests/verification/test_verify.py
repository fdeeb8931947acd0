"""Every law holds for what is right, and is seen to be broken by a fault planted for it."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import tpgen
from tests.machine import KERNEL, needs_compiler
from tests.polynomials import PLANS as POLYNOMIALS
from tests.verification import potentials
from tests.verification.potentials import Pairs, inputs
from tpgen.cli import main
from tpgen.errors import InputError
from tpgen.kernels.libraries import build
from tpgen.kernels.operators import runtime, targets
from tpgen.kernels.sweep.statements import Accumulate, Component
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan import Plan, make_plan
from tpgen.planner.presets import channelwise, elementwise, tensor_square
from tpgen.verification.findings import FAILED, NOT_COMPARED, PASSED
from tpgen.verification.products import E3NN_LACKS_RIGHT, e3nn_product
from tpgen.verification.verify import LAWS, Verification, verify

PATHS = [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True), (1, 0, 1, "uvw", True), (1, 1, 2, "uvu", False)]
PLAN = make_plan("2x0e+2x1o", "0e+1o", "2x0e+2x1o+2x1e", PATHS)
PER_ROW = make_plan(
    "2x1o+1x2e", "1x1o", "2x1e+1x1o", [(0, 0, 0, "uvu", True), (1, 0, 1, "uvw", True)], shared_weights=False
)


def product(strategy: str = "einsum", **options) -> TensorProduct:
    return TensorProduct.from_plan(PLAN, internal_weights=False, strategy=strategy, **options).double()


RIGHT: dict[str, Callable[[str], nn.Module]] = {
    "product": product,
    "convolution": lambda s: tpgen.TensorProductConv.from_plan(channelwise("2x0e+2x1o", "0e+1o", "1o"), strategy=s),
    "linear layer": lambda s: tpgen.Linear("2x0e+2x1o", "3x0e+2x1o", biases=True, strategy=s),
    "layer with channels": lambda s: tpgen.Linear("2x0e+1o", "2x0e+1o", f_in=2, f_out=2, biases=True, strategy=s),
    "contraction": lambda s: tpgen.SymmetricContraction("2x0e+2x1o", "2x0e+2x1o", 2, num_elements=2, strategy=s),
    "contraction with given weights": lambda s: tpgen.SymmetricContraction(
        "2x0e+2x1o", "2x0e+2x1o", 2, num_elements=2, internal_weights=False, strategy=s
    ),
    "polynomial": lambda s: tpgen.Polynomial(
        {"x": "2x0e+2x1o", "y": "0e+1o"}, "2x0e+2x1o", [("x", "x", "y"), ("x",)], weights="given", strategy=s
    ),
}


@pytest.mark.parametrize("strategy", ["einsum", KERNEL])
@pytest.mark.parametrize("name", RIGHT)
def test_every_law_holds(name: str, strategy: str) -> None:
    report = verify(RIGHT[name](strategy), rows=4)
    assert report.passed, str(report)
    assert {"equivariant", "linear", "third order", "Hessian", "compiled", "saved"} <= {f.law for f in report.findings}
    assert all(f.status != NOT_COMPARED for f in report.findings), str(report)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_law_holds_of_a_potential(dtype: torch.dtype) -> None:
    report = verify(Pairs().to(dtype), inputs(dtype))
    assert report.passed, str(report)
    of_products = {"definition", "e3nn", "right", "linear", "degree", "normalisation"}
    assert {f.law for f in report.findings} == set(LAWS) - of_products
    assert report.settings == "positions: points; forces: 1x1o"


OF_VALUES = ("definition", "e3nn", "right", "linear", "degree", "equivariant", "permutation", "second order")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("plan", [PLAN, PER_ROW])
def test_a_right_product_passes_in_every_dtype(plan: Plan, dtype: torch.dtype) -> None:
    report = verify(TensorProduct.from_plan(plan, False, strategy="grouped").to(dtype), only=OF_VALUES)
    assert all(f.status == PASSED for f in report.findings), str(report)


@pytest.mark.parametrize("layout", ["ir_mul", ("ir_mul", "mul_ir", "mul_ir"), ("mul_ir", "ir_mul", "ir_mul")])
@pytest.mark.parametrize("strategy", ["einsum", "unrolled"])
def test_layouts_and_strategies_are_verified_as_asked(layout, strategy: str) -> None:
    report = verify(product(strategy, layout=layout), only=OF_VALUES)
    assert report.passed, str(report)
    assert report.settings.startswith(strategy)


def test_a_product_without_paths_or_without_weights_passes() -> None:
    for plan in (make_plan("2x0e", "1o", "3x1o", []), elementwise("2x1o", "2x1o")):
        assert verify(plan, only=OF_VALUES).passed


def test_what_e3nn_lacks_is_said_and_true() -> None:
    plan = tensor_square("2x1o", irreps_out="2x0e+1e")
    report = verify(plan, only=["e3nn", "right"])
    finding = report.finding("e3nn", "right")
    assert (finding.status, finding.why) == (NOT_COMPARED, "e3nn has no right for mode 'u<vw'")
    assert report.finding("right").status == PASSED
    for mode, square in (("u<vw", plan), ("uvu<v", tensor_square("2x1o"))):
        assert mode in E3NN_LACKS_RIGHT
        with pytest.raises(NotImplementedError):
            e3nn_product(square, compile_right=True)


@pytest.mark.parametrize("strategy", ["einsum", "unrolled", KERNEL])
@pytest.mark.parametrize("elements", [None, 3])
@pytest.mark.parametrize("name", ["symmetric ir_mul", "mixed", "mixed unweighted"])
def test_plans_of_polynomials_pass(name: str, elements: int | None, strategy: str) -> None:
    plan = POLYNOMIALS[name]()
    if elements and not plan.weights:
        return
    module = tpgen.Polynomial.from_plan(plan, 2, num_elements=elements, internal_weights=False, strategy=strategy)
    assert verify(module, rows=4, only=OF_VALUES).passed


def test_laws_of_a_polynomial_follow_its_degrees() -> None:
    report = verify(POLYNOMIALS["mixed"](), only=["linear", "degree"])
    assert {(f.law, f.part) for f in report.findings} == {
        ("linear", "b"),
        ("linear", "weights"),
        ("degree", "a"),
        ("degree", "y"),
    }
    assert "every law holds" in str(report)


# --- faults -----------------------------------------------------------------------------------------------------------


class Wrong(TensorProduct):
    """A product that is spoilt in one way."""

    def __init__(self, spoil: Callable[[Tensor, Tensor, Tensor], Tensor], right: float = 1.0) -> None:
        self._setup(PLAN, False, strategy="einsum")
        self.double()
        self.spoil, self.right_scale = spoil, right

    def forward(self, x: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        return self.spoil(super().forward(x, y, weight), x, y)

    def right(self, y: Tensor, weight: Tensor | None = None) -> Tensor:
        return self.right_scale * super().right(y, weight)


OF_MODULES: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "a path a little too large": ("definition", lambda: Wrong(lambda out, x, y: out * 1.00001)),
    "another normalisation": ("normalisation", lambda: Wrong(lambda out, x, y: 1.1 * out)),
    "another than e3nn's": ("e3nn", lambda: Wrong(lambda out, x, y: 1.1 * out)),
    "right is another product": ("right", lambda: Wrong(lambda out, x, y: out, right=1.001)),
    "a square of an input": ("linear", lambda: Wrong(lambda out, x, y: out + 0.01 * x[:, :1] ** 2)),
    "components exchanged": ("equivariant", lambda: Wrong(lambda out, x, y: out.roll(1, 1))),
    "rows that know of each other": ("permutation", lambda: Wrong(lambda out, x, y: out + 0.01 * x[:, :1].cumsum(0))),
    "a result cut off from its inputs": ("first order", lambda: Wrong(lambda out, x, y: out.detach() + 0.0 * x.sum())),
    "shared memory of two calls": ("repeated", lambda: Wrong(lambda out, x, y: out + 1e-12 * torch.rand(1).item())),
}  # fmt: skip


class WrongSquare(tpgen.Polynomial):
    """A polynomial of second degree with a part of third."""

    def forward(self, x: Tensor, **rest) -> Tensor:
        return super().forward(x, **rest) + 0.01 * x[:, :1] ** 3


OF_POLYNOMIALS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "a degree too high": ("degree", lambda: WrongSquare({"x": "2x0e+2x1o"}, "2x0e", [("x", "x")], strategy="einsum")),
}
OF_POTENTIALS: dict[str, str] = {
    "Upside": "forces",
    "Pushed": "conservation",
    "Noisy": "repeated",
    "Threaded": "threads",
    "Compiled": "compiled",
    "Anchored": "translation",
    "Ordered": "permutation",
    "Tilted": "equivariant",
    "Handed": "equivariant",
    "Cliff": "conservation",
    "Steep": "first order",
    "Curved": "second order",
    "Lopsided": "Hessian",
    "Forgetful": "saved",
    "Shifting": "saved",
}


@pytest.mark.parametrize("fault", [*OF_MODULES, *OF_POLYNOMIALS])
def test_a_fault_of_a_product_is_caught(fault: str) -> None:
    law, made = (OF_MODULES | OF_POLYNOMIALS)[fault]
    assert verify(made(), only=[law]).failed == (law,)


@pytest.mark.parametrize("fault", OF_POTENTIALS)
def test_a_fault_of_a_potential_is_caught(fault: str) -> None:
    law = OF_POTENTIALS[fault]
    report = verify(getattr(potentials, fault)().double(), inputs(), only=[law])
    assert report.failed == (law,), str(report)


def test_a_mirror_image_is_seen_by_parity_alone() -> None:
    report = verify(potentials.Handed().double(), inputs(), only=["equivariant"])
    assert report.finding("equivariant", "parity, energy").status == FAILED
    assert report.finding("equivariant", "rotations, energy").status != FAILED


@pytest.fixture
def fresh_kernels() -> Iterator[None]:
    """Kernels of a fault live no longer than its test."""
    for found in (targets.target_of, runtime.product_of):
        found.cache_clear()
    yield
    for found in (targets.target_of, runtime.product_of):
        found.cache_clear()


def spoilt(sweep, slot: str, change: Callable[[Accumulate], Accumulate]):
    """A sweep with the last addition to an operand changed."""
    paths = list(sweep.paths)
    for n, path in reversed(list(enumerate(paths))):
        stages = list(path.stages)
        for s, stage in reversed(list(enumerate(stages))):
            statements = list(stage.statements)
            for k, found in reversed(list(enumerate(statements))):
                if isinstance(found, Accumulate) and found.component.operand == slot:
                    statements[k] = change(found)
                    stages[s] = replace(stage, statements=tuple(statements))
                    paths[n] = replace(path, stages=tuple(stages))
                    return replace(sweep, paths=tuple(paths))
    return sweep


def _elsewhere(found: Accumulate) -> Accumulate:
    where = found.component
    return replace(found, component=Component(where.operand, where.segment, (where.index + 1) % 3))


def _scaled(found: Accumulate) -> Accumulate:
    return replace(
        found, terms=(replace(found.terms[0], coefficient=1.001 * found.terms[0].coefficient), *found.terms[1:])
    )


def _left_out(found: Accumulate) -> Accumulate:
    return replace(found, terms=(replace(found.terms[0], coefficient=0.0),))


OF_SWEEPS = {
    "a sum into another component": ("equivariant", "out", _elsewhere),
    "a number of the product": ("definition", "out", _scaled),
    "an addition left out": ("definition", "out", _left_out),
    "a number of the gradient of input 1": ("first order", "x1", _scaled),
    "a sign of the gradient of input 2": (
        "first order",
        "x2",
        lambda found: replace(found, terms=tuple(replace(t, coefficient=-t.coefficient) for t in found.terms)),
    ),
    "an addition to the gradient of weights left out": ("Hessian", "w", _left_out),
    "the gradient of weights in second derivatives": ("second order", "w", _scaled),
    "the gradient of input 2 in third derivatives": ("third order", "x2", _scaled),
}


@pytest.mark.usefixtures("fresh_kernels")
@pytest.mark.parametrize("fault", OF_SWEEPS)
def test_a_fault_of_a_sweep_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    law, slot, change = OF_SWEEPS[fault]
    right = targets.make_sweep
    monkeypatch.setattr(targets, "make_sweep", lambda *given: spoilt(right(*given), slot, change))
    row = replace(targets.KERNEL_TARGETS["interpreter"], device="cpu")
    monkeypatch.setitem(targets.KERNEL_TARGETS, "cpp", row)
    assert verify(product("kernel"), only=[law], rows=3).failed == (law,)


OF_TEXTS = {
    "a constant": ("definition", r"(\d\.\d{3})\d{4,}", r"\g<1>9999"),
    "a sum for a difference": ("equivariant", r"(?<=ci1j2) - (?=[^;]*ci2j1)", " + "),
    "a component for another": ("equivariant", r"(const vec ci1j2 = x\[1\] \* y)\[2\]", r"\g<1>[1]"),
    "a path left out": ("definition", r"(?m)^ *path_1\(.*;$", ""),
    "a weight for another": ("linear", r"weights\[2 \+ \(", r"weights[0 * n + 2] * weights[2 + ("),
    "one row for all": ("permutation", r"x1 \+ e \* 8", "x1 + q * 8"),
}


@needs_compiler
@pytest.mark.usefixtures("fresh_kernels")
@pytest.mark.parametrize("fault", OF_TEXTS)
def test_a_fault_of_the_generated_text_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    law, pattern, other = OF_TEXTS[fault]
    right = build.load

    def load(text: str, *rest):
        changed, count = re.subn(pattern, other, text, count=1)
        assert count == 1
        return right(changed, *rest)

    monkeypatch.setattr(build, "load", load)
    assert verify(product("kernel"), only=[law], rows=3).failed == (law,)


def test_every_law_has_a_fault() -> None:
    of_modules = (*OF_MODULES.values(), *OF_POLYNOMIALS.values(), *OF_SWEEPS.values(), *OF_TEXTS.values())
    caught = {law for law, *_ in of_modules} | set(OF_POTENTIALS.values())
    assert caught == set(LAWS)
    assert len(OF_MODULES) + len(OF_POTENTIALS) + len(OF_SWEEPS) + len(OF_TEXTS) >= 20


def test_a_module_that_breaks_down_breaks_the_law_and_the_others_go_on() -> None:
    def break_down(out: Tensor, x: Tensor, y: Tensor) -> Tensor:
        if len(x) == 64:
            raise RuntimeError("out of luck\nlong story")
        return out

    report = verify(Wrong(break_down), only=["normalisation", "definition"])
    assert report.finding("normalisation").why == "RuntimeError: out of luck"
    assert report.failed == ("normalisation",)


# --- networks ---------------------------------------------------------------------------------------------------------


class Readout(nn.Module):
    """Vectors of nodes to a scalar and a vector, and a list of edges."""

    def forward(self, data: dict[str, Tensor], edges: Tensor) -> tuple[Tensor, Tensor]:
        messages = data["v"][edges[0]]
        summed = torch.zeros_like(data["v"]).index_add(0, edges[1], messages)
        return summed.square().sum(), summed


def test_frames_are_given_by_name_or_in_order() -> None:
    given = ({"v": torch.randn(4, 3, dtype=torch.float64)}, torch.tensor([[0, 1, 2], [1, 2, 3]]))
    for irreps_in, irreps_out in ((["1o"], ["0e", "1o"]), ({"v": "1o"}, {"[1]": "1o"})):
        report = verify(Readout(), given, irreps_in=irreps_in, irreps_out=irreps_out, only=["equivariant"])
        assert report.passed, str(report)
    assert verify(Readout(), given, irreps_in=["1o"], irreps_out=["0e", None], only=["equivariant"]).failed


class Does(nn.Module):
    def __init__(self, does) -> None:
        super().__init__()
        self.does, self.calls = does, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.does(self, x)


def _fails_later(module: Does, x: Tensor) -> Tensor:
    if module.calls > 3:
        raise ValueError("the fourth call")
    return x


VACUOUS = {
    "no such law": (lambda s, x: x, ["e3nn"]),
    "none asked": (lambda s, x: x, []),
    "not converted": (lambda s, x: x, ["stock"]),
    "no rows": (lambda s, x: x[:0], ["equivariant"]),
    "detached": (lambda s, x: x.detach(), ["first order", "Hessian"]),
}


@pytest.mark.parametrize("case", VACUOUS)
def test_where_nothing_was_compared_nothing_has_passed(case: str) -> None:
    does, only = VACUOUS[case]
    report = verify(Does(does), (torch.randn(4, 3),), irreps_in=["1o"], irreps_out=["1o"], only=only)
    assert not report.passed
    assert not report.failed
    assert "nothing was compared" in str(report)


def test_what_was_not_compared_is_named() -> None:
    detached, only = Does(lambda s, x: x.detach()), ["equivariant", "first order"]
    report = verify(detached, (torch.randn(4, 3),), irreps_in=["1o"], irreps_out=["1o"], only=only)
    assert report.passed
    assert "every law that was compared holds; not compared: first order" in str(report)


def test_a_network_that_raises_breaks_a_law() -> None:
    given = (torch.randn(4, 3),)
    report = verify(Does(_fails_later), given, irreps_in=["1o"], irreps_out=["1o"], only=["equivariant", "repeated"])
    assert "repeated" in report.failed
    assert report.finding("repeated").why == "ValueError: the fourth call"


def test_the_law_of_conversions_alone() -> None:
    from e3nn import o3

    network = tpgen.convert(nn.Sequential(o3.Linear("2x0e+1o", "0e")))
    report = verify(network, (torch.randn(3, 5),), irreps_in=["2x0e+1o"], irreps_out=["0e"], only=["stock"])
    assert report.passed
    assert {f.law for f in report.findings} == {"stock"}


def test_a_converted_network_is_compared_with_the_stock_one() -> None:
    from e3nn import o3

    torch.manual_seed(0)
    network = tpgen.convert(nn.Sequential(o3.Linear("2x0e+1o", "3x0e+2x1o"), o3.Linear("3x0e+2x1o", "0e")))
    report = verify(network, (torch.randn(3, 5),), irreps_in=["2x0e+1o"], irreps_out=["0e"])
    assert report.passed, str(report)
    assert report.finding("stock", "second derivatives").status == "passed"


def test_what_cannot_be_compared_says_why() -> None:
    class Frees(Pairs):
        def forward(self, positions, charges):
            positions = positions.detach().requires_grad_() if not positions.requires_grad else positions
            energy = self.energy(positions, charges)
            return {"energy": energy, "forces": -torch.autograd.grad(energy, positions)[0]}

    report = verify(Frees().double(), inputs(), only=["first order"])
    assert "the network frees its graph: give it in the mode" in report.finding("first order").why


# --- the report -------------------------------------------------------------------------------------------------------


def test_the_report_prints_and_is_strict_json() -> None:
    report = verify(Wrong(lambda out, x, y: out * float("nan")), only=["definition", "linear"])
    assert str(report).startswith(
        f"product {PLAN.irreps_in1} x {PLAN.irreps_in2} -> {PLAN.irreps_out}: BROKEN: definition, linear"
    )
    fields = json.loads(report.to_json(), parse_constant=pytest.fail)
    assert fields["passed"] is False
    assert fields["failed"] == ["definition", "linear"]
    assert fields["findings"][0]["absolute"] == "nan"


def test_the_worst_of_each_law_is_shown() -> None:
    report = verify(product(), only=["linear"])
    (worst,) = report.worst()
    assert worst.relative == max(f.relative for f in report.findings)


def test_progress_names_the_laws() -> None:
    seen: list[str] = []
    verify(product(), only=["definition", "saved"], progress=seen.append)
    assert seen == ["definition", "saved"]


SINGLE = inputs(torch.float32)


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: verify("article"), "give a torch.nn.Module or a plan, got a str"),
        (lambda: verify(Pairs()), r"Pairs is no module of tpgen's: give the arguments of a call, as in verify\(net"),
        (lambda: verify(Pairs(), torch.ones(3)), "inputs: give the arguments of a call as a tuple, got a Tensor"),
        (lambda: verify(nn.Identity(), (torch.ones(3).long(),)), "with floating tensors as inputs, and there is none"),
        (lambda: verify(Pairs(), SINGLE, irreps_in=["1o"]), "irreps_in: give one for each of the floating tensors pos"),
        (lambda: verify(Pairs(), SINGLE, irreps_out={"force": "1o"}), "unknown tensor 'force': did you mean 'forces'"),
        (lambda: verify(Pairs(), SINGLE, irreps_out={"forces": "2e"}), r"of \(5, 3\) must have 5 entries to be 1x2e"),
        (lambda: verify(product(), SINGLE), "inputs and irreps are for networks: a product brings its own"),
        (lambda: verify(product(), only=["linaer"]), "unknown law 'linaer': did you mean 'linear'"),
        (lambda: verify(product(), rows=0), "rows: a verification needs one row at least, got 0"),
        (lambda: verify(product(), backend="eager"), "unknown backend 'eager'.*known backends: inductor, aot_eager"),
        (lambda: verify(nn.Identity(), (torch.ones(3).to(torch.float8_e5m2),)), "unknown dtype 'torch.float8_e5m2'"),
    ],
)
def test_wrong_arguments_are_named(call: Callable[[], Verification], said: str) -> None:
    with pytest.raises(InputError, match=said):
        call()


# --- the command line -------------------------------------------------------------------------------------------------


def wrong_network() -> tuple[nn.Module, list[Tensor]]:
    return potentials.Tilted().double(), list(inputs())


def test_the_command_says_it_by_its_exit_code() -> None:
    run = CliRunner()
    done = run.invoke(main, ["verify", "article", "--strategy", "einsum", "--only", "definition", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["passed"] is True
    where = f"{__name__}:wrong_network"
    done = run.invoke(main, ["verify", "--network", where, "--only", "equivariant"])
    assert done.exit_code == 1
    assert "BROKEN: equivariant" in done.output


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["article", "--turns", "x=1o"], "--turns is for networks"),
        (["--network", f"{__name__}:wrong_network", "--turns", "x"], "write NAME=IRREPS"),
        (["--network", f"{__name__}:wrong_network", "--dtype", "float64"], "leave out --dtype"),
    ],
)
def test_the_command_names_wrong_options(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(main, ["verify", *arguments])
    assert done.exit_code == 2
    assert said in done.output


def test_a_report_survives_a_file() -> None:
    held = io.BytesIO()
    torch.save(verify(product(), only=["definition"]), held)
    held.seek(0)
    assert torch.load(held, weights_only=False).passed


def test_one_law_may_be_a_string() -> None:
    product = tpgen.TensorProduct("2x1o", "1o", "2x0e", [(0, 0, 0, "uvu", True)], strategy="einsum")
    assert {finding.law for finding in tpgen.verify(product, only="definition").findings} == {"definition"}
    with pytest.raises(InputError, match="unknown law 'definitoin': did you mean 'definition'"):
        tpgen.verify(product, only="definitoin")
