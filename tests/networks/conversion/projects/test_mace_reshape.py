"""MACE's change of layout as one kernel: the same numbers, to the bit, and the same derivatives."""

from __future__ import annotations

import pytest
import torch
from e3nn.util.jit import script
from torch import Tensor, nn

from tests.machine import needs_compiler
from tests.networks.conversion.projects.mace_stand_in import reshape_irreps
from tpgen.base.errors import TpgenError
from tpgen.networks.conversion.convert import conversion_report, convert, restore
from tpgen.networks.conversion.projects.mace_contraction import MaceReshape

IRREPS = "5x0e + 5x1o + 5x2e"


class Reshaping(nn.Module):
    """A network that holds it."""

    def __init__(self, irreps: str = IRREPS, cueq_config: object = None) -> None:
        super().__init__()
        self.reshape = reshape_irreps(irreps, cueq_config)

    def forward(self, x: Tensor) -> Tensor:
        return self.reshape(x)


def converted() -> Reshaping:
    network = convert(Reshaping())
    assert type(network.reshape) is MaceReshape
    return network


def derivatives(network: nn.Module, x: Tensor, g: Tensor, c: Tensor) -> list[Tensor]:
    """The result, its gradient, and the gradient of that by its cotangent, which is another than those."""
    y = network(x)
    (first,) = torch.autograd.grad(y, x, g, create_graph=True)
    (second,) = torch.autograd.grad(first, g, c)
    return [y, first, second]


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_numbers_and_derivatives_are_those_of_stock(dtype: torch.dtype) -> None:
    x, g, c = torch.randn(3, 45).to(dtype), torch.randn(3, 5, 9).to(dtype), torch.randn(3, 45).to(dtype)
    found, wanted = (derivatives(n, x.requires_grad_(), g.requires_grad_(), c) for n in (converted(), Reshaping()))
    assert all(map(torch.equal, found, wanted))
    assert found[0].is_contiguous()


@needs_compiler
def test_no_rows_and_strided_rows() -> None:
    wide = torch.randn(4, 90)[:, ::2]
    for x in (wide, wide[:0]):
        assert torch.equal(converted()(x), Reshaping()(x))


@needs_compiler
def test_it_scripts_traces_and_compiles() -> None:
    x, network = torch.randn(3, 45), converted()
    wanted = Reshaping()(x)
    assert torch.equal(script(network.reshape)(x), wanted)
    assert torch.equal(torch.jit.trace(network, x)(x), wanted)
    assert torch.equal(torch.compile(network, backend="aot_eager", fullgraph=True)(x), wanted)
    assert torch.equal(torch.func.vmap(network)(x[None])[0], wanted)


@needs_compiler
def test_it_is_reported_and_restored() -> None:
    network = converted()
    (row,) = conversion_report(network).replaced
    assert row.now.startswith("tpgen polynomial, kernel")
    assert type(restore(network).reshape) is reshape_irreps


@pytest.mark.parametrize(
    "network",
    [Reshaping("5x0e"), Reshaping("5x0e+4x1o"), Reshaping(cueq_config=object())],
    ids=["one irrep", "other copies", "another layout"],
)
def test_what_is_not_its_case_stays(network: Reshaping) -> None:
    with pytest.raises(TpgenError, match="nothing to convert"):
        convert(network)


@needs_compiler
def test_strategies_without_kernels_leave_it() -> None:
    with pytest.raises(TpgenError, match="nothing to convert"):
        convert(Reshaping(), strategy="grouped")
