"""Large kernels compiled as several units: one library, the same bits, nothing left behind."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
import torch

from tests.kernels.plans import call, operands
from tpgen.base.errors import KernelError
from tpgen.kernels.cpp.parts import translation_unit_flags
from tpgen.kernels.build import build
from tpgen.kernels.runtime.ops import describe, kernel_source
from tpgen.kernels.runtime.runtime import Kernels
from tpgen.planner.presets import channelwise

_NARROW = "+".join(f"1x{degree}{'eo'[degree % 2]}" for degree in range(5))
LARGE = channelwise(_NARROW.replace("1x", "8x"), _NARROW, _NARROW, shared_weights=False)
SMALL = channelwise("8x0e+8x1o", "0e+1o", "0e+1o")


def test_units_of_large_texts_have_all_lines_between_them() -> None:
    text = kernel_source(LARGE).text
    flags = translation_unit_flags(text, 3)
    assert [first[1][-4:] for first in flags[:-1]] == [second[0][-4:] for second in flags[1:]]
    assert flags[0][0] == f"-DTPGEN_FROM={text[: text.index('#if IN_UNIT')].count(chr(10)) + 1}"
    assert flags[-1][1] == f"-DTPGEN_TO={text.count(chr(10)) + 2}"
    assert all(unit[2:] == ["-O1"] for unit in flags)
    assert translation_unit_flags(text, 1) == [["-O1"]]  # however many units, the same code
    assert translation_unit_flags(kernel_source(SMALL).text, 3) == [[]]


def test_any_number_of_units_gives_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, found = call("x1 x2 w", *operands(LARGE, 5, torch.float32).values()), []
    for count in (1, 2, 3):
        directory = tmp_path / str(count)  # of its own: a library is loaded from a path once
        monkeypatch.setenv("TPGEN_CACHE_DIR", str(directory))
        monkeypatch.setattr(build, "count_cores", lambda count=count: count)
        monkeypatch.setattr(build, "_loaded", {})
        found.append([x for x in Kernels(describe(LARGE)).run(given) if x is not None])
        files = list((directory / "kernels").iterdir())
        (source,) = (file for file in files if file.suffix == ".cpp" and "IN_UNIT" in file.read_text())
        made = [file.suffix for file in files if file.stem == source.stem]
        assert sorted(made) == [".cpp", ".lock", ".sha256", ".so"]
        assert not [file for file in files if file.suffix == ".o"]
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


def test_a_unit_that_fails_shows_its_command_and_the_source(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "bad-compiler"
    script.write_text(
        """#!/bin/sh
case "$*" in *TPGEN_FROM=*) echo 'kernel.cpp:1: error: no such unit' >&2; exit 1;; esac
"""
    )
    script.chmod(0o755)
    monkeypatch.setenv("TPGEN_CXX", str(script))
    monkeypatch.setattr(build, "count_cores", lambda: 3)
    with pytest.raises(KernelError, match=r"(?s)TPGEN_FROM=.* -c .*error: no such unit.*source kept at") as caught:
        build.load_kernel(kernel_source(LARGE, direction="backward").text)
    kept = Path(str(caught.value).split("kept at ")[1].split("\n")[0])
    assert all(f"// path {path.index}: " in kept.read_text() for path in LARGE.paths)
    assert not [file for file in fresh.iterdir() if ".o-" in file.name or ".so" in file.name]


def test_a_terminal_hears_once_why_first_calls_are_slow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "_announced", threading.Event())
    build._announce_first_compilation()
    assert capsys.readouterr().err == "", "a file or a pipe is told nothing"
    monkeypatch.setattr(build, "_announced", threading.Event())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    build._announce_first_compilation()
    build._announce_first_compilation()
    assert capsys.readouterr().err.count("tpgen compiles kernels, once for this machine") == 1
