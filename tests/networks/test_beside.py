"""Programs that another process compiles: it finds what it needs, says why it failed, and ends with this one."""

from __future__ import annotations

import os
import subprocess
import sys
from math import inf
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from torch import Tensor, nn

import tpgen
from tests.machine import needs_compiler
from tests.networks.served import Field, compare, given, kind_of, twins
from tpgen.networks import comparison, libraries, served
from tpgen.networks.beside import ProgramBuilder, _renumber_sources_of_call
from tpgen.networks.gradients import GradientRequest
from tpgen.networks.kinds import ENOUGH_CALLS


class Decides(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if float(x.sum()) > 0 else -x


def _held() -> dict[str, Any]:
    return {"args": (given(),), "options": {}, "grad": True}


def test_a_process_that_is_ended_leaves_nothing() -> None:
    builder = ProgramBuilder(Field().double(), _held())
    folder, process = builder._folder, builder._process
    assert builder.works()
    assert folder.exists()
    builder.end()
    assert process.returncode
    assert not folder.exists()


def test_sources_of_a_call_follow_more_buffers_of_a_copy() -> None:
    request = GradientRequest.from_numbers([0], [1, 4, 6])  # of four parameters and buffers, then of the call
    assert _renumber_sources_of_call((request,), 4, 7) == (GradientRequest.from_numbers([0], [1, 7, 9]),)


def test_what_cannot_be_pickled_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    network = Field()
    network.inner = Lock()  # type: ignore[assignment]
    with pytest.raises(TypeError, match="lock"):
        ProgramBuilder(network, _held())
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_process_says_why_it_failed() -> None:
    builder = ProgramBuilder(Decides(), {"args": (given()["positions"],), "options": {}, "grad": True})
    builder.wait()
    assert "forward asks for a number of a tensor (at test_beside.py" in builder.failure()
    builder.end()


@needs_compiler
@pytest.mark.slow
def test_a_program_that_another_process_compiled_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TPGEN_PROGRAM")
    monkeypatch.setattr(served, "LONGEST_CALL", inf)
    monkeypatch.setattr(comparison, "SHARE_OF_NETWORK", inf)
    stock, own = twins(when="auto")
    for _ in range(ENOUGH_CALLS):
        own(given())

    def refuse(*_: Any) -> None:
        raise AssertionError("compiled here")

    monkeypatch.setattr(libraries, "_compile_graph", refuse)
    tpgen.ready(own)
    assert kind_of(own).program is not None, kind_of(own).refused
    compare(stock, own)

    # one like it takes these libraries at once, and calls for a process where one is gone
    begun: list[Any] = []
    monkeypatch.setattr(served, "ProgramBuilder", lambda *of: begun.append(of))
    for _ in range(2):
        _, like = twins(when="auto")
        for _ in range(ENOUGH_CALLS):
            like(given())
        assert (kind_of(like).program is None) == bool(begun), kind_of(like).refused
        for file in (tmp_path / "kernels").glob("*.pt2"):
            file.write_bytes(b"")
    assert len(begun) == 1


_OF_A_SCRIPT = """
import torch
import tpgen
from tpgen.networks import comparison, libraries, served

FACTOR = 2.0

def scaled(x):
    return FACTOR * x

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.function = lambda x: scaled(x).tanh()

    def forward(self, x):
        return self.function(x)

def refuse(*_):
    raise AssertionError("compiled here")

libraries._compile_graph, comparison.SHARE_OF_NETWORK = refuse, float("inf")
network, x = Net(), torch.linspace(0, 1, 5)
served.serve(network, "auto")
for _ in range(10):
    network(x)
tpgen.ready(network)
((kind,),) = vars(network)["_tpgen_calls"]._kinds.values()
assert kind.program is not None, kind.refused
assert torch.allclose(network(x), (2 * x).tanh())
print(kind.program.title)
"""


@needs_compiler
@pytest.mark.slow
def test_classes_and_functions_of_a_script_are_taken_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TPGEN_PROGRAM")
    script = tmp_path / "script.py"
    script.write_text(_OF_A_SCRIPT)
    environment = {**os.environ, "TPGEN_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout == "Net\n", done.stderr


_ENDS = """
import sys
import torch
from tests.networks.served import Field, given
from tpgen.networks import served
served.LONGEST_CALL = float("inf")
network = Field().double()
served.serve(network, "auto")
for _ in range(10):
    network(given())
((kind,),) = vars(network)["_tpgen_calls"]._kinds.values()
print(kind.builder._process.pid, kind.builder._folder)
"""


@pytest.mark.slow
def test_a_process_ends_with_the_one_that_began_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TPGEN_PROGRAM")
    done = subprocess.run([sys.executable, "-c", _ENDS], capture_output=True, text=True, check=True)
    number, folder = done.stdout.split()
    assert not Path(folder).exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(number), 0)
    assert not done.stderr
