"""Converted networks after whatever happens to a network, beside stock ones, to second derivatives."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.attacks.networks import CALLS, GIVEN, NETWORKS, OPERATIONS, Twins, twins
from tpgen._torch import pytree

MANY = int(os.environ.get("ATTACKS", 2))
# hooks and copies warn, as they should; shrinking a sequence of such steps takes longer than reading it
pytestmark = pytest.mark.filterwarnings("ignore")
PHASES = (Phase.explicit, Phase.generate)


def tensors(found: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(found) if isinstance(x, Tensor) and x.is_floating_point()]


def derivatives(network: nn.Module, call: Callable, arguments: tuple, order: int, inputs: bool) -> list[Tensor]:
    """Results, and gradients of sums of sines by inputs and parameters, up to an order."""
    leaves = [x.requires_grad_() for x in tensors(arguments)] if inputs else []
    leaves += [p for p in network.parameters() if p.requires_grad]
    found, last = [], tensors(call(network, arguments))
    found += last
    for _ in range(order):
        total = torch.stack([x.double().sin().sum() for x in last]).sum()
        if not total.requires_grad or not leaves:
            break
        made = torch.autograd.grad(total, leaves, create_graph=True, allow_unused=True)
        last = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, made, strict=True)]
        found += last
    return [x.detach() for x in found]


def arguments_of(pair: Twins, name: str, size: int) -> tuple[Any, ...]:
    return tuple(x.to(pair.dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in GIVEN[name](size))


def compare(pair: Twins, name: str, size: int, call: str, order: int, inputs: bool) -> None:
    """What stock gives, the converted network gives as well; what stock does not take, it need not."""
    given_ = arguments_of(pair, name, size)

    def found(network: nn.Module) -> list[Tensor]:
        own = tuple(x.clone() if isinstance(x, Tensor) else x for x in given_)
        return derivatives(network, CALLS[call], own, order, inputs)

    try:
        wanted = found(pair.stock)
    except Exception:
        return
    got = found(pair.converted)
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        scale = float(other.abs().max()) if other.numel() else 1.0
        torch.testing.assert_close(one, other, rtol=0.0, atol=pair.limit * max(1.0, scale))


@pytest.mark.parametrize("name", NETWORKS)
@settings(max_examples=MANY, phases=PHASES)
@given(operations=st.lists(st.sampled_from(sorted(OPERATIONS)), max_size=5), call=st.sampled_from(sorted(CALLS)),
       order=st.integers(0, 2), size=st.integers(1, 5), inputs=st.booleans(), seed=st.integers(0, 9999))  # fmt: skip
def test_a_converted_network_is_the_stock_one(
    name: str, operations: list[str], call: str, order: int, size: int, inputs: bool, seed: int
) -> None:
    pair = twins(name, seed)
    for operation in operations:
        OPERATIONS[operation](pair)
        compare(pair, name, size, "plain", 0, False)
    compare(pair, name, size, call, order, inputs)
