"""Measured choices: remembered, preferred over the model, and never trusted blindly."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from tpgen.compiler import tuning
from tpgen.compiler.autotune import choose_strategy
from tpgen.compiler.config import Config
from tpgen.compiler.tuning import _find_file_of_measured_choice, read_measured_choice
from tpgen.kernels.build import cache
from tpgen.nn.modules import build_module, list_size_keywords
from tpgen.planner.harmonics import make_harmonics_plan
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise

PLAN = channelwise("4x0e+4x1o", "0e+1o", "0e+1o")
PLANS = {
    "product": PLAN,
    "layer": make_linear_plan("4x0e+4x1o", "2x0e+2x1o"),
    "channels": make_linear_plan("4x0e", "2x0e", f_in=3, f_out=2),
    "polynomial": make_harmonics_plan("1o", [0, 1, 2], "norm"),
}


@pytest.fixture
def config(tmp_path, monkeypatch) -> Config:
    monkeypatch.setenv("TPGEN_CACHE_DIR", str(tmp_path))
    return Config()


@pytest.mark.parametrize("plan", PLANS.values(), ids=list(PLANS))
def test_modules_of_any_plan_take_what_was_measured(plan: Plan, config: Config) -> None:
    cache.write_atomically(
        _find_file_of_measured_choice(plan.flat, config, cache.open_cache_directory()), json.dumps(_entry("unrolled"))
    )
    module = build_module(plan, **list_size_keywords(plan))
    assert module.choice.strategy == "unrolled"
    assert "measured" not in module.double().choice.reason


def test_a_choice_is_for_one_layout_dtype_and_backend(config: Config) -> None:
    cache.write_atomically(
        _find_file_of_measured_choice(PLAN, config, cache.open_cache_directory()), json.dumps(_entry("einsum"))
    )
    assert choose_strategy(PLAN, config).strategy == "einsum"
    for other in ({"layout": "ir_mul"}, {"dtype": torch.float64}, {"backend": "aot_eager"}):
        assert read_measured_choice(PLAN, replace(config, **other)) is None


def test_a_choice_is_for_one_kind_of_gpu(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["H200", "A40"]
    monkeypatch.setattr(tuning, "gpu_name", lambda device: names[device.index])
    one, other = (replace(config, device=f"cuda:{n}") for n in range(2))
    cache.write_atomically(
        _find_file_of_measured_choice(PLAN, one, cache.open_cache_directory()), json.dumps(_entry("einsum"))
    )
    assert read_measured_choice(PLAN, one).strategy == "einsum"
    assert read_measured_choice(PLAN, other) is None
    names[1] = "H200"
    assert read_measured_choice(PLAN, other).strategy == "einsum"


def test_a_name_that_is_asked_for_is_kept(config: Config) -> None:
    cache.write_atomically(
        _find_file_of_measured_choice(PLAN, config, cache.open_cache_directory()), json.dumps(_entry("einsum"))
    )
    assert choose_strategy(PLAN, replace(config, strategy="unrolled")).strategy == "unrolled"


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"strategy": "gone", "milliseconds": 1, "rows": 2}),
                                  json.dumps({"strategy": ["einsum"], "milliseconds": 1})])  # fmt: skip
def test_a_damaged_file_is_passed_over(config: Config, text: str) -> None:
    cache.write_atomically(_find_file_of_measured_choice(PLAN, config, cache.open_cache_directory()), text)
    assert read_measured_choice(PLAN, config) is None


def _entry(strategy: str) -> dict:
    return {"strategy": strategy, "milliseconds": 1.0, "rows": 8}
