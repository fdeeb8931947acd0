"""Strategies timed for any plan: the fastest is remembered, and modules made from then on take it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compiler.test_tuning import PLANS
from tpgen.compiler.autotune import choose_strategy
from tpgen.compiler.config import Config
from tpgen.compiler.tuning import list_strategies, read_measured_choice
from tpgen.nn.modules import build_module, list_size_keywords
from tpgen.planner.plan import Plan
from tpgen.tools.inspection.costs.measured import tune
from tpgen.tools.inspection.stages.calls import make_request


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("plan", PLANS.values(), ids=list(PLANS))
def test_the_fastest_is_remembered_and_taken(
    plan: Plan, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPGEN_CACHE_DIR", str(tmp_path))
    config = Config(backend=backend)
    assert read_measured_choice(plan.flat, config) is None
    made = tune(make_request(plan, rows=8, backend=backend), seconds=0.05)
    assert set(made.milliseconds) | set(made.left_out) == set(list_strategies(plan))
    assert made.fastest == min(made.milliseconds, key=made.milliseconds.get)
    choice = choose_strategy(plan.flat, config)
    assert (choice.strategy, "measured here" in choice.reason) == (made.fastest, True)
    assert build_module(plan, backend=backend, **list_size_keywords(plan)).choice == choice
    assert str(made).startswith("forward+backward of 8 rows")
