"""What is computed twice is computed once, where nothing writes in between."""

import pytest
import torch
from torch import nn

import tpgen
from tpgen.networks.cse import cse
from tpgen.networks.inline import inline_products
from tpgen.networks.tracer import is_leaf, trace_network


def shared(forward) -> int:
    module = torch.fx.symbolic_trace(forward)
    return cse(module.graph, module)


def test_pure_calls_are_shared_and_others_are_not() -> None:
    assert shared(lambda x: (x * 2) + (x * 2)) == 1
    assert shared(lambda x: x.sin() + torch.sin(x)) == 0  # a method and a function
    assert shared(lambda x: (x * 2) + (x * 2.0)) == 0  # not the same dtype in the end
    assert shared(lambda x: torch.rand_like(x) + torch.rand_like(x)) == 0
    assert shared(lambda x: torch.nn.functional.dropout(x) + torch.nn.functional.dropout(x)) == 0


def doubled(x):
    """A function of the user that writes into its operand."""
    x.mul_(2)


class Foreign(nn.Module):
    """A leaf of the user that does."""

    def forward(self, x):
        x.mul_(2)
        return x


class Around(nn.Module):
    """The same product before and after the user's code."""

    def __init__(self, by_module: bool) -> None:
        super().__init__()
        self.square = tpgen.TensorSquare("2x1o", strategy="einsum")
        self.foreign = Foreign() if by_module else None

    def forward(self, x):
        before = x * 2
        if self.foreign is None:
            doubled(x)
        else:
            self.foreign(x)
        return self.square(before) - self.square(x * 2)


@pytest.mark.parametrize("by_module", [False, True])
def test_code_of_the_user_may_write(by_module: bool) -> None:
    network = Around(by_module)
    traced = trace_network(
        network, functions=[doubled], leaf=lambda module, path: isinstance(module, Foreign) or is_leaf(module, path)
    )
    x = torch.randn(4, 6)
    wanted = network(x.clone())
    assert wanted.abs().max() > 0
    for given in (None, [x.clone()]):
        flat = inline_products(traced, inputs=given)
        torch.testing.assert_close(flat(x.clone()), wanted)


def test_nothing_is_shared_across_a_node_that_writes() -> None:
    def twice(x):
        before = x * 2
        x.add_(1)
        return before + x * 2

    assert shared(twice) == 0

    def written(x):
        a, b = x * 2, x * 2
        a.add_(1)
        return a + b

    assert shared(written) == 0
