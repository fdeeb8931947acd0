"""A recorder that stands in for CUDA graphs on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor

from tpgen.networks import step_program, step_trace
from tpgen.networks.replays import RecordedRun, ReplayedRun, TensorRun


class Tape:
    """Repeats runs on the recorded memory, as a CUDA graph does; counts what it records."""

    def __init__(self, *_: Any) -> None:
        self.recorded, self.repeated, self.at = 0, 0, 0

    def stream(self) -> int:
        return self.at

    def record(self, run: TensorRun, inputs: Sequence[Tensor]) -> RecordedRun:
        self.recorded += 1
        outputs = list(run(*inputs))

        def repeat() -> None:
            self.repeated += 1
            for out, x in zip(outputs, run(*inputs), strict=True):
                out.copy_(x)

        return RecordedRun(inputs, outputs, repeat)


def programs_as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> Tape:
    """Let programs run as on a GPU, with neutral edges and recordings; return the recorder."""
    tape = Tape()

    def run_on_tape(parameters: int, program: Any, sizes: Any, inputs: Any) -> Any:
        held = sum(n < parameters for n in program.takes)
        return ReplayedRun(lambda *given: program.graph.forward(*(x.contiguous() for x in given)), held, tape), sizes

    monkeypatch.setattr(step_program, "_make_gpu_function_with_replays", run_on_tape)
    for module in (step_program, step_trace):
        monkeypatch.setattr(module, "on_gpu", lambda tensors: True)
    return tape
