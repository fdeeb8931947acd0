"""Calls of a network that has programs of its own: as those of the network, whatever happens to it."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tpgen
from tests.networks.interpreted import interpreted  # noqa: F401  a fixture
from tpgen.networks import served as module
from tpgen.networks.bypass import without_programs
from tpgen.networks.kinds import CALLS, Kind
from tpgen.networks.served import Calls, serve, serve_no_more

pytestmark = pytest.mark.usefixtures("interpreted")


class Field(nn.Module):
    """Energies, forces and more of positions, as the field's networks give them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)
        self.register_buffer("shift", torch.ones(1))
        self.scale = 2.0

    def forward(self, data: dict[str, Tensor], training: bool = False, forces: bool = True) -> dict[str, Any]:
        positions = data["positions"].requires_grad_()
        strain = torch.zeros(3, 3, dtype=positions.dtype).requires_grad_()
        data["moved"] = positions + positions @ strain
        energies = self.last(self.first(data["moved"]).sin()) * self.scale + self.shift
        energy = energies.sum()
        found = {"energy": energy, "energies": energies, "strain": strain, "forces": None, "species": data["species"]}
        if forces:
            (slope,) = torch.autograd.grad(energy, positions, create_graph=training)
            found["forces"] = -slope
        return found


def given(atoms: int = 5, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "positions": torch.randn(atoms, 3, generator=generator, dtype=torch.float64),
        "species": torch.arange(atoms),
    }


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An entry for each call that a program has served."""
    calls: list[int] = []
    run = Kind.served

    def served(self: Kind, *rest: Any) -> Any:
        found = run(self, *rest)
        calls.extend([0] * (found is not None))
        return found

    monkeypatch.setattr(Kind, "served", served)
    return calls


def twins(network: Callable[[], nn.Module] = Field, when: Any = True) -> tuple[nn.Module, nn.Module]:
    stock, own = network().double(), network().double()
    serve(own, when)
    return stock, own


def ready(network: nn.Module, **options: Any) -> None:
    network(given(), **options)
    tpgen.ready(network)


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert list(found) == list(wanted)
    for name, x in wanted.items():
        y = found[name]
        if x is None:
            assert y is None
        else:
            torch.testing.assert_close(y, x, rtol=1e-12, atol=1e-12)
            assert (y.requires_grad, y.is_leaf) == (x.requires_grad, x.is_leaf), name


def compare(stock: nn.Module, own: nn.Module, atoms: int = 6, **options: Any) -> None:
    """Results, and what becomes of the arguments."""
    one, other = given(atoms, atoms), given(atoms, atoms)
    found, wanted = own(one, **options), stock(other, **options)
    assert_same(found, wanted)
    assert_same(one, other)
    assert found["species"] is one["species"]


def calls_of(network: nn.Module) -> Calls:
    return vars(network)["_tpgen_calls"]


def kind_of(network: nn.Module) -> Kind:
    ((kind,),) = calls_of(network)._kinds.values()
    return kind


# --- results ----------------------------------------------------------------------------------------------------------


def test_results_and_arguments_are_as_the_network_leaves_them(counted: list[int]) -> None:
    stock, own = twins()
    for atoms in (5, 6, 9):
        compare(stock, own, atoms)
    assert len(counted) == 2, "the first call is the network's"
    compare(stock, own, atoms=1)
    assert len(counted) == 2, "so is one of a size that the program does not hold for"


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("forces", [False, True])
def test_what_has_a_graph_has_one_still(frozen: bool, forces: bool) -> None:
    stock, own = (network.requires_grad_(not frozen) for network in twins())
    ready(own, forces=forces)
    compare(stock, own, forces=forces)


def test_derivatives_of_results_are_those_of_the_network(counted: list[int]) -> None:
    found = []
    for network in twins():
        if "_tpgen_calls" in vars(network):
            ready(network, forces=False)
        data = given(6)
        result = network(data, forces=False)
        parameters = list(network.parameters())
        (slope,) = torch.autograd.grad(result["energies"].square().sum(), data["positions"], create_graph=True)
        second = torch.autograd.grad(slope.sin().sum(), (data["positions"], *parameters), retain_graph=True)
        (moved,) = torch.autograd.grad(slope.sin().sum(), data["positions"], retain_graph=True)
        rows = torch.autograd.grad(
            slope.flatten()[:4], data["positions"], torch.eye(4, dtype=torch.float64), is_grads_batched=True
        )
        found.append([slope, *second, moved, *rows])
    assert len(counted) == 1
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


def test_a_kind_of_call_that_is_differentiated_is_the_networks(counted: list[int]) -> None:
    _, own = twins()
    ready(own, forces=False)
    own(given(), forces=False)["energy"].backward()
    own(given(), forces=False)
    assert len(counted) == 1
    assert "differentiated" in kind_of(own).refused
    _, own = twins(when="auto")
    for _ in range(2 * CALLS):
        own(given(), training=True)["forces"].sum().backward()
    assert "differentiated" in kind_of(own).refused


def test_what_stock_cannot_differentiate_is_its_error() -> None:
    messages = []
    for network in twins():
        if "_tpgen_calls" in vars(network):
            ready(network)
        with pytest.raises(RuntimeError) as error:
            network(given())["energy"].backward()
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_a_source_that_is_written_to_is_torchs_error() -> None:
    _, own = twins()
    ready(own, forces=False)
    result = own(given(), forces=False)
    with torch.no_grad():
        own.first.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result["energy"].backward()


def test_a_network_that_has_changed_since_is_an_error() -> None:
    _, own = twins()
    ready(own, forces=False)
    result = own(given(), forces=False)
    own.scale = 3.0
    with pytest.raises(tpgen.TpgenError, match="Field has changed since it was called"):
        result["energy"].backward()


class Adds(nn.Module):
    """Returns the dict that it is given, with a name more and one less."""

    def forward(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        data["sine"] = data.pop("x").sin()
        return data


def test_a_dict_that_is_returned_is_the_one_that_was_given(counted: list[int]) -> None:
    network = Adds()
    serve(network, True)
    for size in (3, 4):
        x = torch.randn(size)
        data = {"x": x, "y": x}
        assert network(data) is data
        assert list(data) == ["y", "sine"]
        assert data["y"] is x
        torch.testing.assert_close(data["sine"], x.sin())
    assert len(counted) == 1


# --- what happens to a network ----------------------------------------------------------------------------------------


def _step(network: nn.Module) -> None:
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    network(given(), training=True)["forces"].square().sum().backward()
    optimiser.step()


def _data(network: nn.Module) -> None:
    for p in network.parameters():
        p.data.mul_(1.5)


def _other_parameter(network: Any) -> None:
    network.first.weight = nn.Parameter(network.first.weight.detach() + 1)


def _hook(network: Any) -> None:
    network.first.register_forward_hook(lambda _module, _given, found: 0.5 * found)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "optimiser": _step,
    "load_state_dict": lambda m: m.load_state_dict({k: 0.5 * x for k, x in m.state_dict().items()}),
    "data": _data,
    "other parameter": _other_parameter,
    "freeze": lambda m: m.requires_grad_(False),
    "freeze some": lambda m: m.first.requires_grad_(False),
    "eval": lambda m: m.eval(),
    "an attribute": lambda m: setattr(m, "scale", -1.0),
    "a module": lambda m: setattr(m, "first", nn.Linear(3, 4).double().requires_grad_(False).apply(_ones)),
    "hook": _hook,
    "dtype and back": lambda m: m.float().double(),
}


def _ones(layer: nn.Module) -> None:
    for p in layer.parameters():
        p.data.fill_(1)


@pytest.mark.parametrize("change", CHANGES)
def test_changes_count_from_the_next_call_on(change: str, counted: list[int]) -> None:
    stock, own = twins()
    ready(own)
    compare(stock, own)
    for network in (stock, own):
        CHANGES[change](network)
    compare(stock, own)
    compare(stock, own, atoms=7)
    tpgen.ready(own)
    compare(stock, own, atoms=8)
    assert len(counted) >= 1


def test_hooks_run_in_each_call_and_programs_come_back_without(counted: list[int]) -> None:
    _, own = twins()
    ready(own)
    calls: list[int] = []
    hook = own.first.register_forward_hook(lambda *_: calls.append(0))
    for _ in range(3):
        own(given())
    assert (len(calls), len(counted)) == (3, 0)
    hook.remove()
    tpgen.ready(own)
    own(given())
    assert (len(calls), len(counted)) == (3, 1)


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), lambda m: _from_file(m)],
    ids=["deepcopy", "pickle", "torch.save"],
)
def test_copies_have_programs_of_their_own(copied: Callable[[Any], Any], counted: list[int]) -> None:
    stock, own = twins()
    ready(own)
    other = copied(own)
    assert calls_of(other)._network() is other
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    compare(stock, own)
    compare(stock.apply(lambda m: [p.data.zero_() for p in m.parameters()]) or stock, other)
    tpgen.ready(other)
    compare(stock, other)
    assert len(counted) == 2


def _from_file(network: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(network, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_a_shallow_copy_is_called_as_itself() -> None:
    _, own = twins()
    ready(own)
    other = copy.copy(own)
    other.scale = 7.0
    assert not torch.equal(other(given())["energy"], own(given())["energy"])


def test_a_network_that_is_served_no_more_is_as_it_was(counted: list[int]) -> None:
    stock, own = twins()
    ready(own)
    assert own.state_dict().keys() == stock.state_dict().keys()
    serve_no_more(own)
    assert vars(own).keys() == vars(stock).keys()
    compare(stock, own)
    assert not counted


# --- what the network serves ------------------------------------------------------------------------------------------


class Noisy(Field):
    def forward(self, data: dict[str, Tensor], **options: Any) -> dict[str, Any]:
        found = super().forward(data, **options)
        return {**found, "energy": found["energy"] + torch.rand(())}


class Writes(Field):
    def forward(self, data: dict[str, Tensor], **options: Any) -> dict[str, Any]:
        data["species"].add_(1)
        return super().forward(data, **options)


class Decides(Field):
    def forward(self, data: dict[str, Tensor], **options: Any) -> dict[str, Any]:
        return super().forward(data, **options) if data["positions"].sum() < 1e9 else {}


class Indexes(Field):
    def forward(self, data: dict[str, Tensor], **options: Any) -> dict[str, Any]:
        return super().forward({**data, "species": torch.arange(99)[data["species"]]}, **options)


@pytest.mark.parametrize(
    ("network", "why"), [(Noisy, "random numbers"), (Writes, "writes into a tensor"), (Decides, "one program")]
)
def test_what_is_no_program_is_the_networks(network: type[nn.Module], why: str, counted: list[int]) -> None:
    own, stock = network().double(), network().double()
    serve(own, True)
    for _ in range(3):
        torch.manual_seed(1)
        found = own(given())
        torch.manual_seed(1)
        assert_same(found, stock(given()))
    assert why in kind_of(own).refused
    assert not counted


def test_errors_are_the_networks() -> None:
    stock, own = twins(Indexes)
    ready(own)
    for wrong in ({**given(), "species": torch.arange(5) + 100}, {"species": torch.arange(5)}):
        with pytest.raises((IndexError, KeyError)) as wanted:
            stock(dict(wrong))
        with pytest.raises(type(wanted.value)) as found:
            own(dict(wrong))
        assert str(found.value) == str(wanted.value)


OTHERWISE: dict[str, Callable[[nn.Module], Any]] = {
    "no_grad": lambda m: torch.no_grad()(m.forward_energies)(given()),
    "checkpoint": lambda m: checkpoint(m, given(), use_reentrant=False, forces=False)["energy"],
    "autocast": lambda m: _in(torch.autocast("cpu", torch.bfloat16), m.float(), torch.float32),
    "of others": lambda m: m({**given(), "positions": given()["positions"] * torch.ones(1, requires_grad=True)})[
        "energy"
    ],
    "anomaly": lambda m: _in(torch.autograd.detect_anomaly(), m),
}


def _in(mode: Any, network: nn.Module, dtype: torch.dtype = torch.float64) -> Tensor:
    data = given()
    with mode:
        return network({**data, "positions": data["positions"].to(dtype)})["energy"]


def _one() -> Tensor:
    return torch.ones(1, requires_grad=True)


class Energies(Field):
    def forward_energies(self, data: dict[str, Tensor]) -> Tensor:
        return self(data, forces=False)["energy"]


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("way", OTHERWISE)
def test_calls_that_somebody_records_are_as_ever(way: str) -> None:
    stock, own = twins(Energies)
    ready(own)
    ready(own, forces=False)
    found, wanted = OTHERWISE[way](own), OTHERWISE[way](stock)
    assert found.requires_grad == wanted.requires_grad
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    if wanted.requires_grad and "checkpoint" in way:
        for network, x in ((own, found), (stock, wanted)):
            x.backward()
            assert network.first.weight.grad is not None


def test_functional_calls_use_the_parameters_that_they_are_given() -> None:
    stock, own = twins()
    ready(own, forces=False)
    changed = {name: 1.5 * p for name, p in stock.named_parameters()}
    found, wanted = (torch.func.functional_call(m, changed, (given(),), {"forces": False}) for m in (own, stock))
    assert_same(found, wanted)


def test_objects_that_nobody_can_look_into_go_to_the_network() -> None:
    class Held:
        positions = given()["positions"]

    class OfObjects(nn.Module):
        def forward(self, held: Any) -> Tensor:
            return held.positions.sum()

    network = OfObjects()
    serve(network, True)
    assert network(Held()) == Held.positions.sum()
    assert not calls_of(network)._kinds


def test_the_network_itself_is_called_where_somebody_asks_for_it(counted: list[int]) -> None:
    _, own = twins()
    ready(own)
    with without_programs():
        own(given())
    assert not counted
    step = tpgen.compile_step(own)
    step(given())
    step(given(7))
    assert not counted


def test_the_outer_of_two_networks_is_served(counted: list[int]) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Field()

        def forward(self, data: dict[str, Tensor]) -> Tensor:
            return self.inner(data)["forces"] * 2

    stock, own = twins(Outer)
    serve(own.inner, True)
    for atoms in (5, 6):
        torch.testing.assert_close(own(given(atoms)), stock(given(atoms)), rtol=1e-12, atol=1e-12)
    assert len(counted) == 1
    assert not calls_of(own.inner)._kinds


# --- when -------------------------------------------------------------------------------------------------------------


class _Builder:
    """In the place of another process."""

    begun: ClassVar[list[_Builder]] = []

    def __init__(self, network: nn.Module, held: dict[str, Any]) -> None:
        pickle.dumps((network, held))
        self.done, self.why, self.ended = False, "", False
        self.begun.append(self)

    def works(self) -> bool:
        return not self.done

    def wait(self) -> None:
        self.done = True

    def failure(self) -> str:
        return self.why

    def end(self) -> None:
        self.ended = True


@pytest.fixture
def builders(monkeypatch: pytest.MonkeyPatch) -> list[_Builder]:
    monkeypatch.setattr(module, "Builder", _Builder)
    monkeypatch.setattr(_Builder, "begun", [])
    return _Builder.begun


def test_a_program_is_built_beside_calls_that_come_often(builders: list[_Builder], counted: list[int]) -> None:
    stock, own = twins(when="auto")
    for n in range(CALLS):
        assert len(builders) == 0, n
        own(given())
    (builder,) = builders
    for _ in range(3):
        compare(stock, own)
    assert not counted
    builder.done = True
    compare(stock, own)  # at the end of which it is taken
    compare(stock, own)
    assert len(counted) == 1
    assert builder.ended


def test_a_process_that_fails_leaves_calls_to_the_network(builders: list[_Builder]) -> None:
    stock, own = twins(when="auto")
    for _ in range(CALLS):
        own(given())
    builders[0].done, builders[0].why = True, "no compiler"
    for _ in range(2 * CALLS):
        own(given())
    compare(stock, own)
    assert kind_of(own).refused == "no compiler"
    assert len(builders) == 1


def test_ready_waits_for_the_process(builders: list[_Builder], counted: list[int]) -> None:
    _, own = twins(when="auto")
    for _ in range(CALLS):
        own(given())
    tpgen.ready(own)
    own(given())
    assert len(counted) == 1


def test_what_takes_long_gets_no_program(builders: list[_Builder], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.0)
    _, own = twins(when="auto")
    for _ in range(CALLS):
        own(given())
    tpgen.ready(own)
    assert not builders
    assert kind_of(own).program is None


def test_the_environment_asks_for_none(builders: list[_Builder], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPGEN_PROGRAM", "0")
    _, own = twins(when="auto")
    for _ in range(CALLS):
        own(given())
    assert not builders
    assert "TPGEN_PROGRAM" in kind_of(own).refused


def test_a_network_that_changes_is_counted_anew_and_longer(builders: list[_Builder]) -> None:
    _, own = twins(when="auto")
    for _ in range(CALLS):
        own(given())
    tpgen.ready(own)
    own.scale = 3.0
    for _ in range(3 * CALLS):
        own(given())
    assert len(builders) == 1
    for _ in range(2 * CALLS):
        own(given())
    assert len(builders) == 2


def test_what_cannot_be_pickled_is_built_by_ready(builders: list[_Builder], counted: list[int]) -> None:
    class Local(Field):
        pass

    stock, own = twins(Local, when="auto")
    for _ in range(2 * CALLS):
        own(given())
    assert not builders
    tpgen.ready(own)
    compare(stock, own)
    assert len(counted) == 1


def test_without_programs_results_are_the_same_bits() -> None:
    network = Field().double()
    serve(network, False)
    assert "_compiled_call_impl" not in vars(network)


def test_ready_takes_networks() -> None:
    with pytest.raises(tpgen.TpgenError, match="ready takes a torch"):
        tpgen.ready([])


# --- threads and processes --------------------------------------------------------------------------------------------


def test_threads_call_while_a_program_is_written(counted: list[int]) -> None:
    stock, own = twins()
    wanted = stock(given(7))
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: own(given(7)), range(40)):
            assert_same(found, wanted)
    own(given(7))
    assert counted


def test_a_network_that_is_called_for_long_is_written_later() -> None:
    _, own = twins()
    begun, end = threading.Event(), threading.Event()

    class Waits(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            begun.set()
            end.wait()
            return x

    own.first = nn.Sequential(own.first, Waits())
    waiting = threading.Thread(target=partial(own, given()))
    waiting.start()
    begun.wait()
    with calls_of(own)._gate.writing() as free:
        assert not free
    end.set()
    waiting.join()
    with calls_of(own)._gate.writing() as free:
        assert free


@pytest.fixture
def forked() -> Any:
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("no fork here")
    return multiprocessing.get_context("fork")


def _called(network: nn.Module, queue: Any) -> None:
    torch.set_num_threads(1)
    queue.put((network(given(7))["forces"].tolist(), len(calls_of(network)._kinds)))


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_process_begins_anew(forked: Any, builders: list[_Builder]) -> None:
    stock, own = twins(when="auto")
    for _ in range(CALLS):
        own(given())
    queue = forked.Queue()
    child = forked.Process(target=_called, args=(own, queue))
    child.start()
    forces, kinds = queue.get(timeout=60)
    child.join()
    assert kinds == 1
    torch.testing.assert_close(torch.tensor(forces).double(), stock(given(7))["forces"])
    assert not builders[0].done
