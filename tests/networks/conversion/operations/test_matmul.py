"""Matrix products with large results."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.machine import needs_compiler
from tpgen.kernels.runtime import memory
from tpgen.networks.conversion.operations import matmul as module
from tpgen.networks.conversion.operations.matmul import matmul

ALL_LARGE = 0
WORTH = module.WORTH_MATMUL


@pytest.fixture(autouse=True)
def _all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORTH_MATMUL", ALL_LARGE)


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    x, w = torch.randn(5, 3, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    return x.requires_grad_(), w.requires_grad_()


def test_derivatives_of_all_orders() -> None:
    x, w = operands()
    torch.testing.assert_close(matmul(x, w), x @ w)
    assert torch.autograd.gradcheck(matmul, (x, w), check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(matmul, (x, w), check_batched_grad=True)


def test_scaled_weights() -> None:
    x, w = operands()
    torch.testing.assert_close(matmul(x, w, 0.3), x @ (0.3 * w))
    torch.testing.assert_close(matmul(x, w, torch.tensor(0.3, dtype=torch.float64)), x @ (0.3 * w))


@needs_compiler
def test_a_large_product_and_its_derivatives_are_calls_of_kernels() -> None:
    x, w = operands()
    with torch.profiler.profile() as calls:
        (first,) = torch.autograd.grad(matmul(x, w).square().sum(), x, create_graph=True)
        torch.autograd.grad(first.square().sum(), (x, w))
    assert not {event.name for event in calls.events()} & {"aten::mm", "aten::matmul"}


def test_transforms() -> None:
    x, w = operands()
    many = torch.randn(6, *x.shape, dtype=torch.float64)
    torch.testing.assert_close(torch.func.vmap(matmul, (0, None))(many, w), many @ w)
    torch.testing.assert_close(torch.func.grad(lambda x: matmul(x, w).sin().sum())(x), (x @ w).cos() @ w.T)


@needs_compiler
@pytest.mark.parametrize(("inner", "outputs", "by_kernel"), [(32, 512, True), (31, 2048, False), (32, 511, False)])
def test_a_graph_has_kernels_of_long_sums_and_rows_of_its_own(inner: int, outputs: int, by_kernel: bool) -> None:
    x, w = torch.randn(5, inner), torch.randn(inner, outputs)
    graph = make_fx(lambda x: matmul(x, w, 0.5), tracing_mode="symbolic", _allow_non_fake_inputs=True)(x)
    assert ("tpgen.form" in graph.code) == by_kernel
    more = torch.randn(7, inner)
    torch.testing.assert_close(graph(more), more @ w / 2)


def test_a_graph_of_weights_of_any_size_has_no_kernels() -> None:
    x, w = torch.randn(5, 64), torch.randn(64, 512)
    graph = make_fx(lambda x, w: matmul(x, w), tracing_mode="symbolic")(x, w)
    assert "tpgen.form" not in graph.code
    torch.testing.assert_close(graph(x[:, :32], w[:32]), x[:, :32] @ w[:32])


@pytest.mark.parametrize("columns", [0, 4])
def test_no_rows(columns: int) -> None:
    x, w = torch.zeros(0, 3, requires_grad=True), torch.zeros(3, columns, requires_grad=True)
    found = torch.autograd.grad(matmul(x, w).sum(), (x, w))
    assert [g.shape for g in found] == [x.shape, w.shape]
    assert not found[1].any()


def test_large_results_stand_on_memory_that_was_used_before() -> None:
    memory.release()
    x, w = torch.randn(2**11, 8), torch.randn(8, 2**10)
    expected = x @ w
    for _ in range(2):
        torch.testing.assert_close(matmul(x, w), expected)
    assert memory.kept_bytes() >= expected.numel() * 4


@pytest.mark.parametrize(
    ("rows", "inner", "outputs", "large"),
    [(512, 8, 512, True), (512, 8, 511, False), (256, 128, 64, True), (256, 127, 64, False), (2**14, 31, 15, False)],
)
def test_large_is_a_result_or_the_work_of_long_sums(
    rows: int, inner: int, outputs: int, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WORTH_MATMUL", WORTH)
    assert module._is_matmul_kernel_faster(torch.empty(rows, inner), torch.empty(inner, outputs)) == large
