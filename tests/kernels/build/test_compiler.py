"""Which compiler is taken, how a command of several words is read, and what names a library in the cache."""

from __future__ import annotations

import shlex
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from tests.kernels.test_build import run_product
from tpgen.base.errors import BackendError
from tpgen.kernels.build import compiler
from tpgen.kernels.build.build import LibraryRequest
from tpgen.kernels.build.compiler import find_compiler, need_compiler

GCC = "g++ (GCC) {}.1.0"


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler._first_usable_compiler.cache_clear()
    for name in ("TPGEN_CXX", "CXX", "TPGEN_TARGET"):
        monkeypatch.delenv(name, raising=False)


def program(path: Path, version: str, runs: str = "g++") -> Path:
    """A program that says a version, and else runs a compiler."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{version}" || exec {runs} "$@"\n')
    path.chmod(0o700)
    return path


def test_a_compiler_that_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = program(tmp_path / "old", GCC.format(8))
    monkeypatch.setenv("CXX", str(old))
    assert need_compiler().program != (str(old),)
    monkeypatch.setenv("TPGEN_CXX", str(old))
    with pytest.raises(BackendError, match="which is GCC before 9"):
        need_compiler()


@pytest.mark.parametrize("number, helped", [(9, True), (11, True), (12, False), (14, False)])
def test_old_gcc_gets_a_header_and_new_ones_none(
    number: int, helped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPGEN_CXX", str(program(tmp_path / "gcc", GCC.format(number))))
    assert ("-include" in need_compiler().base_command) is helped


def test_the_header_of_old_gcc_is_in_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPGEN_CXX", str(program(tmp_path / "gcc", GCC.format(10))))
    before = LibraryRequest("text").key(need_compiler())
    changed = tmp_path / "other.h"
    changed.write_text("// another shuffle")
    monkeypatch.setattr(compiler, "_OLD_GCC", changed)
    assert LibraryRequest("text").key(need_compiler()) != before


def test_a_command_of_several_words_runs(fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ccache, or a compiler that is an argument of another program."""
    before = program(tmp_path / "launcher", "g++ 13.1", runs="")
    before.write_text('#!/bin/sh\nshift; exec g++ "$@"\n')
    monkeypatch.setenv("TPGEN_CXX", f"{shlex.quote(str(before))} c++ -g0")
    assert need_compiler().program == (str(before), "c++", "-g0")
    run_product()


@pytest.mark.parametrize("variable", ["TPGEN_CXX", "CXX"])
def test_a_path_with_a_space_is_one_word(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spaced = program(tmp_path / "my compilers" / "g++", GCC.format(13))
    monkeypatch.setenv(variable, str(spaced))
    assert need_compiler().program == (str(spaced),)


def test_a_quote_that_is_not_closed_cannot_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPGEN_CXX", "g++ 'oh")
    with pytest.raises(BackendError, match="which cannot be run here"):
        need_compiler()


def test_words_behind_a_compiler_are_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = set()
    for command in ("g++", "g++ -fno-tree-vectorize"):
        monkeypatch.setenv("TPGEN_CXX", command)
        keys.add(LibraryRequest("text").key(need_compiler()))
    assert len(keys) == 2


def test_ziglang_is_taken_where_no_other_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zig = program(tmp_path / "ziglang" / "zig", "clang version 22.1.8")
    spec = ModuleSpec("ziglang", None, is_package=True)
    spec.submodule_search_locations = [str(zig.parent)]
    monkeypatch.setattr(compiler, "find_spec", {"ziglang": spec}.get)
    assert need_compiler().program[0] != str(zig)
    monkeypatch.setenv("PATH", "/nowhere")
    assert need_compiler().program == (str(zig), "c++")
    monkeypatch.setenv("TPGEN_CXX", "none")
    assert find_compiler() is None
