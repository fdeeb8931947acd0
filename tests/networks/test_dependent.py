"""Programs of networks that find their own edges, or ask for counts: each call finds them as the network does."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from e3nn import o3
from e3nn.nn import FullyConnectedNet
from torch import Tensor, nn

import tpgen
from benchmarks.networks import Case, gate_points
from tests.machine import needs_compiler
from tests.networks.interpreted import interpreted  # noqa: F401  a fixture
from tpgen.base.errors import DeployError
from tpgen.networks.program import network_program
from tpgen.networks.signature import Signature

RADIUS = 1.5
_LIBRARY = torch.library.Library("neighbours", "DEF")
_LIBRARY.define("within(Tensor positions, float radius) -> Tensor")


def _within(positions: Tensor, radius: float) -> Tensor:
    return _near(positions, positions[:, None], radius).nonzero().T.contiguous()


def _near(positions: Tensor, others: Tensor, radius: float) -> Tensor:
    squares = (others - positions).square().sum(-1)
    return (squares < radius**2) & (squares > 0)


_LIBRARY.impl("within", _within, "CPU")


@torch.jit.script
def _scripted(positions: Tensor, radius: float) -> Tensor:
    squares = (positions.unsqueeze(1) - positions).square().sum(-1)
    return ((squares < radius * radius) & (squares > 0)).nonzero()


def by_nonzero(positions: Tensor) -> tuple[Tensor, Tensor]:
    return _near(positions, positions[:, None], RADIUS).nonzero(as_tuple=True)


def by_where(positions: Tensor) -> tuple[Tensor, ...]:
    return torch.where(_near(positions, positions[:, None], RADIUS))


def by_mask(positions: Tensor) -> Any:
    """All pairs, of which a mask takes the near ones."""
    pairs = torch.cartesian_prod(torch.arange(len(positions)), torch.arange(len(positions))).T
    return pairs[:, _near(positions[pairs[0]], positions[pairs[1]], RADIUS)]


def by_selection(positions: Tensor) -> tuple[Tensor, Tensor]:
    mask, count = _near(positions, positions[:, None], RADIUS), len(positions)
    place = torch.arange(count * count).reshape(count, count).masked_select(mask)
    return place // count, place % count


def by_script(positions: Tensor) -> Any:
    return _scripted(positions, RADIUS).unbind(1)


def by_operator(positions: Tensor) -> Any:
    """An operator of somebody's library, of which torch does not know the shapes."""
    return torch.ops.neighbours.within(positions, RADIUS)


FINDERS = (by_nonzero, by_where, by_mask, by_selection, by_script, by_operator)


class Potential(nn.Module):
    """Energies of systems and forces, with edges that it finds."""

    def __init__(self, finder: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.finder, self.net = finder, nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, positions: Tensor, system: Tensor) -> tuple[Tensor, Tensor]:
        x = positions.detach().requires_grad_()
        source, target = self.finder(x.detach())
        lengths = (x[source] - x[target]).norm(dim=1, keepdim=True)
        long = lengths[lengths > 1.0].sum()  # rows of a tensor that has a gradient, by a mask
        energies = x.new_zeros(int(system.max()) + 1, 1).index_add(0, system[target], self.net(lengths))
        (forces,) = torch.autograd.grad(energies.square().sum() + long, x)
        return energies.detach(), -forces


def given(atoms: int, systems: int) -> tuple[Tensor, Tensor]:
    return torch.rand(atoms, 3).double() * 3, torch.arange(atoms) * systems // atoms


@pytest.mark.parametrize("finder", FINDERS)
def test_a_program_holds_for_any_edges(interpreted: list[int], finder: Any) -> None:  # noqa: F811
    network = Potential(finder).double()
    step = tpgen.compile_step(network, *given(30, 3))
    for sizes in ((41, 3), (23, 2), (30, 5)):
        data = given(*sizes)
        torch.testing.assert_close(step(*data), network(*data), rtol=1e-12, atol=1e-12)
        assert step._program.run_tensors(list(data)) is not None, "the network serves"


@needs_compiler
def test_a_compiled_program_is_given_what_was_found() -> None:
    network = Potential(by_mask).double()
    step = tpgen.compile_step(network, *given(30, 3))
    data = given(23, 2)
    torch.testing.assert_close(step(*data), network(*data), rtol=1e-12, atol=1e-12)
    assert step._program.run_tensors(list(data)) is not None


class Layer(nn.Module):
    """A layer of e3nn's with edges from all distances, of which nothing but `nonzero` asks for numbers."""

    def __init__(self, finder: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.finder = finder
        self.harmonics = o3.SphericalHarmonics("0e + 1o", True, "component")
        self.product = o3.FullyConnectedTensorProduct("4x0e", "0e + 1o", "4x0e + 4x1o", shared_weights=False)
        self.net = FullyConnectedNet([2, 8, self.product.weight_numel], torch.nn.functional.silu)
        self.energy = o3.Linear("4x0e + 4x1o", "0e")

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        x = positions.detach().requires_grad_()
        source, target = self.finder(x.detach())
        edges = x[target] - x[source]
        lengths = edges.norm(dim=1, keepdim=True)
        rows = x.new_ones(len(x), 4)
        each = self.product(rows[source], self.harmonics(edges), self.net(torch.cat([lengths, lengths**2], 1)))
        energy = self.energy(x.new_zeros(len(x), 16).index_add(0, target, each)).sum()
        return energy.detach(), -torch.autograd.grad(energy, x)[0]


def by_diagonal(positions: Tensor) -> Any:
    near = (positions[:, None] - positions).square().sum(-1) < RADIUS**2
    return near.fill_diagonal_(False).nonzero().T


@needs_compiler
@pytest.mark.parametrize("finder", [by_nonzero, by_where, by_diagonal])
def test_a_layer_with_edges_that_it_finds_is_compiled(finder: Any) -> None:
    torch.manual_seed(0)
    stock = Layer(finder).double()
    network = tpgen.convert(deepcopy(stock), program=False)
    step = tpgen.compile_step(network, given(8, 1)[0])
    assert step._program.serves
    for atoms in (8, 5, 13, 1000):  # more than 250,000 numbers are summed another way
        x = given(atoms, 1)[0] * max(1, atoms / 40) ** (1 / 3)
        torch.testing.assert_close(step(x), stock(x), rtol=1e-10, atol=1e-10)
        assert step._program.run_tensors([x]) is not None, "the network serves"


class Written(nn.Module):
    """Writes into a mask that it has used, and asks an operator that a program is not told of."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        mask = x[:, 0] > 0.2
        first = x[mask]
        mask &= x[:, 1] > 0.5
        return first, x[mask], by_operator(x)[0]


def test_a_mask_that_was_written_to_is_another(interpreted: list[int]) -> None:  # noqa: F811
    network = Written()
    step = tpgen.compile_step(network, torch.rand(30, 3))
    for rows in (20, 41):
        x = torch.rand(rows, 3)
        for made, wanted in zip(step(x), network(x), strict=True):
            assert torch.equal(made, wanted)
        assert step._program.run_tensors([x]) is not None, "the network serves"


class Shifted(nn.Module):
    """Writes into edges that it has found."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        edges = by_operator(x)
        edges += 1
        return x[edges[0] - 1], edges


def test_what_was_found_may_be_written_to(interpreted: list[int]) -> None:  # noqa: F811
    network = Shifted()
    step = tpgen.compile_step(network, torch.rand(30, 3) * 3)
    for rows in (20, 41):
        x = torch.rand(rows, 3) * 3
        for made, wanted in zip(step(x), network(x), strict=True):
            assert torch.equal(made, wanted)
        assert step._program.run_tensors([x]) is not None, "the network serves"


class Scaled(nn.Module):
    """Decides by a number of a buffer, and a sign that data says."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(2.5))

    def forward(self, x: Tensor) -> Tensor:
        return x * float(self.scale) if bool((x > 0).all()) else x  # type: ignore[arg-type]


def test_other_numbers_are_those_of_the_example_or_the_network_serves(interpreted: list[int]) -> None:  # noqa: F811
    network, x = Scaled(), torch.rand(5) + 1
    with torch.no_grad():
        step = tpgen.compile_step(network, x)
        assert step._program.run_tensors([x[:4]]) is not None
        for other in (-x, x):
            torch.testing.assert_close(step(other), network(other))
            network.scale.mul_(2)  # type: ignore[operator]
            torch.testing.assert_close(step(other), network(other))
        assert step._program.run_tensors([x]) is None


class Normed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return by_operator(x)[0] / x.abs().max().item()


def test_a_number_that_is_another_in_each_call_is_refused() -> None:
    line = Normed.forward.__code__.co_firstlineno + 1
    told = rf"forward asks for a number of a tensor \(at test_dependent.py, line {line}: .*item\(\)\), .*tensor itself"
    with pytest.raises(DeployError, match=told):
        tpgen.compile_step(Normed(), torch.rand(5, 3))


class Elsewhere(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        near = x.detach().numpy() > 0
        return x * torch.from_numpy(near)


def test_an_error_of_a_program_to_deploy_names_the_line() -> None:
    line = Elsewhere.forward.__code__.co_firstlineno + 1
    told = rf"forward makes an array of numpy \(at test_dependent.py, line {line}: near = .*\), .*compute by torch"
    with pytest.raises(DeployError, match=told) as found:
        network_program(Elsewhere(), [torch.rand(5)])
    assert "subclass" not in str(found.value)


class Counting(nn.Module):
    """Counts rows into as many places as two tensors have rows."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        both = torch.cat([x, y])
        counts = torch.bincount((both[:, 0] * 3).long(), minlength=both.shape[0])
        return both / counts[: both.shape[0], None].clamp(1)


def test_a_size_that_an_operation_is_given_is_open(interpreted: list[int]) -> None:  # noqa: F811
    network = Counting()
    step = tpgen.compile_step(network, torch.rand(20, 3), torch.rand(13, 3))
    for sizes in ((20, 13), (7, 30), (40, 41)):
        data = [torch.rand(n, 3) for n in sizes]
        torch.testing.assert_close(step(*data), network(*data))
        assert step._program.run_tensors(data) is not None, "the network serves"


class Choosing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 1 else -x


def test_a_program_to_deploy_makes_no_choice_by_values() -> None:
    told = r"^Choosing cannot be written as one program: forward asks for a number .* \(at .*, line \d+: return x if"
    with pytest.raises(DeployError, match=told):
        network_program(Choosing(), [torch.rand(5)])


def example_of_e3nn(atoms: int) -> Case:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # else e3nn rounds its couplings
    try:
        return gate_points(atoms, torch.float64, "gate_points_2102", copies=4, layers=1)
    finally:
        torch.set_default_dtype(before)


@needs_compiler
@pytest.mark.slow
def test_a_network_of_e3nn_finds_its_edges() -> None:
    first, *rest = map(example_of_e3nn, (40, 33, 51))
    stock, step = first.model, tpgen.compile_step(tpgen.convert(deepcopy(first.model), program=False), first.batch)
    for case in (first, *rest):
        made, wanted = step(case.batch), stock(case.batch)
        for name, x in wanted.items():
            torch.testing.assert_close(made[name], x.detach(), rtol=1e-10, atol=1e-10)
        assert step._program.run_tensors(Signature.split_call((case.batch,), {})[1]) is not None, "the network serves"
