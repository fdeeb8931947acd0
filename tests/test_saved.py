"""Files that tpgen 0.1 wrote are read, and give the same numbers."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from tpgen.planner.read import read_plan

SAVED = Path(__file__).parent / "saved"


@pytest.mark.parametrize("file", sorted(SAVED.glob("*.json")), ids=lambda file: file.stem)
def test_plans(file: Path) -> None:
    text = file.read_text(encoding="utf-8").strip()
    assert read_plan(text).to_json() == text


@pytest.mark.parametrize("file", sorted(SAVED.glob("*.pt")), ids=lambda file: file.stem)
def test_modules(file: Path) -> None:
    saved = torch.load(file, weights_only=False)
    pickled = pickle.loads(file.with_suffix(".pickle").read_bytes())
    for module in (saved["module"], pickled):
        torch.testing.assert_close(module(*saved["operands"]), saved["result"])
    assert pickled.plan == saved["module"].plan
