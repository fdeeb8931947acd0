"""Kernels that `make gpu` compiles before its checks."""

from __future__ import annotations

import pytest
import torch

from benchmarks import gpu_checks, gpu_times
from benchmarks.gpu_build import FIRST, TWICE, build_all, wanted_of
from tests.machine import needs_compiler
from tpgen.form.form import form_of
from tpgen.kernels.cuda.nvrtc import find_nvrtc
from tpgen.kernels.runtime.description import read_description
from tpgen.kernels.runtime.ops import describe
from tpgen.kernels.runtime.runtime import Kernels, kernels_of
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise
from tpgen.planner.product import make_plan

WEIGHTED = channelwise("3x0e+3x1o", "0e+1o", "0e+1o", shared_weights=False)
BARE = make_plan("5x0e", "1o", "5x1o", [(0, 0, 0, "uvu", False)])


@needs_compiler
@pytest.mark.parametrize("plan", [WEIGHTED, BARE])
@pytest.mark.parametrize("indexed", [False, True])
def test_the_kernels_that_checks_call_are_those_that_are_built(
    plan: Plan, indexed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a GPU, where second derivatives are expanded into gradients."""
    monkeypatch.setattr(Kernels, "fuses_second_derivatives", lambda *_: False)
    dtype = torch.float64
    if indexed:
        given, graph = gpu_times.convolution(plan, 40, "cpu", dtype)
        list(gpu_checks.convolutions(plan, given, graph))
    else:
        list(gpu_checks.compared(plan, "mul_ir", dtype, "cpu"))
    kernels = kernels_of(describe(plan, "mul_ir"))._kernels
    calls = [call for call, of, rules, _ in kernels if of == dtype and bool(rules) == indexed]
    called = {tuple(slot.operand for slot in call.opened) for call in calls}
    assert called == {one.opened for one in wanted_of(plan, "mul_ir", dtype, TWICE, indexed)}


@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
def test_they_are_of_the_form_that_is_called(layout: str) -> None:
    assert form_of(WEIGHTED, layout) == read_description(describe(WEIGHTED, layout)).form


def test_every_check_and_every_kind_of_it_is_among_them() -> None:
    kernels = list(gpu_checks.kernels_to_build())
    kinds = {(one.dtype, one.layout, one.indexed) for one in kernels}
    assert len(kinds) == 12
    assert not any(one.opened not in FIRST and one.plan.weight_numel for one in kernels if one.dtype == torch.bfloat16)


@pytest.mark.slow
@pytest.mark.skipif(find_nvrtc() is None, reason="needs NVRTC")
def test_processes_compile_and_stop_with_the_time() -> None:
    kernels = wanted_of(BARE, "mul_ir", torch.float32)
    assert build_all(kernels, 90, 300) == len(kernels) == 2
    assert build_all(kernels, 90, 0) == 0
