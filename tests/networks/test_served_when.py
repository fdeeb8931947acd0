"""When programs are built of calls, in which process, and among threads."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from typing import Any, ClassVar

import pytest
import torch
from e3nn import o3
from torch import Tensor, nn

import tpgen
from tests.networks.interpreted import interpreted  # noqa: F401  a fixture
from tests.networks.served import Field, assert_same, calls_of, compare, given, kind_of, twins
from tpgen.networks import comparison
from tpgen.networks import served as module
from tpgen.networks.kinds import ENOUGH_CALLS
from tpgen.networks.served import serve

pytestmark = pytest.mark.usefixtures("interpreted")


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
    monkeypatch.delenv("TPGEN_PROGRAM")
    monkeypatch.setattr(module, "ProgramBuilder", _Builder)
    monkeypatch.setattr(module, "LONGEST_CALL", inf)  # however busy the machine is
    monkeypatch.setattr(comparison, "SHARE_OF_NETWORK", inf)  # what nobody compiles is slow
    monkeypatch.setattr(_Builder, "begun", [])
    return _Builder.begun


def test_a_program_is_built_beside_calls_that_come_often(builders: list[_Builder], counted: list[int]) -> None:
    stock, own = twins(when="auto")
    for n in range(ENOUGH_CALLS):
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
    for _ in range(ENOUGH_CALLS):
        own(given())
    builders[0].done, builders[0].why = True, "no compiler"
    for _ in range(2 * ENOUGH_CALLS):
        own(given())
    compare(stock, own)
    assert kind_of(own).refused == "no compiler"
    assert len(builders) == 1


def test_ready_waits_for_the_process(builders: list[_Builder], counted: list[int]) -> None:
    _, own = twins(when="auto")
    for _ in range(ENOUGH_CALLS):
        own(given())
    tpgen.ready(own)
    own(given())
    assert len(counted) == 1


def test_what_takes_long_gets_a_program_from_ready_alone(
    builders: list[_Builder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_CALL", 0.0)
    _, own = twins(when="auto")
    for _ in range(ENOUGH_CALLS):
        own(given())
    assert not builders
    assert kind_of(own).program is None
    tpgen.ready(own)
    assert kind_of(own).program is not None


def test_the_environment_asks_for_none(builders: list[_Builder], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPGEN_PROGRAM", "0")
    _, own = twins(when="auto")
    for _ in range(ENOUGH_CALLS):
        own(given())
    assert not builders
    assert "TPGEN_PROGRAM" in kind_of(own).refused


def test_a_network_that_changes_is_counted_anew_and_longer(builders: list[_Builder]) -> None:
    _, own = twins(when="auto")
    for _ in range(ENOUGH_CALLS):
        own(given())
    tpgen.ready(own)
    own.scale = 3.0
    for _ in range(3 * ENOUGH_CALLS):
        own(given())
    assert len(builders) == 1
    for _ in range(2 * ENOUGH_CALLS):
        own(given())
    assert len(builders) == 2


def test_what_cannot_be_pickled_is_built_by_ready(builders: list[_Builder], counted: list[int]) -> None:
    class Local(Field):
        pass

    stock, own = twins(Local, when="auto")
    for _ in range(2 * ENOUGH_CALLS):
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
    for _ in range(ENOUGH_CALLS):
        own(given())
    queue = forked.Queue()
    child = forked.Process(target=_called, args=(own, queue))
    child.start()
    forces, kinds = queue.get(timeout=60)
    child.join()
    assert kinds == 1
    torch.testing.assert_close(torch.tensor(forces).double(), stock(given(7))["forces"])
    assert not builders[0].done


def test_convert_takes_no_other_words() -> None:
    network = nn.ModuleDict({"tp": o3.FullTensorProduct("1o", "1o")})
    with pytest.raises(tpgen.TpgenError, match='program: give "auto", True or False'):
        tpgen.convert(network, program="always")  # type: ignore[arg-type]
    assert vars(tpgen.restore(tpgen.convert(network, program=True))).keys() == vars(nn.ModuleDict()).keys()


def test_a_shallow_copy_builds_nothing() -> None:
    _, own = twins()
    own(given(), forces=False)
    other = copy.copy(own)
    tpgen.ready(other)
    assert kind_of(own).program is None


def test_a_layer_alone_is_called_as_it_is() -> None:
    layer = tpgen.convert(o3.Linear("2x0e", "3x0e"))
    assert "_tpgen_calls" not in vars(layer)
    network = tpgen.convert(nn.Sequential(o3.Linear("2x0e", "3x0e")))
    assert "_tpgen_calls" in vars(network)


def test_copies_and_conversions_name_what_torchscript_leaves_out_once() -> None:
    network = tpgen.convert(nn.Sequential(o3.Linear("2x0e", "3x0e")))
    names = vars(network)["__jit_ignored_attributes__"]
    copied = copy.deepcopy(copy.deepcopy(network))
    assert vars(copied)["__jit_ignored_attributes__"] == names == list(dict.fromkeys(names))
    assert "__jit_ignored_attributes__" not in vars(tpgen.restore(copied))
