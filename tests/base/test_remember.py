"""What a process remembers is listed, limited, and can be forgotten."""

from __future__ import annotations

import pytest
import torch

import tpgen
from tests.cases import run_python
from tpgen.base.remember import caches, integer_setting
from tpgen.kernels.runtime.memory import empty_tensor


def count(what: str) -> int:
    return next(state.count for state in caches() if state.what.startswith(what))


def test_a_product_works_on_after_everything_is_forgotten() -> None:
    product = tpgen.TensorProduct("2x1o", "1o", "2x0e", [(0, 0, 0, "uvu", True)])
    x, y = torch.randn(3, 6, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    before = product(x, y)
    assert count("programs of products")
    tpgen.caches().clear()
    assert {state.count for state in caches() if not state.stays} == {0}
    assert torch.equal(product(x, y), before)
    assert torch.equal(*(torch.autograd.grad(z.sum(), x)[0] for z in (before, product(x, y))))


def test_what_is_free_is_counted_in_bytes() -> None:
    gone = empty_tensor((2**20,), torch.float32)
    del gone
    row = next(state for state in caches() if state.unit == "B")
    assert row.count >= 2**22
    assert "MB" in str(caches())
    caches().clear()
    assert count(row.what) == 0


def test_the_environment_limits_every_cache() -> None:
    code = """
import torch, tpgen
from tpgen.planner.coupling import wigner_3j
for l in range(4):
    wigner_3j(l, l, 0)
    tpgen.TensorProduct(f"2x{l}e", f"{l}e", "2x0e", [(0, 0, 0, "uvu", True)])
states = tpgen.caches()
assert all(state.most == 2 for state in states if state.most is not None)
print(max(state.count for state in states if state.most is not None), len(states))
"""
    most, listed = map(int, run_python(code, TPGEN_CACHE_ENTRIES="2").split())
    assert most == 2
    assert listed > 10


def test_a_limit_that_is_no_number_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPGEN_CACHE_ENTRIES", "many")
    with pytest.warns(UserWarning, match=r"TPGEN_CACHE_ENTRIES.*'many'"):
        assert integer_setting("TPGEN_CACHE_ENTRIES", "entries") is None
