"""Programs that nobody compiles: their graphs are run as they stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from tpgen.networks import step_program
from tpgen.networks.sizes import InputSizes
from tpgen.networks.stages import GraphPart


def _interpreted(
    program: GraphPart, sizes: InputSizes, _inputs: list[Tensor], _saved: Any = ()
) -> tuple[Callable, InputSizes]:
    return lambda given: list(program.graph.forward(*given)), sizes


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let programs run without a compiler; returns a list that has an entry for each that is built."""
    built: list[int] = []
    monkeypatch.setattr(step_program, "library_of", lambda *of: (built.append(0), _interpreted(*of))[1])
    return built
