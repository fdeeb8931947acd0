"""The clock that all inspection shares: it waits for a GPU, wherever one is used."""

import pytest
import torch
from torch import nn

from tpgen.inspection import clock


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices that were waited for."""
    found: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", found.append)
    return found


def test_a_gpu_is_waited_for_before_and_after_a_call(waited: list[str]) -> None:
    assert clock.timed(lambda: waited.append("called"), "cuda:0") >= 0
    assert waited == ["cuda:0", "called", "cuda:0"]
    clock.timed(lambda: None)
    assert len(waited) == 3


def test_every_timer_waits(waited: list[str]) -> None:
    clock.best_seconds(lambda: None, "cuda:0", 0.0)
    best = len(waited)
    assert best >= 4
    clock.median_seconds({"a": lambda: None, "b": lambda: None}, rounds=2, device="cuda:0", warm=1)
    assert len(waited) - best == 2 * 2 * 3


def test_the_device_is_that_of_any_tensor_within() -> None:
    assert clock.device_of(nn.ReLU(), [{"x": torch.ones(1)}]) == "cpu"
    assert clock.device_of(nn.ReLU(), [{"x": torch.ones(1, device="meta")}]) == "meta"
    assert clock.device_of(nn.Linear(1, 1, device="meta")) == "meta"


def test_calls_take_turns() -> None:
    order: list[str] = []
    found = clock.median_seconds({name: lambda name=name: order.append(name) for name in "ab"}, rounds=2, warm=1)
    assert order == list("ababab")
    assert set(found) == {"a", "b"}
