"""Backends run what eager runs; nothing is compiled before it is asked for; torch.compile works from outside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import tpgen
from tests.cases import MIXED, STRATEGIES, assert_close
from tpgen.base.errors import BackendError
from tpgen.compiler.backends import BACKENDS, check_backend, compile_program, script_module
from tpgen.compiler.config import Config
from tpgen.emitter.emit import emit_plan
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise
from tpgen.planner.problems import find_problem
from tpgen.planner.product import make_plan

SMALL = (
    "2x0e + 2x1o",
    "2x1o + 1x0e",
    "2x0e + 1x1o + 2x1e",
    [(0, 1, 0, "uvu", True), (1, 0, 0, "uvw", True), (1, 1, 1, "uvw", True), (1, 0, 2, "uuu", False)],
)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def small_plan(n: int = 0) -> Plan:
    """Different products for different n."""
    return channelwise(f"{2 + n}x0e + {2 + n}x1o", "0e + 1o", "0e + 1o", shared_weights=True)


def inputs(product: TensorProduct, rows: int) -> tuple[Tensor, Tensor]:
    return (
        torch.randn(rows, product.irreps_in1.dim, dtype=torch.float64, requires_grad=True),
        torch.randn(rows, product.irreps_in2.dim, dtype=torch.float64, requires_grad=True),
    )


def gradients(out: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(out.pow(2).sum(), leaves)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("backend", ["script", "aot_eager"])
def test_backends_equal_eager(backend: str, strategy: str) -> None:
    eager = tpgen.TensorProduct(*SMALL, strategy=strategy).double()
    dynamic = True if backend == "aot_eager" else None
    product = tpgen.TensorProduct(*SMALL, strategy=strategy, backend=backend, dynamic=dynamic).double()
    product.load_state_dict(eager.state_dict())
    for rows in (3, 5):
        x, y = inputs(eager, rows)
        assert_close(product(x, y), eager(x, y))
        assert_close(product.right(y), eager.right(y))
        for got, want in zip(
            gradients(product(x, y), x, y, product.weight), gradients(eager(x, y), x, y, eager.weight), strict=True
        ):
            assert_close(got, want)


def test_inductor_equals_eager() -> None:
    eager = TensorProduct.from_plan(small_plan(), strategy="unrolled").double()
    product = TensorProduct.from_plan(small_plan(), strategy="unrolled", backend="inductor", dynamic=True).double()
    product.load_state_dict(eager.state_dict())
    x, y = inputs(eager, 5)
    assert_close(product(x, y), eager(x, y))
    for got, want in zip(gradients(product(x, y), x, y), gradients(eager(x, y), x, y), strict=True):
        assert_close(got, want)


def test_a_compiled_product_follows_its_module_to_another_dtype() -> None:
    for backend in ("script", "aot_eager"):
        product = tpgen.TensorProduct(*SMALL, backend=backend, strategy="einsum")
        product(torch.randn(3, 8), torch.randn(3, 7))
        product.double()
        eager = tpgen.TensorProduct(*SMALL, strategy="einsum").double()
        eager.load_state_dict(product.state_dict())
        x, y = inputs(eager, 3)
        assert_close(product(x, y), eager(x, y))


def test_backends_are_known_by_name() -> None:
    assert list(BACKENDS) == ["eager", "script", "inductor", "aot_eager", "cudagraphs"]


@pytest.mark.parametrize(
    "config, match",
    [
        (Config(backend="onnx"), "unknown backend 'onnx'; known backends: eager, script, inductor,"),
        (Config(backend="eager", mode="max-autotune"), "'eager' does not use torch.compile, so dynamic, fullgraph"),
        (Config(backend="script", dynamic=True), "'script' does not use torch.compile"),
        (Config(backend="eager", fullgraph=True), "leave them out, or use 'inductor' or 'aot_eager'"),
        (Config(backend="aot_eager", mode="max-autotune"), "mode 'max-autotune' is an option of 'inductor' alone"),
    ],
)  # fmt: skip
def test_errors(config: Config, match: str) -> None:
    with pytest.raises(BackendError, match=match):
        check_backend(config)
    with pytest.raises(BackendError, match=match):
        compile_program(nn.Identity(), config)
    keywords = {name: getattr(config, name) for name in ("backend", "dynamic", "fullgraph", "mode")}
    with pytest.raises(BackendError, match=match):
        tpgen.TensorProduct(*MIXED, **keywords)


def test_cudagraphs_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BackendError, match="'cudagraphs' records CUDA graphs and this machine has no CUDA device"):
        tpgen.TensorProduct(*MIXED, backend="cudagraphs")


def test_options_reach_torch_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(torch, "compile", lambda program, **keywords: seen.append(keywords) or program)
    compile_program(nn.Identity(), Config(backend="inductor", dynamic=True, fullgraph=True, mode="max-autotune"))
    compile_program(nn.Identity(), Config(backend="aot_eager"))
    assert seen == [
        {"backend": "inductor", "dynamic": True, "fullgraph": True, "mode": "max-autotune"},
        {"backend": "aot_eager", "dynamic": None, "fullgraph": False},
    ]


# --- construction -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "script", "inductor", "aot_eager"])
def test_construction_compiles_nothing(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    TensorProduct.from_plan(small_plan())  # looks once for a compiler

    def compiled(*args: object, **keywords: object) -> None:
        raise AssertionError("something was compiled")

    for module, name in ((torch, "compile"), (torch.jit, "script"), (torch.jit, "trace"), (subprocess, "Popen")):
        monkeypatch.setattr(module, name, compiled)
    for strategy in (*STRATEGIES, "auto"):
        product = tpgen.TensorProduct(*MIXED, backend=backend, strategy=strategy, compile_right=True)
        product.double()
        product.load_state_dict(product.state_dict())


def test_identical_products_share_what_was_written() -> None:
    first, second = tpgen.TensorProduct(*MIXED), tpgen.TensorProduct(*MIXED)
    emission = emit_plan(first.plan, "forward", first.choice.strategy, first.layout)
    assert emission is emit_plan(second.plan, "forward", second.choice.strategy, second.layout)


def test_a_second_large_product_plans_and_writes_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = find_problem("mace-large").make()
    TensorProduct.from_plan(plan)
    from tpgen.emitter import emit

    def written(*args: object, **keywords: object) -> None:
        raise AssertionError("a program was written again")

    monkeypatch.setattr(emit, "emit_form", written)
    TensorProduct.from_plan(find_problem("mace-large").make())


# --- torch.compile around modules -------------------------------------------------------------------------------------


class Network(nn.Module):
    """Products one after the other, each with another shape."""

    def __init__(self, count: int, strategy: str) -> None:
        super().__init__()
        self.products = nn.ModuleList(TensorProduct.from_plan(small_plan(n), strategy=strategy) for n in range(count))
        self.dims = [product.irreps_in1.dim for product in self.products]

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        total = x.new_zeros(x.shape[0])
        for dim, product in zip(self.dims, self.products, strict=True):
            total = total + product(x[:, :dim], y).pow(2).sum(-1)
        return total


@pytest.mark.parametrize(
    "strategy, dynamic, most", [*((s, True, 1) for s in STRATEGIES), ("auto", True, 1), ("grouped", None, 2)]
)
def test_torch_compile_from_outside_with_a_dynamic_batch(strategy: str, dynamic: bool | None, most: int) -> None:
    """Whole graph, forward and backward, and no recompilation for each size of the batch."""
    network = Network(2, strategy).double()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(network, fullgraph=True, dynamic=dynamic, backend=counter)
    for rows in (3, 4, 5, 9, 17):
        x, y = torch.randn(rows, 12).double().requires_grad_(), torch.randn(rows, 4).double().requires_grad_()
        out = compiled(x, y)
        assert_close(out, network(x, y))
        for got, want in zip(gradients(out, x, y), gradients(network(x, y), x, y), strict=True):
            assert_close(got, want)
    assert 1 <= counter.frame_count <= most


@pytest.mark.parametrize("strategy", ["grouped", "auto"])
def test_torch_compile_of_right_and_of_given_weights(strategy: str) -> None:
    product = tpgen.TensorProduct(*MIXED, strategy=strategy, shared_weights=False, compile_right=True).double()
    x, y = inputs(product, 4)
    w = torch.randn(4, product.weight_numel).double()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def both(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return product(x, y, w), product.right(y, w)

    out, matrix = both(x, y, w)
    assert_close(out, product(x, y, w))
    assert_close(matrix, product.right(y, w))


def test_right_is_written_before_torch_compile_sees_it() -> None:
    y = torch.randn(4, 22)
    product = tpgen.TensorProduct(*MIXED, strategy="einsum")
    with pytest.raises(Exception, match=r"construct the product with compile_right=True, or call right once before"):
        torch.compile(product.right, fullgraph=True, backend="aot_eager")(y)
    want = product.right(y)
    torch._dynamo.reset()
    assert_close(torch.compile(product.right, fullgraph=True, backend="aot_eager")(y), want, 1e-6)


def test_twenty_products_in_one_network() -> None:
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        network = Network(20, "grouped").double()
        compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
        x, y = torch.randn(3, 84).double().requires_grad_(), torch.randn(3, 4).double()
        assert_close(compiled(x, y), network(x, y))
        assert_close(*(gradients(f(x, y), x)[0] for f in (compiled, network)))


def test_twenty_products_that_compile_themselves() -> None:
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for n in range(20):
            product = TensorProduct.from_plan(small_plan(n), strategy="grouped", backend="aot_eager").double()
            x, y = inputs(product, 3)
            assert_close(product(x, y), TensorProduct.from_plan(small_plan(n)).double().forward(x, y, product.weight))


def test_scripting_does_not_warn() -> None:
    script_module(tpgen.FullTensorProduct("1o", "1o"))


def test_compiled_products_still_check_their_operands() -> None:
    product = make_plan(*MIXED)
    compiled = torch.compile(TensorProduct.from_plan(product), backend="aot_eager")
    with pytest.raises(RuntimeError, match="the last dimension must be 18"):
        compiled(torch.randn(3, 17), torch.randn(3, 22))
