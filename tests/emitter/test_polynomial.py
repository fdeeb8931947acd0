"""Graphs of polynomials: every strategy computes the definition, and its derivatives."""

from __future__ import annotations

import pytest
import torch

from tests.machine import KERNEL
from tests.polynomials import PLANS, operands_of, slow, symmetric
from tpgen.base.errors import EmitError
from tpgen.emitter.polynomial import emit_polynomial

STRATEGIES = ["einsum", "unrolled", KERNEL]


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("indexed", [False, True])
def test_every_strategy_is_the_definition(name: str, strategy: str, indexed: bool) -> None:
    plan = PLANS[name]()
    if indexed and not plan.weights:
        indexed = False
    index = torch.tensor([1, 0, 1, 1]) if indexed else None
    tensors = operands_of(plan, 4, 2 if indexed else 1, 3)
    program = emit_polynomial(plan, strategy, indexed).module().double()
    arguments = [*tensors, index] if indexed else tensors
    results = [program(*arguments), slow(plan, tensors, index)]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*[torch.autograd.grad(y.pow(2).sum(), tensors) for y in results])


def test_programs_are_written_once_and_print_themselves() -> None:
    emission = emit_polynomial(symmetric(), "einsum", True)
    assert emission is emit_polynomial(symmetric(), "einsum", True)
    assert emission.arguments == ("x", "w0_3", "w0_2", "w0_1", "w1_3", "w1_2", "w1_1", "index")
    assert "matmul" in emission.code


def test_unknown_strategy() -> None:
    with pytest.raises(EmitError, match="unknown strategy 'grouped'; known strategies: einsum, unrolled, kernel"):
        emit_polynomial(symmetric(), "grouped")


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_rows(name: str, strategy: str) -> None:
    plan = PLANS[name]()
    tensors = operands_of(plan, 0, 1, 3)
    result = emit_polynomial(plan, strategy).module().double()(*tensors)
    assert result.shape == (0, 12)
    assert [g.shape for g in torch.autograd.grad(result.sum(), tensors)] == [x.shape for x in tensors]
