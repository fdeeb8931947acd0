"""Stages of kernels for a GPU, which need none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from tests.machine import needs_nvrtc
from tpgen.base.errors import BackendError, EmitError
from tpgen.emitter.emit import DIRECTIONS
from tpgen.planner.presets import channelwise, fully_connected
from tpgen.tools.inspection.stages import cuda
from tpgen.tools.inspection.stages.dump import dump_stage
from tpgen.tools.inspection.stages.provenance import provenance
from tpgen.tools.inspection.stages.request import JOINT

PLAN = channelwise("4x0e+2x1o", "0e+1o", "0e+1o")


@pytest.mark.parametrize("direction", [d for d in (*DIRECTIONS, *JOINT) if d != "right"])
def test_every_direction_has_its_text(direction: str) -> None:
    text = dump_stage(PLAN, "cuda", direction)
    assert 'extern "C" __global__ void' in text
    assert text == dump_stage(PLAN, "cuda", direction)
    assert ("call.src[edge]" in text) == direction.startswith("conv")


@needs_nvrtc
def test_ptx() -> None:
    assert ".visible .entry tpgen_kernel" in dump_stage(PLAN, "ptx")


@needs_nvrtc
def test_instructions_serve_what_their_line_serves() -> None:
    traced = provenance(PLAN, ["cuda", "ptx"], strategy="kernel")
    ptx = traced.stage("ptx")
    assert ptx.explained == 1.0
    assert not any(".loc" in line for line in ptx.lines)
    for path in PLAN.paths:
        own = [ptx.lines[n - 1] for n in ptx.lines_of(path.index)]
        assert any("fma" in line or "mul" in line for line in own), "a path multiplies"


@needs_nvrtc
@pytest.mark.skipif(shutil.which("sh") is None, reason="no shell to stand in for nvdisasm")
def test_sass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "find_disassemblers", lambda: iter(()))
    with pytest.raises(BackendError, match=r"'sass'.*CUDA"):
        dump_stage(PLAN, "sass")
    tool = tmp_path / "nvdisasm"
    tool.write_text('#!/bin/sh\nhead -c 4 "$2" | tail -c 3\n')
    tool.chmod(0o700)
    monkeypatch.setattr(cuda, "find_disassemblers", lambda: iter([str(tool)]))
    assert dump_stage(PLAN, "sass") == "ELF"
    tool.write_text("#!/bin/sh\necho it cannot >&2\nexit 1\n")
    with pytest.raises(BackendError, match="nvdisasm failed: it cannot"):
        dump_stage(PLAN, "sass")


def test_what_has_no_kernel_says_so() -> None:
    large = fully_connected("256x0e", "64x0e", "256x0e", shared_weights=False)
    with pytest.raises(EmitError, match="bytes of shared memory, and a block of sm_90 has"):
        dump_stage(large, "cuda")
    with pytest.raises(BackendError, match=r"float32, float64 or bfloat16.*float16"):
        dump_stage(PLAN, "cuda", dtype=torch.float16)
