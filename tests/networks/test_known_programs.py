"""Records of programs that an earlier process built: right, spoilt, and in a directory that others can change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.networks.interpreted import interpreted  # noqa: F401  a fixture
from tests.networks.served import Field, given, kind_of
from tpgen.kernels.build import cache
from tpgen.networks import served
from tpgen.networks.comparison import SlowerProgramError
from tpgen.networks.kinds import CallKind
from tpgen.networks.known_programs import WEEK, are_libraries_cached, program_record, record_libraries


@pytest.fixture
def kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CallKind:
    monkeypatch.setenv("TPGEN_CACHE_DIR", str(tmp_path))
    (tmp_path / "kernels").mkdir(mode=0o700)
    network = Field().double()
    served.serve(network, "auto")
    network(given())
    return kind_of(network)


def test_a_record_holds_while_its_libraries_are_there(kind: CallKind) -> None:
    record = program_record(Field().double(), kind)
    assert not are_libraries_cached(record)
    record_libraries(record, [])
    assert not are_libraries_cached(record)
    record_libraries(record, ["0" * 32])
    assert not are_libraries_cached(record)
    library = cache.Entry(record.directory, "0" * 32, cache.PROGRAM).library
    library.write_bytes(b"")
    assert are_libraries_cached(record)
    assert not are_libraries_cached(program_record(Field(), kind))  # of another dtype
    record.file_with_suffix(cache.LIBRARY_NAMES).write_bytes(b"\xff\x00/../")
    assert not are_libraries_cached(record)
    cache.clear()
    assert not list(record.directory.glob("*" + cache.LIBRARY_NAMES))


@pytest.mark.parametrize("state", ["open to others", "missing"])
def test_calls_pass_by_a_directory_that_cannot_be_used(
    state: str, kind: CallKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "kernels"
    directory.chmod(0o777) if state == "open to others" else directory.rmdir()
    monkeypatch.delenv("TPGEN_PROGRAM")
    monkeypatch.setattr(served, "LONGEST_CALL", float("inf"))
    begun: list[object] = []
    monkeypatch.setattr(served, "ProgramBuilder", lambda *of: begun.append(of))
    network = Field().double()
    served.serve(network, "auto")
    for _ in range(12):
        network(given())
    assert begun
    record_libraries(program_record(network, kind), ["0" * 32])  # nothing is raised


@pytest.mark.usefixtures("kind", "interpreted")
@pytest.mark.parametrize(
    "atoms, age_s, refused",
    [
        (5, 0, "a long time, in an earlier process"),
        (5, WEEK - 3600, "a long time, in an earlier process"),
        (5, WEEK, ""),
        (40, 0, ""),
    ],
)
def test_a_slower_program_is_refused_at_once_next_time(
    atoms: int, age_s: int, refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TPGEN_PROGRAM")
    monkeypatch.setattr(served, "LONGEST_CALL", float("inf"))
    monkeypatch.setattr(served, "refuse_slower_program", _refuse)
    begun: list[object] = []
    monkeypatch.setattr(served, "ProgramBuilder", lambda *of: begun.append(of))
    first, later = Field().double(), Field().double()
    for network in (first, later):
        served.serve(network, "auto")
    first(given())
    served.ready(first)
    assert kind_of(first).refused == "a long time"
    (record,) = (tmp_path / "kernels").glob("*.refused")
    os.utime(record, (record.stat().st_atime, record.stat().st_mtime - age_s))
    for _ in range(12):
        later(given(atoms))
    assert kind_of(later).refused == refused
    assert bool(begun) == (not refused)


def _refuse(*_of: object) -> None:
    raise SlowerProgramError("a long time")


def test_a_scripted_module_has_a_record(kind: CallKind) -> None:
    """The class of a scripted module raises where its ``forward`` is asked for."""
    modules = (nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 4), nn.Sigmoid(), nn.Tanh(), nn.Tanh())
    records = [program_record(nn.Sequential(torch.jit.script(each)), kind) for each in modules]
    assert records[0] == records[1]
    assert records[4] == records[5]
    assert len({record.key for record in records}) == 4
