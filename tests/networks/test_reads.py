"""What a program fixes of its network: when it changes, another program is built, beside the network in eager."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from threading import Thread

import pytest
import torch
from torch import Tensor, nn

import tpgen
from tests.networks.interpreted import interpreted  # noqa: F401  a fixture
from tests.networks.test_training import squared
from tests.networks.ways import way  # noqa: F401  a fixture
from tpgen.base.errors import InputError
from tpgen.networks.reach import ReachableState
from tpgen.networks.reads import Reads, reading


class Layers(nn.Module):
    """Layers that share a weight, numbers and tensors beside parameters, and code that decides by its mode."""

    power = 1.0

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()
        self.last.weight = self.first.weight
        self.inner, self.drop = nn.Sequential(nn.Tanh(), nn.Sigmoid()), nn.Dropout(0.5).eval()
        self.scale, self.act, self.seen = 2.0, torch.sin, None
        self.plain, self.table = torch.ones(3).double(), torch.ones(3).double()
        self.register_buffer("shift", torch.ones(3).double())

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.inner(self.act(self.first(x * self.scale))))
        self.seen = x
        return self.last(x).pow(self.power) * self.plain + self.shift * self.table + (1 if self.training else 0)


def rows(count: int = 5) -> Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(count)).double()


def tripled(network: nn.Module) -> dict[str, Tensor]:
    return {name: 3 * x for name, x in network.state_dict().items()}


CHANGES: dict[str, tuple[Callable[[Layers], object], bool]] = {  # whether they ask for another program
    "nothing": (lambda network: None, False),
    "a number that is equal": (lambda network: setattr(network, "scale", float("2.0")), False),
    "a number": (lambda network: setattr(network, "scale", 3.0), True),
    "a number of another type": (lambda network: setattr(network, "scale", 2), True),
    "a number of the class": (lambda network: setattr(network, "power", 2.0), True),
    "forward": (lambda network: setattr(network.drop, "forward", torch.sin), True),
    "a function": (lambda network: setattr(network, "act", torch.cos), True),
    "a plain tensor, in place": (lambda network: network.plain.mul_(3), True),
    "a plain tensor": (lambda network: setattr(network, "table", network.table + 1), True),
    "a module": (lambda network: setattr(network, "first", nn.Linear(3, 3).double()), True),
    "a module in a sequence": (lambda network: network.inner.__setitem__(0, nn.ReLU()), True),
    "one module more in a sequence": (lambda network: network.inner.append(nn.ReLU()), True),
    "the mode": (lambda network: network.train(not network.training).drop.eval(), True),
    "the mode of a part": (lambda network: network.inner.train(not network.inner.training), False),
    "one of two shared weights": (lambda network: setattr(network.last, "weight", nn.Parameter(rows(3))), True),
    "no bias": (lambda network: setattr(network.last, "bias", None), True),
    "a parameter": (lambda network: setattr(network.last, "bias", nn.Parameter(rows(3)[0])), False),
    "a parameter, in place": (lambda network: network.first.weight.mul_(2), False),
    "a buffer": (lambda network: setattr(network, "shift", rows(3)[0]), False),
    "a state": (lambda network: network.load_state_dict(Layers().state_dict()), False),
    "a state with two weights": (lambda network: network.load_state_dict(tripled(network), assign=True), True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_step_is_that_of_the_network_as_it_is(change: str, way: str, interpreted: list[int]) -> None:  # noqa: F811
    network = Layers()
    step = tpgen.compile_step(network, rows())
    torch.testing.assert_close(step(rows(7)), network(rows(7)), rtol=1e-12, atol=1e-12)
    applied, again = CHANGES[change]
    with torch.no_grad():
        applied(network)
    for count in (5, 7):
        torch.testing.assert_close(step(rows(count)), network(rows(count)), rtol=1e-12, atol=1e-12)
    assert len(interpreted) == 1 + again


def test_training_is_that_of_the_network_as_it_is(interpreted: list[int]) -> None:  # noqa: F811
    network = Layers()
    training = tpgen.compile_training(network, squared, rows())
    network.scale = 3.0
    training(rows()).backward()
    found = [p.grad.clone() for p in network.parameters()]
    network.zero_grad()
    squared(network, rows()).backward()
    torch.testing.assert_close(found, [p.grad for p in network.parameters()], rtol=1e-12, atol=1e-12)
    assert len(interpreted) == 2


def test_a_trace_leaves_no_attributes_behind(interpreted: list[int]) -> None:  # noqa: F811
    network = Layers()
    tpgen.compile_step(network, rows())
    assert type(network.seen) is Tensor, "the example's"
    assert "__getattribute__" not in vars(nn.Module)


def test_copies_of_a_step_are_of_their_own(interpreted: list[int]) -> None:  # noqa: F811
    step = tpgen.compile_step(Layers(), rows())
    wanted = step(rows())
    for again in (copy.deepcopy(step), pickle.loads(pickle.dumps(step))):
        again.load_state_dict({name: 2 * x for name, x in step.state_dict().items()})
        torch.testing.assert_close(again(rows()), again._network(rows()), rtol=1e-12, atol=1e-12)
        assert not torch.equal(again(rows()), wanted)
        torch.testing.assert_close(step(rows()), wanted, rtol=0, atol=0)


def test_threads_build_one_program(interpreted: list[int]) -> None:  # noqa: F811
    network = Layers().eval()
    weights, step, found = list(network.parameters()), tpgen.compile_step(network), {}
    threads = [Thread(target=lambda n=n: found.update({n: [step(rows(n)) for _ in range(3)]})) for n in range(2, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(2, 10):
        for x in found[n]:
            torch.testing.assert_close(x, network(rows(n)), rtol=1e-12, atol=1e-12)
    assert len(interpreted) == 1
    assert all(x is y for x, y in zip(network.parameters(), weights, strict=True))


def test_weights_of_torchscript_are_constants(interpreted: list[int]) -> None:  # noqa: F811
    network = nn.Sequential(torch.jit.script(nn.Linear(3, 3).double()), nn.Linear(3, 1).double())
    step = tpgen.compile_step(network, rows())
    with torch.no_grad():
        network[0].weight.mul_(2)
    torch.testing.assert_close(step(rows()), network(rows()), rtol=1e-12, atol=1e-12)
    with pytest.raises(InputError, match="parameters of TorchScript modules are no inputs of a program: freeze these"):
        tpgen.compile_training(network, squared, rows())


def test_what_code_writes_itself_is_not_asked_for() -> None:
    network = Layers()
    with reading([network]) as reads:
        network(rows())
    assert isinstance(reads, Reads)
    reads.watch_reachable_values(ReachableState({}, [network]), [network])
    assert reads.is_unchanged()
    network.seen = None
    assert reads.is_unchanged()
    network.scale = 4.0
    assert not reads.is_unchanged()


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward"])
def test_hooks_that_come_and_go_are_in_the_program(kind: str, way: str, interpreted: list[int]) -> None:  # noqa: F811
    network = Layers()
    step, plain = tpgen.compile_step(network, rows()), network(rows())
    inner = next(module for module in network.modules() if isinstance(module, nn.Linear))
    change = {"forward": lambda m, x, y: 2 * y, "forward_pre": lambda m, x: 3 * x[0]}.get(kind, lambda m, i, o: None)
    handle = getattr(inner, f"register_{kind}_hook")(change)
    torch.testing.assert_close(step(rows()), network(rows()), rtol=1e-12, atol=1e-12)
    assert torch.equal(network(rows()), plain) == (kind == "full_backward")
    handle.remove()
    torch.testing.assert_close(step(rows()), plain, rtol=1e-12, atol=1e-12)
    assert len(interpreted) == 3


READ = {
    "a list": lambda network: setattr(network, "sequence", [3.0]),
    "a bias where none was": lambda network: setattr(network.bare, "bias", nn.Parameter(torch.ones(3).double())),
    "a name that was absent": lambda network: setattr(network, "factor", 3.0),
    "a method of its own": lambda network: setattr(network, "shift", lambda: 7.0),
    "other tensors of a tuple": lambda network: setattr(
        network, "pair", (torch.ones(3).double(), torch.ones(3).double())
    ),
}


class Various(nn.Module):
    """A network that reads of itself whatever a module may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.bare = nn.Linear(3, 3, bias=False).double()
        self.sequence, self.pair = [2.0], (torch.zeros(3).double(), torch.ones(3).double())

    def shift(self) -> float:
        return 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.bare(x) * self.sequence[0] * getattr(self, "factor", 1.0) + self.shift() + self.pair[0]


@pytest.mark.parametrize("change", READ)
def test_all_that_a_network_reads_counts(change: str, way: str, interpreted: list[int]) -> None:  # noqa: F811
    network = Various()
    step = tpgen.compile_step(network, rows())
    before = step(rows())
    READ[change](network)
    torch.testing.assert_close(step(rows()), network(rows()), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(step(rows()), before)


def test_other_threads_are_not_listened_to() -> None:
    network, other = Layers(), Layers()
    with reading([network]) as reads:
        thread = Thread(target=lambda: other(rows()))
        thread.start()
        thread.join()
        network(rows())
    reads.watch_reachable_values(ReachableState({}, [network]), [network])
    other.scale = 4.0
    assert reads.is_unchanged()
