"""Private names of torch: each is there, and one that is not is said in one way."""

from __future__ import annotations

import pytest
import torch

from tpgen.base import _torch
from tpgen.base._torch import NAMES, Private, has_tangents


@pytest.mark.parametrize("name", NAMES)
def test_each_is_there(name: str) -> None:
    """In the torch of these tests; ``make test-torch`` asks others."""
    assert NAMES[name].use
    if hasattr(_torch, name) or not NAMES[name].without:
        assert getattr(_torch, name) is not None


def test_one_that_is_missing_is_an_error_with_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMES, "gone", Private("torch._C", "_gone", "nothing"))
    monkeypatch.setitem(NAMES, "gone_as_well", Private("torch._gone", "x", "nothing"))
    for name in ("gone", "gone_as_well"):
        with pytest.raises(ImportError, match=rf"torch {torch.__version__.replace('+', '.')} has no torch.*_gone"):
            getattr(_torch, name)
    monkeypatch.setitem(NAMES, "other", Private("torch._C", "_gone", "nothing", "slower"))
    assert getattr(_torch, "other", None) is None
    with pytest.raises(AttributeError, match="has no attribute 'unknown'"):
        _torch.unknown  # noqa: B018


def test_tangents_are_seen() -> None:
    with torch.autograd.forward_ad.dual_level():
        assert has_tangents()
    assert not has_tangents()
