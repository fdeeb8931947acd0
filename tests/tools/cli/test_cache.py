"""``tpgen cache`` and ``tpgen tune``."""

from __future__ import annotations

import json
import os

import pytest
import torch
from e3nn.o3 import Irreps

from tests.machine import needs_compiler, needs_nvrtc
from tests.tools.cli.calls import run
from tpgen import Linear, SymmetricContraction, TensorProduct, TensorProductConv
from tpgen.nn.modules import build_module
from tpgen.planner.plan import Operand
from tpgen.planner.polynomial_plan import PolynomialTerm, make_polynomial_plan
from tpgen.planner.presets import channelwise

# a product that no other test has: kernels that are loaded already are not built again
PRODUCT = ["--preset", "channelwise", "--in1", "5x0e+7x1o", "--in2", "0e+1o", "--irreps-out", "0e+1o"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TPGEN_CACHE_DIR", str(tmp_path))


def _run(*arguments: str) -> str:
    return run(*arguments).stdout


@needs_compiler
def test_warm_info_and_clear(tmp_path) -> None:
    assert "2 kernels ready" in _run("cache", "warm", *PRODUCT)
    info = json.loads(_run("cache", "info", "--json"))
    assert (info["entries"], info["path"]) == (2, str(tmp_path / "kernels"))
    assert "2 kernels" in _run("cache", "info")
    assert _run("cache", "clear") == "removed 2 kernels\n"
    assert json.loads(_run("cache", "info", "--json"))["entries"] == 0


@needs_compiler
def test_the_kernels_of_a_polynomial_are_built_ahead(tmp_path) -> None:
    operands = [Operand("x", Irreps("0e+1o+1e")), Operand("out", Irreps("1o"))]
    plan = make_polynomial_plan(operands, [PolynomialTerm(("x", "x"), 0, "w")])
    (tmp_path / "plan.json").write_text(plan.to_json())
    assert "2 kernels ready" in _run("cache", "warm", "--plan", str(tmp_path / "plan.json"))
    module = build_module(plan, channels=4, strategy="kernel")
    given = [torch.randn(x.shape, requires_grad=True) for x in module.meta_operands(5)]
    module.call_on_operands(*given).sum().backward()
    assert json.loads(_run("cache", "info", "--json"))["entries"] == 2


@pytest.mark.parametrize("command", [["tune"], ["cache", "warm"]])
def test_what_could_not_be_kept_is_not_begun(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPGEN_CACHE_DIR", os.devnull)
    result = run(*command, *PRODUCT, code=2)
    assert f"nothing can be kept in the kernel cache {os.devnull}/kernels (" in result.stderr
    assert "set TPGEN_CACHE_DIR" in result.stderr


@needs_nvrtc
def test_kernels_for_gpus_need_no_gpu(tmp_path) -> None:
    assert "4 kernels ready" in _run("cache", "warm", *PRODUCT, "--arch", "sm_80,sm_90")
    assert sorted({file.suffix for file in (tmp_path / "kernels").iterdir()}) == [".cu", ".cubin", ".lock", ".sha256"]
    assert json.loads(_run("cache", "info", "--json"))["entries"] == 4
    assert json.loads(_run("cache", "warm", *PRODUCT, "--arch", "sm_80", "--conv", "--json"))["ready"] == 2
    found = json.loads(_run("cache", "warm", "small-contraction", "--arch", "sm_80", "--forces", "--json"))
    assert (found["ready"], json.loads(_run("cache", "info", "--json"))["entries"]) == (3, 9)


@needs_nvrtc
def test_a_network_builds_the_kernels_of_its_modules() -> None:
    where = f"{__name__}:network"
    found = json.loads(_run("cache", "warm", where, "--arch", "sm_75", "--json"))
    assert found["ready"] == 6
    (without,) = found["without"]
    assert without.startswith("wide: a row of this product needs")


def network() -> tuple:
    wide = channelwise("4096x0e+4096x1o+4096x2e", "0e+1o+2e", "0e+1o+2e", shared_weights=False)
    modules = {
        "wide": TensorProduct.from_plan(wide, strategy="grouped"),
        "conv": TensorProductConv("4x0e", "1o", "4x1o", [(0, 0, 0, "uvu", True)]),
        "linear": Linear("3x0e", "5x0e"),
        "contraction": SymmetricContraction("2x0e", "2x0e", 2),
    }
    return torch.nn.ModuleDict(modules), ()


def test_what_a_process_remembers() -> None:
    listed = json.loads(_run("cache", "process", "--json"))
    assert {"what", "count", "most", "stays", "unit"} == set(listed[0])
    assert "kernels of forms, by description" in _run("cache", "process")


@pytest.mark.parametrize("subject", [PRODUCT, ("harmonics",), ("mace-readout",)], ids=lambda given: given[0])
def test_tune_as_text_and_as_json(subject: tuple[str, ...]) -> None:
    arguments = ("tune", *subject, "--rows", "4", "--seconds", "0.05")
    assert "from now on" in _run(*arguments)
    assert json.loads(_run(*arguments, "--json"))["rows"] == 4


def test_bench_looks_for_the_folder_of_its_files_first(tmp_path) -> None:
    (tmp_path / "file").touch()
    result = run("bench", "mace-large", "--records", str(tmp_path / "file" / "a.json"), code=2)
    assert "is a file, not a folder" in " ".join(result.stderr.split())
