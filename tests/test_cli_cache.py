"""``tpgen cache`` and ``tpgen tune``."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tests.machine import needs_compiler
from tpgen.cli import main

# a product that no other test has: kernels that are loaded already are not built again
PRODUCT = ["--preset", "channelwise", "--in1", "5x0e+7x1o", "--in2", "0e+1o", "--irreps-out", "0e+1o"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TPGEN_CACHE_DIR", str(tmp_path))


def _run(*arguments: str) -> str:
    result = CliRunner().invoke(main, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@needs_compiler
def test_warm_info_and_clear(tmp_path) -> None:
    assert "2 kernels ready" in _run("cache", "warm", *PRODUCT)
    info = json.loads(_run("cache", "info", "--json"))
    assert (info["entries"], info["path"]) == (2, str(tmp_path / "kernels"))
    assert "2 kernels" in _run("cache", "info")
    assert _run("cache", "clear") == "removed 2 kernels\n"
    assert json.loads(_run("cache", "info", "--json"))["entries"] == 0


def test_what_a_process_remembers() -> None:
    listed = json.loads(_run("cache", "process", "--json"))
    assert {"what", "count", "most", "stays", "unit"} == set(listed[0])
    assert "kernels of products, by description" in _run("cache", "process")


def test_tune_as_text_and_as_json() -> None:
    arguments = ("tune", *PRODUCT, "--rows", "4", "--seconds", "0.05")
    assert "from now on" in _run(*arguments)
    assert json.loads(_run(*arguments, "--json"))["rows"] == 4


def test_bench_looks_for_the_folder_of_its_files_first(tmp_path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(main, ["bench", "mace-large", "--records", str(tmp_path / "file" / "a.json")])
    assert (result.exit_code, "is a file, not a folder" in " ".join(result.stderr.split())) == (2, True)
