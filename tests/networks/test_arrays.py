"""Programs of networks that compute by numpy: a call computes these arrays as the network does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tpgen
from tests.machine import needs_compiler
from tests.networks.interpreted import interpreted  # noqa: F401  a fixture
from tests.networks.served import kind_of
from tpgen.base.errors import DeployError
from tpgen.networks.served import serve

TABLE = np.linspace(0.5, 3, 101)


def norm_of_table(sigma: Any) -> Any:
    return TABLE[np.clip(np.round(np.log(sigma + 1) * 50), 0, 100).astype(int)]


def norm_as_tensor(sigma: Tensor) -> Tensor:
    return torch.from_numpy(norm_of_table(sigma.numpy())).to(sigma)


def neighbours(positions: Any, radius: float = 1.5) -> Any:
    distances = np.linalg.norm(positions[:, None] - positions, axis=-1)
    return np.nonzero((distances < radius) & (distances > 0))


def first_rows(x: Any, count: int) -> Any:
    return {"rows": x[:count] * 2, "count": count}


def centred_in_place(x: Any) -> Any:
    x -= x.mean(0)
    return x


class Finder:
    """What somebody's package offers: an object that keeps numbers."""

    def __init__(self, radius: float) -> None:
        self.radius = radius

    def find(self, positions: Any) -> Any:
        return neighbours(positions, self.radius)


class Network(nn.Module):
    """Rows of a linear layer, with what a way of numpy makes of positions."""

    def __init__(self, way: Callable[..., Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.way, self.linear, self.finder = way, nn.Linear(3, 1), Finder(1.2)

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x)


def by_table(network: Any, x: Tensor) -> Tensor:
    norm = torch.tensor(norm_of_table(x[:, 0].detach().abs().cpu().numpy()), device=x.device)
    return network.linear(x)[:, 0] * torch.sqrt(norm).to(x)


def by_tensor(network: Any, x: Tensor) -> Tensor:
    return network.linear(x)[:, 0] * norm_as_tensor(x[:, 0].detach().abs())


def _sums(network: Any, x: Tensor, edges: Any) -> Tensor:
    source, target = (torch.from_numpy(y) for y in edges)
    return x.new_zeros(x.shape[0], 1).index_add(0, target, network.linear(x[source] - x[target]).sin())


def by_neighbours(network: Any, x: Tensor) -> Tensor:
    return _sums(network, x, neighbours(x.detach().numpy()))


def by_object(network: Any, x: Tensor) -> Tensor:
    return _sums(network, x, network.finder.find(x.detach().numpy()))


def by_lines(network: Any, x: Tensor) -> Tensor:
    array = x.detach().numpy()
    assert isinstance(array, np.ndarray)
    assert array.ndim == 2
    scale = torch.as_tensor(np.log1p(np.abs(array)).sum(0), dtype=x.dtype)
    last = torch.from_numpy(np.stack([array[:, 0], array.T[1]], 1)).sum(1)
    return network.linear(x * torch.from_numpy(array > 0.3) * scale)[:, 0] + last


def by_size(network: Any, x: Tensor) -> Tensor:
    found = first_rows(x.detach().numpy(), x.shape[0] - 2)
    return network.linear(torch.from_numpy(found["rows"])).sum() + x.sum()


def by_number(network: Any, x: Tensor) -> Tensor:
    array = x.detach().numpy()
    return network.linear(x)[: int((array[:, 0] > 0.5).sum())]


def by_function_with_graph(network: Any, x: Tensor) -> Tensor:
    def scaled(y: Tensor) -> Tensor:  # has a graph, so it is followed
        return y * torch.from_numpy(np.sqrt(y.detach().numpy()))

    return network.linear(scaled(x))


def by_equal_sizes(network: Any, x: Tensor) -> Tensor:
    """A size that is known to be a later array's once both are multiplied."""
    mask = x[:, 0] > 0.5
    count = int(mask.sum())
    place = (x.new_zeros(count) + 1).nonzero()[:, 0]
    norm = torch.from_numpy(norm_of_table(x[mask][:, 0].detach().numpy())).to(x)
    return network.linear(x[mask])[place, 0] * norm


WAYS = (
    by_table,
    by_tensor,
    by_neighbours,
    by_object,
    by_lines,
    by_size,
    by_number,
    by_equal_sizes,
    by_function_with_graph,
)


def given(rows: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(rows, 3, dtype=dtype) * 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("way", WAYS)
def test_a_program_computes_arrays_anew(interpreted: list[int], way: Any, dtype: torch.dtype) -> None:  # noqa: F811
    network = Network(way).to(dtype)
    codes = [f.__code__ for f in (norm_of_table, neighbours, first_rows, Finder.find)]
    step = tpgen.compile_step(network, given(30, dtype))
    assert codes == [f.__code__ for f in (norm_of_table, neighbours, first_rows, Finder.find)]
    for rows in (30, 17, 50):
        x = given(rows, dtype)
        torch.testing.assert_close(step(x), network(x))
        assert step._program.run_tensors([x]) is not None, "the network serves"


def _slopes(network: nn.Module, positions: Tensor) -> list[Any]:
    x = positions.clone().requires_grad_()
    energy = network(x).sum()
    (slope,) = torch.autograd.grad(energy, x, create_graph=True)
    loss = slope.square().sum() + energy
    return [energy, slope, *torch.autograd.grad(loss, list(network.parameters()))]


@pytest.mark.parametrize("way", [by_table, by_neighbours, by_function_with_graph])
def test_derivatives_are_stocks(interpreted: list[int], way: Any, counted: list[int]) -> None:  # noqa: F811
    stock, network = Network(way).double(), Network(way).double()
    serve(network, "auto")
    for _ in range(2):
        _slopes(network, given(30))
        tpgen.ready(network)
    assert not kind_of(network).refused
    counted.clear()
    for rows in (30, 17, 23):
        x = given(rows)
        for made, wanted in zip(_slopes(network, x), _slopes(stock, x), strict=True):
            torch.testing.assert_close(made, wanted, rtol=1e-10, atol=1e-10)
    assert len(counted) == 3


@needs_compiler
def test_a_compiled_program_is_given_arrays() -> None:
    network = Network(by_neighbours).double()
    step = tpgen.compile_step(network, given(30))
    for rows in (30, 17):
        x = given(rows)
        torch.testing.assert_close(step(x), network(x))
        assert step._program.run_tensors([x]) is not None, "the network serves"


def test_a_function_reads_what_is_there_at_the_call(interpreted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    network, x = Network(by_table).double(), given(20)
    step = tpgen.compile_step(network, x)
    monkeypatch.setitem(globals(), "TABLE", TABLE * 2)
    torch.testing.assert_close(step(x), network(x))


def by_wrong_lookup(network: Any, x: Tensor) -> Tensor:
    return network.linear(x)[:, 0] * torch.from_numpy(look_up_exactly(x[:, 0].detach().numpy()))


def look_up_exactly(x: Any) -> Any:
    return TABLE[(x * 33).astype(int)]


def test_an_error_of_a_function_is_the_networks(interpreted: list[int]) -> None:  # noqa: F811
    step = tpgen.compile_step(Network(by_wrong_lookup).double(), given(20))
    with pytest.raises(IndexError, match="out of bounds"):
        step(given(20) + 5)


class Case(NamedTuple):
    """What no program takes, and what the error says."""

    way: Callable[..., Tensor]
    told: str


def by_entry_of_table(network: Any, x: Tensor) -> Tensor:
    return network.linear(x)[:, 0] * torch.from_numpy(TABLE[x[:, 0].detach().numpy().astype(int)])


def by_write(network: Any, x: Tensor) -> Tensor:
    array = x.detach().numpy().copy()
    array[0] = 0
    return network.linear(torch.from_numpy(array))


def by_write_in_function(network: Any, x: Tensor) -> Tensor:
    return network.linear(torch.from_numpy(centred_in_place(x.detach().numpy())))


def by_noise_of_numpy(network: Any, x: Tensor) -> Tensor:
    return network.linear(x) * torch.from_numpy(np.random.rand(3)).sum()


CASES = (
    Case(by_entry_of_table, r"line \d+: .*TABLE\[x.*: write this line as a function of tensors"),
    Case(by_write, r"writes into an array of numpy \(at test_arrays.py, line \d+: array\[0\] = 0\)"),
    Case(by_write_in_function, r"writes into an array of numpy \(at test_arrays.py, line \d+: x -= "),
    Case(by_noise_of_numpy, "random numbers"),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.way.__name__)
def test_what_no_program_takes_is_told(case: Case) -> None:
    state = np.random.get_state()[1].copy()  # type: ignore[index,union-attr]
    with pytest.raises(DeployError, match=case.told):
        tpgen.compile_step(Network(case.way).double(), given(20))
    assert (np.random.get_state()[1] == state).all()  # type: ignore[index]


def _halved(x: Any, rows: Any) -> Any:
    return x[rows] / 2


def _wrapped(x: Any) -> Any:
    if (x > 2).any():  # not in the example
        x[x > 2] -= 2
    return np.sqrt(x)


STATE: dict[str, float] = {}


def _noted(x: Any) -> Any:
    STATE["largest"] = float(x.max())
    return np.sqrt(x)


GENERATOR = np.random.default_rng(0)


def _shaken(x: Any) -> Any:
    return x + GENERATOR.random(x.shape)


def _maybe_with_graph(x: Tensor) -> Tensor:
    array = x.detach().numpy()
    return x * x if array.max() > 1 else torch.from_numpy(np.sqrt(array))


def _few(x: Any) -> Any:
    if len(x) > 25:
        raise ValueError("many rows")
    return np.sqrt(x)


def by_viewed(network: Any, x: Tensor) -> Tensor:
    y = x.clone()
    column = y.numpy()[:, 0]
    y.mul_(2)
    return network.linear(x)[:, 0] * torch.from_numpy(column.copy())


def by_shared(network: Any, x: Tensor) -> Tensor:
    y = x.clone()
    torch.from_numpy(y.numpy().reshape(-1)).mul_(2)
    return network.linear(y)


def by_caught(network: Any, x: Tensor) -> Tensor:
    try:
        found = torch.from_numpy(_few(x.detach().numpy()))
    except ValueError:
        found = x
    return network.linear(found)


def by_caught_array(network: Any, x: Tensor) -> Tensor:
    try:
        found = torch.from_numpy(np.asarray(np.sqrt(x.detach().numpy())))
    except Exception:
        found = x
    return network.linear(found)


def by_class(network: Any, x: Tensor) -> Tensor:
    array = x.detach().numpy()
    return network.linear(x) * (2 if type(array) is np.ndarray else 3)


def by_attribute(network: Any, x: Tensor) -> Tensor:
    network.last = x.detach().numpy()
    return network.linear(x)


def by_default(network: Any, x: Tensor) -> Tensor:
    array = np.apply_along_axis(lambda row, n=x.shape[0]: row / n, 1, x.detach().numpy())
    return network.linear(torch.from_numpy(array))


ATTACKS: dict[str, Callable[..., Tensor]] = {
    "a slice of sizes": lambda m, x: m.linear(torch.from_numpy(x.detach().numpy()[: x.shape[0] // 2])),
    "a slice for a function": lambda m, x: m.linear(
        torch.from_numpy(_halved(x.detach().numpy(), slice(0, x.shape[0] // 2)))
    ),
    "an array of sizes": lambda m, x: m.linear(torch.from_numpy(x.detach().numpy() / np.array([x.shape[0]]))),
    "a write at some calls": lambda m, x: m.linear(x) * torch.from_numpy(_wrapped((y := x.clone()).numpy())) + y,
    "a global": lambda m, x: m.linear(torch.from_numpy(_noted(x.detach().numpy()))) * STATE["largest"],
    "a generator": lambda m, x: m.linear(torch.from_numpy(_shaken(x.detach().numpy()))) * 0 + x,
    "a graph at some calls": lambda m, x: m.linear(_maybe_with_graph(x)),
    "a number of numpy": lambda m, x: m.linear(x) * x.detach().numpy().mean(),
    "a number of numpy in a mask": lambda m, x: m.linear(x) * float(isinstance(x.numpy().mean(), np.ndarray)),
    "an argument for results": lambda m, x: m.linear(
        torch.from_numpy(np.sum(x.detach().numpy(), axis=0, out=np.zeros(3)))
    ),
    "a masked array": lambda m, x: m.linear(torch.from_numpy(np.ma.masked_greater(x.detach().numpy(), 1).filled(0))),
    "an empty array": lambda m, x: m.linear(x).sum() + torch.from_numpy(x.detach().numpy()[x.shape[0] :]).sum(),
    **{f.__name__: f for f in (by_viewed, by_shared, by_caught, by_caught_array, by_class, by_attribute, by_default)},
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_program_is_right_or_refused(interpreted: list[int], name: str) -> None:  # noqa: F811
    network, stock = Network(ATTACKS[name]).double(), Network(ATTACKS[name]).double()
    try:
        step = tpgen.compile_step(network, given(30) / 3)
    except DeployError:
        assert network.linear(given(3)).shape == (3, 1)
        return
    for rows, largest in ((30, 1), (17, 1), (50, 3), (30, 3)):
        x = given(rows) / 3 * largest
        torch.testing.assert_close(step(x.clone()), stock(x.clone()))


def test_a_network_without_a_program_serves_itself(counted: list[int]) -> None:
    network, stock = Network(by_write).double(), Network(by_write).double()
    serve(network, "auto")
    for rows in (20, 30):
        x = given(rows)
        torch.testing.assert_close(network(x), stock(x))
        tpgen.ready(network)
    assert "writes into an array" in kind_of(network).refused
    assert not counted
