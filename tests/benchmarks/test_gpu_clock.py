"""The clocks of `make gpu`, on a device that is not one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import gpu_clock
from benchmarks.gpu_clock import Clock, copies_beyond_cache, device_seconds, held_seconds, launch_seconds

WORK = 2e-5  # seconds that the device takes for a call


class Queue:
    """A device that does one thing after the other, by its own clock, and a host by another."""

    def __init__(self, host: float, waits: bool = False) -> None:
        self.host, self.waits, self.now, self.free = host, waits, 0.0, 0.0

    def give(self, work: float) -> None:
        self.free = max(self.free, self.now) + work

    def call(self) -> None:
        self.now += self.host
        self.give(WORK)
        if self.waits:
            self.synchronize()

    def synchronize(self) -> None:
        self.now = max(self.now, self.free)

    def event(self, enable_timing: bool) -> Any:
        event = SimpleNamespace(at=0.0, synchronize=self.synchronize, query=lambda: event.at <= self.now)
        event.record = lambda: setattr(event, "at", max(self.free, self.now))
        event.elapsed_time = lambda other: 1e3 * (other.at - event.at)
        return event


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Queue:
    made = Queue(*request.param)
    monkeypatch.setattr(torch.cuda, "Event", made.event)
    monkeypatch.setattr(torch.cuda, "synchronize", made.synchronize)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: made.give(cycles / gpu_clock._CYCLES))
    monkeypatch.setattr(gpu_clock, "time", SimpleNamespace(perf_counter=lambda: made.now))
    return made


@pytest.mark.parametrize("queue", [(1e-6,), (1e-4,)], indirect=True)
def test_what_python_takes_is_not_measured(queue: Queue) -> None:
    assert held_seconds([queue.call] * 3) == pytest.approx(WORK)
    assert device_seconds([queue.call], "cuda", 1.0) == (pytest.approx(WORK), True)


@pytest.mark.parametrize("queue", [(1e-4, True)], indirect=True)
def test_a_call_that_waits_is_measured_from_python_and_that_is_said(queue: Queue) -> None:
    assert held_seconds([queue.call] * 3) is None
    assert device_seconds([queue.call], "cuda", 0.5) == (0.5, False)


def test_calls_take_turns_and_their_results_stay_for_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(1e-6)
    monkeypatch.setattr(torch.cuda, "Event", queue.event)
    monkeypatch.setattr(torch.cuda, "synchronize", queue.synchronize)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: queue.give(cycles))
    seen = []
    calls = [lambda n=n: seen.append(n) for n in range(30)]
    held_seconds(calls)
    assert seen[:60] == [*range(30), *range(30)]


def test_a_processor_has_no_time_of_a_device() -> None:
    assert device_seconds([lambda: None], "cpu", 0.25) == (0.25, False)


@pytest.mark.parametrize(("size", "copies"), [(1, 32), (100, 3), (1000, 2)])
def test_operands_are_together_three_times_the_cache(size: int, copies: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=100))
    assert copies_beyond_cache(size, "cuda") == copies


def test_a_launch_is_measured_beside_an_empty_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(0.0)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: queue.give(1e-6))
    monkeypatch.setattr(gpu_clock, "recorded", lambda chain: (None, chain))

    def seconds_of(replay: Any, device: str, seconds: float) -> float:
        before = queue.free
        replay()
        return queue.free - before

    monkeypatch.setattr(gpu_clock, "seconds_of", seconds_of)
    assert launch_seconds(queue.call) == (pytest.approx(WORK), pytest.approx(1e-6))


def test_a_step_has_a_part_of_the_time() -> None:
    clock = Clock(100)
    assert 39 < clock.until(0.4).left <= 40
    assert clock.until(0.0).left == 0
