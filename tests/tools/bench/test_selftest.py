"""A report of the machine: what was found, checked and timed, and what a broken compiler or law looks like."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from tests.machine import needs_compiler
from tpgen.kernels.build.compiler import list_compilers, need_compiler
from tpgen.tools.bench import selftest as module
from tpgen.tools.bench.selftest import CHECKED, CHECKED_LAWS, selftest
from tpgen.tools.cli import main


@pytest.fixture(autouse=True)
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "slow" not in request.keywords:
        monkeypatch.setattr(module, "CHECKED", {"elementwise": torch.float32})
        monkeypatch.setattr(module, "TIMED", "article")
        monkeypatch.setattr(module, "_SECONDS", 0.0)


@needs_compiler
def test_it_says_what_it_found() -> None:
    done = CliRunner().invoke(main, ["selftest", "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["passed"] is True
    (check,) = found["checks"]
    assert (check["name"], check["dtype"], check["passed"], check["why"]) == ("elementwise", "float32", True, "")
    assert 0 <= check["error"] < 1
    assert found["timing"]["tpgen"] > 0
    assert found["timing"]["e3nn"] > 0
    assert found["compiler"].startswith(str(need_compiler()))
    assert found["environment"]["torch"] == torch.__version__
    text = str(selftest())
    assert "1 of 1 products are right" in text
    assert need_compiler().version in text


def test_a_broken_law_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECKED_LAWS", ("no such law",))
    done = CliRunner().invoke(main, ["selftest"], catch_exceptions=False)
    assert done.exit_code == 1
    assert "unknown law 'no such law'" in done.stdout
    assert "0 of 1 products are right" in done.stdout


@needs_compiler
def test_a_compiler_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken++"
    broken.write_text(
        '#!/bin/sh\nif [ "$1" = --version ]; then echo "broken 1.0"; else echo "no room" >&2; exit 1; fi\n'
    )
    broken.chmod(0o755)
    monkeypatch.setenv("TPGEN_CXX", str(broken))
    monkeypatch.setenv("TPGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "CHECKED", {"elementwise": torch.bfloat16})  # of which no other test has a kernel
    (check,) = selftest().checks
    assert "no room" in check.why
    assert list_compilers()[0] == (str(broken), "broken 1.0")


def test_without_a_compiler_graphs_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPGEN_CXX", "none")
    found = selftest()
    assert found.passed
    assert found.compiler == "TPGEN_CXX=none forbids one"


@pytest.mark.slow
@needs_compiler
def test_all_of_it_passes() -> None:
    found = selftest()
    assert found.passed, str(found)
    assert [check.name for check in found.checks] == list(CHECKED)
    assert len(CHECKED_LAWS) == 4
