"""The clock that all inspection shares: it waits for a GPU, wherever one is used."""

import time

import pytest
import torch
from torch import nn

from tpgen.base import clock


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices that were waited for."""
    found: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", found.append)
    return found


def test_a_gpu_is_waited_for_before_and_after_a_call(waited: list[str]) -> None:
    assert clock.time_calls(lambda: waited.append("called"), "cuda:0") >= 0
    assert waited == ["cuda:0", "called", "cuda:0"]
    clock.time_calls(lambda: None, "cpu")
    assert len(waited) == 3


def test_the_clock_waits_around_each_sample(waited: list[str]) -> None:
    clock.time_in_turns({"a": lambda: None, "b": lambda: None}, "cuda:0", repeats=3)
    assert len(waited) == 2 * 2 * 3


def test_the_device_is_that_of_any_tensor_within() -> None:
    assert clock.find_device(nn.ReLU(), [{"x": torch.ones(1)}]) == "cpu"
    assert clock.find_device(nn.ReLU(), [{"x": torch.ones(1, device="meta")}]) == "meta"
    assert clock.find_device(nn.Linear(1, 1, device="meta")) == "meta"


def test_one_hiccup_changes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round of calls gets a sample, however long one of them took; the median forgets it."""
    passed = iter([0.0, 30.0, *(1e-5,) * 1000])
    seconds = [0.0]

    def call() -> None:
        seconds[0] += next(passed)

    monkeypatch.setattr(clock, "choose_clock", lambda device: lambda device: seconds[0])
    monkeypatch.setattr(clock, "_count_calls_per_sample", lambda *given: 1)
    found = clock.time_in_turns({"a": call}, "cpu", rounds=9)["a"]
    assert len(found.samples) == 9
    assert found.median == pytest.approx(1e-5)


@pytest.mark.parametrize("times, rough", [((1.0, 1.1, 1.0, 1.2, 1.1), False), ((1.0, 2.0, 1.0, 2.0, 3.0), True)])
def test_times_that_lie_apart_are_rough(times: tuple[float, ...], rough: bool) -> None:
    assert (clock.Timing(times, 1).spread > clock.ROUGH) is rough


def test_one_thread_is_timed_without_what_other_programs_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine: between a call's beginning and its end, others compute for a second."""
    wall, processor = [0.0], [0.0]

    def call() -> None:
        wall[0] += 1.0
        processor[0] += 1e-3

    monkeypatch.setattr(time, "perf_counter", lambda: wall[0])
    monkeypatch.setattr(time, "process_time", lambda: processor[0])
    for threads, wanted in ((1, 1e-3), (2, 1.0)):
        with clock.with_threads(threads):
            assert clock.time_in_turns({"a": call}, "cpu", repeats=5)["a"].median == pytest.approx(wanted)
    with clock.with_threads(1):
        assert clock.choose_clock("cuda:0") is clock.now


def test_several_threads_are_in_doubt_where_others_take_their_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, taken = [0.0], [0]

    def call() -> None:
        wall[0] += 0.1
        taken[0] += 30

    monkeypatch.setattr(time, "perf_counter", lambda: wall[0])
    monkeypatch.setattr(time, "process_time", lambda: wall[0])
    monkeypatch.setattr(clock, "_count_preemptions_of_process", lambda: taken[0])
    found = {}
    for threads in (1, 2):
        with clock.with_threads(threads):
            found[threads] = clock.time_in_turns({"a": call}, "cpu", repeats=5)["a"].doubt
    assert found == {1: "", 2: "other programs took the processor 300 times a second"}


def test_threads_are_as_before() -> None:
    before = torch.get_num_threads()
    with clock.with_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        with clock.with_threads(None):
            assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
