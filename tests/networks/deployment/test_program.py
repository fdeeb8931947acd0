"""Networks as programs, the kernels that programs call, and networks without any."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from e3nn import o3
from torch import Tensor, nn

import tpgen
from tests.machine import needs_compiler
from tests.networks.deployment.network import FEW, Potential, inputs, make, products_of_rows
from tpgen.base.errors import DeployError
from tpgen.form.call import Call
from tpgen.networks.deployment.deploy import deploy
from tpgen.networks.deployment.portable import portable
from tpgen.networks.deployment.runtime import list_kernels_in
from tpgen.networks.program import network_program
from tpgen.planner.presets import channelwise
from tpgen.tools.cli.app import main


@needs_compiler
def test_a_potential_is_one_program_of_any_size() -> None:
    network, given = make()
    program = network_program(network, given)
    for each in (*map(inputs, (5, 3, 8)), *FEW):
        torch.testing.assert_close(program.module()(*each), network(*each), rtol=1e-12, atol=1e-12)
    needed = list_kernels_in(program)
    opened = [(each.call.partition(" -> ")[2], bool(each.rows)) for each in needed if each.call.startswith("x1 x2 w")]
    net = [("x1", False), ("out", False)]  # the net's product with a matrix that is transposed, and its gradient
    # the convolution, layer and product; gradients of the product in both inputs, of the layer, of the convolution
    rest = [("out", False), ("out", False), ("x1 x2", False), ("x1", False), ("x2 w", True)]
    assert opened == [net[0], ("out", True), *rest, net[1]]
    assert products_of_rows(program.graph)[0] == []
    assert len(needed) == len(opened) + 2  # the contraction, and its gradients
    assert all(parameter.requires_grad for parameter in network.parameters())


class Mixed(nn.Module):
    """A net without biases, behind a layer of ours or one of torch's: its last product, its slope, and its rows."""

    def __init__(self, ours: bool) -> None:
        super().__init__()
        self.layer = tpgen.Linear("8x0e", "8x0e", strategy="kernel") if ours else nn.Linear(8, 8)
        self.inner, self.last = nn.Linear(8, 5, bias=False), nn.Parameter(torch.randn(5, 9))
        self.register_buffer("turned", torch.randn(9, 5).T)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            inner = torch.tanh(self.inner(self.layer(leaf)))
            (slope,) = torch.autograd.grad((inner @ (self.last + self.turned)).sin().sum(), leaf)
        return inner @ self.last, slope, slope @ slope.new_ones(8, 3)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_products_are_computed_by_kernels_where_kernels_go_along(dtype: torch.dtype) -> None:
    network, x = Mixed(ours=True).to(dtype), torch.randn(6, 8, dtype=dtype)
    program = network_program(network, [x])
    assert products_of_rows(program.graph) == ([], 7)  # our layer and its gradient, three products, gradients of two
    assert len(list_kernels_in(program)) == 6
    for rows in (6, 0, 1, 2, 131):
        x = torch.randn(rows, 8, dtype=dtype)
        torch.testing.assert_close(program.module()(x), network(x))


def test_products_stay_with_torch_where_no_kernel_goes_along() -> None:
    network, x = Mixed(ours=False), torch.randn(6, 8)
    left, ours = products_of_rows(network_program(network, [x]).graph)
    assert (len(left), ours) == (6, 0)


class Stiffness(nn.Module):
    """The gradient of the squared forces."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = make()[0].energy

    def forward(self, positions: Tensor, elements: Tensor, edges: Tensor) -> Tensor:
        with torch.enable_grad():
            positions = positions.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.energy(positions, elements, edges), positions, create_graph=True)
            return torch.autograd.grad(slope.square().sum(), positions)[0]


@needs_compiler
def test_second_derivatives_in_a_program_are_fused() -> None:
    network = Stiffness()
    program = network_program(network, inputs())
    for atoms in (5, 3, 8):
        found = program.module()(*inputs(atoms))
        torch.testing.assert_close(found, network(*inputs(atoms)), rtol=1e-12, atol=1e-12)
    second = {each.call for each in list_kernels_in(program) if each.rows == "src dst" and Call.parse(each.call).levels}
    assert second == {"x1 x2 w out x2.1 w.1 -> x2 w out"}  # x1 does not depend on positions


def test_portable_takes_networks() -> None:
    with pytest.raises(DeployError, match=r"portable takes a network, a torch.nn.Module, got int"):
        portable(3)  # type: ignore[arg-type]


@needs_compiler
def test_a_portable_network_calls_no_operator_of_ours() -> None:
    network, given = make()
    made = portable(network)
    assert list_kernels_in(network_program(made, given)) == []
    torch.testing.assert_close(made(*given), network(*given))
    made.load_state_dict(network.state_dict())
    assert network.energy.conv.choice.strategy == "kernel"


def test_what_is_converted_is_given_back() -> None:
    network = nn.Sequential(o3.Linear("4x0e+4x1o", "2x0e+1x1o"))
    converted = tpgen.convert(network)
    made = portable(converted)
    assert type(made[0]) is o3.Linear
    assert type(converted[0]) is not o3.Linear


class Harmonics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.harmonics = tpgen.convert(nn.Sequential(o3.SphericalHarmonics("0e+1o+2e", True)))

    def forward(self, vectors: Tensor) -> Tensor:
        with torch.enable_grad():
            vectors = vectors.detach().requires_grad_()
            return torch.autograd.grad(self.harmonics(vectors).sin().sum(), vectors)[0]


@needs_compiler
def test_what_is_converted_calls_kernels_of_polynomials() -> None:
    network, vectors = Harmonics(), torch.randn(5, 3)
    program = network_program(network, [vectors])
    assert ["x1 x2 w" in needed.call for needed in list_kernels_in(program)] == [False] * 2  # values and gradients
    torch.testing.assert_close(program.module()(vectors), network(vectors))


def test_a_polynomial_becomes_einsum() -> None:
    made = portable(tpgen.SymmetricContraction("2x0e+2x1o", "2x0e", 2, num_elements=1))
    assert made.choice.strategy == "einsum"


class Deciding(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x


def test_a_network_that_decides_by_values() -> None:
    with pytest.raises(DeployError, match=r"Deciding cannot be written as one program: .*outside of forward"):
        network_program(Deciding(), [torch.ones(2)])


@pytest.mark.parametrize("given, why", [([], "missing 1 required"), ([torch.ones(2, 3)], "mat1 and mat2 shapes")])
def test_a_network_that_cannot_be_called(given: list[Tensor], why: str) -> None:
    with pytest.raises(
        DeployError, match=rf"Linear cannot be called with these inputs, .*{why}.*the arguments of one call"
    ):
        network_program(nn.Linear(2, 3), given)


@needs_compiler
def test_a_product_without_a_kernel_on_the_target() -> None:
    """Sums over edges in bfloat16 are computed on float32 copies, which only Python makes."""
    plan = tpgen.make_plan("2x0e", "1x0e", "3x0e", [(0, 0, 0, "uvw", True)])
    conv = tpgen.TensorProductConv.from_plan(plan, strategy="kernel").bfloat16()
    edges = torch.tensor([0, 1, 2])
    given = [torch.ones(4, 2).bfloat16(), torch.ones(3, 1).bfloat16(), edges, edges]

    class Convolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = conv

        def forward(self, x: Tensor, y: Tensor, src: Tensor, dst: Tensor) -> Tensor:
            return self.conv(x, y, None, src, dst)

    with pytest.raises(DeployError, match=r"bfloat16.*has no kernel of its own to deploy: convert.*portable"):
        list_kernels_in(network_program(Convolution(), given))


def test_folders_and_inputs_are_checked_first(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="exists: name a folder that does not"):
        deploy(Potential("grouped"), inputs(), tmp_path)
    with pytest.raises(DeployError, match="takes tensors alone, got Tensor, int"):
        deploy(nn.Linear(3, 2), [torch.ones(2, 3), 4], tmp_path / "new")
    assert not list(tmp_path.iterdir())
    done = CliRunner().invoke(main, ["deploy", "tests.networks.deployment.network:make", "--out", str(tmp_path)])
    assert (done.exit_code, "exists: name a folder" in done.output) == (2, True)


def test_sizes_of_one_are_no_open_sizes() -> None:
    """`channelwise` alone: what stays open is what README.md of a deployed folder says."""
    product = tpgen.TensorProduct.from_plan(channelwise("4x0e", "0e", "4x0e"), strategy="grouped")
    program = network_program(product, [torch.ones(3, 4), torch.ones(3, 1), torch.ones(3, 4)])
    assert program.module()(torch.ones(7, 4), torch.ones(7, 1), torch.ones(7, 4)).shape == (7, 4)
