"""GPU programs: traced graphs, as CUDA graphs once sizes repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from logging import getLogger
from threading import Lock
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

TensorRun = Callable[..., Sequence[Tensor]]  # from tensors to tensors, without effects
_IN_A_ROW = 3  # calls of equal sizes, before these are recorded
_KEPT = 16  # recordings of a program, the last used ones
_MOST = 64  # recordings that a program makes: its sizes change too often for more
_log = getLogger("tpgen")


def on_gpu(tensors: Iterable[Tensor]) -> bool:
    """Whether any tensor is on a GPU."""
    return any(x.is_cuda for x in tensors)


class RecordedRun(NamedTuple):
    """Recorded run: tensors read, tensors written, and a function that repeats the run."""

    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    repeat: Callable[[], object]


class RunRecorder(Protocol):
    """Records a function's run on tensors, to be repeated."""

    def stream(self) -> int:
        """The current stream."""

    def record(self, run: TensorRun, inputs: Sequence[Tensor]) -> RecordedRun:
        """Record a run, or raise `RuntimeError`."""


@dataclass(eq=False)
class CudaGraphs:
    """Records CUDA graphs, which share memory per stream."""

    device: torch.device
    _sides: dict[int, tuple[Any, Any]] = field(default_factory=dict)  # a stream to record on, and a pool of memory

    def stream(self) -> int:
        """CUDA's current stream as a number."""
        return torch.cuda.current_stream(self.device).cuda_stream

    def record(self, run: TensorRun, inputs: Sequence[Tensor]) -> RecordedRun:
        """Record a run as a CUDA graph, after one warm-up."""
        with torch.cuda.device(self.device):
            here, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
            if self.stream() not in self._sides:
                self._sides[self.stream()] = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
            side, pool = self._sides[self.stream()]
            side.wait_stream(here)
            with torch.cuda.stream(side):
                run(*inputs)  # creates what a recording cannot, such as handles of libraries
            here.wait_stream(side)
            with (
                torch.cuda.stream(here),  # which a recording that fails would leave
                torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"),
            ):
                outputs = run(*inputs)

        def replay_graph() -> None:
            with torch.cuda.device(self.device):
                graph.replay()

        return RecordedRun(inputs, outputs, replay_graph)


@dataclass(eq=False)
class ReplayedRun:
    """Function of tensors, recorded after three calls of equal sizes; the first ``parameters`` inputs stay in place."""

    run: TensorRun
    parameters: int
    recorder: RunRecorder
    _lock: Lock = field(default_factory=Lock)
    _recordings: dict[tuple, RecordedRun] = field(default_factory=dict)
    _last: tuple = ()
    _fixed: tuple = ()  # in all recordings: places of parameters, and settings of torch
    _in_a_row: int = 0
    _left: int = _MOST

    def __call__(self, given: list[Tensor]) -> list[Tensor]:
        """Compute the results."""
        with self._lock:
            recording = self._find_or_make_recording(given)
            if recording is not None:
                for own, x in zip(recording.inputs[self.parameters :], given[self.parameters :], strict=True):
                    own.copy_(x)
                recording.repeat()
                return [x.clone() for x in recording.outputs]
        return list(self.run(*given))

    def _find_or_make_recording(self, inputs: Sequence[Tensor]) -> RecordedRun | None:
        places = ((x.data_ptr(), x.stride()) for x in inputs[: self.parameters])
        fixed = *places, torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()
        if fixed != self._fixed:
            self._recordings.clear()
            self._fixed, self._last = fixed, ()
        key = self.recorder.stream(), *[x.shape for x in inputs[self.parameters :]]
        self._in_a_row = self._in_a_row + 1 if key == self._last else 1
        self._last = key
        found = self._recordings.pop(key, None)
        if found is None and self._in_a_row >= _IN_A_ROW and self._left:
            found = self._record_or_give_up(inputs)
        if found is not None:
            self._recordings[key] = found
            if len(self._recordings) > _KEPT:
                del self._recordings[next(iter(self._recordings))]
        return found

    def _record_or_give_up(self, given: Sequence[Tensor]) -> RecordedRun | None:
        self._left -= 1
        inputs = [*given[: self.parameters], *(x.clone() for x in given[self.parameters :])]
        try:
            return self.recorder.record(self.run, inputs)
        except RuntimeError as error:
            self._left = 0
            _log.info("a program runs operation by operation, as it cannot be recorded: %s", error)
            return None
