"""Measured choices: remembered, preferred over the model, and never trusted blindly."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from tpgen.compiler import tuning
from tpgen.compiler.autotune import choose_strategy
from tpgen.compiler.config import Config
from tpgen.compiler.tuning import _file, measured_choice, tune
from tpgen.emitter.strategies import STRATEGIES
from tpgen.kernels.build import cache
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.presets import channelwise

PLAN = channelwise("4x0e+4x1o", "0e+1o", "0e+1o")


@pytest.fixture
def config(tmp_path, monkeypatch) -> Config:
    monkeypatch.setenv("TPGEN_CACHE_DIR", str(tmp_path))
    return Config()


def test_the_fastest_is_remembered_and_taken(config: Config) -> None:
    assert measured_choice(PLAN, config) is None
    made = tune(PLAN, config, rows=8, seconds=0.05)
    assert set(made.milliseconds) | set(made.left_out) == set(STRATEGIES)
    assert made.fastest == min(made.milliseconds, key=made.milliseconds.get)
    choice = choose_strategy(PLAN, config)
    assert (choice.strategy, "measured here" in choice.reason) == (made.fastest, True)
    assert TensorProduct.from_plan(PLAN).choice == choice
    assert str(made).startswith("forward+backward of 8 rows")
    _file(PLAN, config, cache.current_directory()).unlink()
    assert measured_choice(PLAN, config) is None


def test_a_choice_is_for_one_layout_dtype_and_backend(config: Config) -> None:
    cache.write_whole(_file(PLAN, config, cache.current_directory()), json.dumps(_entry("einsum")))
    assert choose_strategy(PLAN, config).strategy == "einsum"
    for other in ({"layout": "ir_mul"}, {"dtype": torch.float64}, {"backend": "aot_eager"}):
        assert measured_choice(PLAN, replace(config, **other)) is None


def test_a_choice_is_for_one_kind_of_gpu(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["H200", "A40"]
    monkeypatch.setattr(tuning, "gpu_name", lambda device: names[device.index])
    one, other = (replace(config, device=f"cuda:{n}") for n in range(2))
    cache.write_whole(_file(PLAN, one, cache.current_directory()), json.dumps(_entry("einsum")))
    assert measured_choice(PLAN, one).strategy == "einsum"
    assert measured_choice(PLAN, other) is None
    names[1] = "H200"
    assert measured_choice(PLAN, other).strategy == "einsum"


def test_a_name_that_is_asked_for_is_kept(config: Config) -> None:
    cache.write_whole(_file(PLAN, config, cache.current_directory()), json.dumps(_entry("einsum")))
    assert choose_strategy(PLAN, replace(config, strategy="unrolled")).strategy == "unrolled"


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"strategy": "gone", "milliseconds": 1, "rows": 2}),
                                  json.dumps({"strategy": ["einsum"], "milliseconds": 1})])  # fmt: skip
def test_a_damaged_file_is_passed_over(config: Config, text: str) -> None:
    cache.write_whole(_file(PLAN, config, cache.current_directory()), text)
    assert measured_choice(PLAN, config) is None


def _entry(strategy: str) -> dict:
    return {"strategy": strategy, "milliseconds": 1.0, "rows": 8}
