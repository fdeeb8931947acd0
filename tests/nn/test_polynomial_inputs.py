"""Weights, elements and checkpoints that do not fit a polynomial: refused alike by every strategy, and named."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.cases import derivatives
from tests.machine import KERNEL
from tpgen.base.errors import InputError
from tpgen.nn.polynomial import Polynomial
from tpgen.nn.symmetric_contraction import SymmetricContraction

ALL = pytest.mark.parametrize("strategy", [KERNEL, "einsum", "unrolled"])
INDEX = torch.tensor([0, 1, 2])


def contraction(strategy: str, **options: object) -> SymmetricContraction:
    options = {"num_elements": 3, "internal_weights": False} | options
    return SymmetricContraction("2x0e+2x1o", "2x0e", 2, strategy=strategy, **options).double()


def features() -> Tensor:
    return torch.randn(3, 2, 4, dtype=torch.float64)


def sets(made: SymmetricContraction | Polynomial, *first: int) -> list[Tensor]:
    """Weights with so many elements or rows in each tensor."""
    shapes = zip(first, made.weight_shapes, strict=True)
    return [torch.randn(count, *shape, dtype=torch.float64) for count, shape in shapes]


@ALL
@pytest.mark.parametrize("first, wrong", [((2, 3), 0), ((3, 2), 1), ((9, 9), 0), ((3, 1), 1)])
def test_weights_by_element_are_as_many_as_elements(strategy: str, first: tuple[int, int], wrong: int) -> None:
    made = contraction(strategy)
    with pytest.raises(
        InputError, match=rf"weights\[{wrong}\]: .* a set for each of the 3 elements .* \({first[wrong]},"
    ):
        made(features(), INDEX, weights=sets(made, *first))


@ALL
def test_weights_by_element_from_outside_are_those_of_the_module(strategy: str) -> None:
    own, outside, x = contraction(strategy, internal_weights=True), contraction(strategy), features()
    given = [p.detach() for p in own._choose_given_or_own_weights(None, 3)]
    torch.testing.assert_close(outside(x, INDEX, weights=given), own(x, INDEX))


@ALL
@pytest.mark.parametrize("first", [(1, 3), (3, 1)])
def test_some_weights_of_all_rows_and_some_of_each(strategy: str, first: tuple[int, int]) -> None:
    made, x = contraction(strategy, num_elements=None), features()
    weights = [w.requires_grad_() for w in sets(made, *first)]
    whole = [w.expand(3, -1, -1).contiguous() for w in weights]
    found, wanted = made(x, weights=weights), made(x, weights=whole)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(out.sin().sum(), weights) for out in (found, wanted)))
    own = Polynomial({"a": "2x0e", "b": "2x0e"}, "2x0e", [("a",), ("b",)], weights="given", strategy=strategy).double()
    a, b = torch.randn(2, 3, 2, dtype=torch.float64)
    u, v = sets(own, *first)
    torch.testing.assert_close(own(a, b, weights=[u, v]), a * u[:, 0] + b * v[:, 0])


@ALL
def test_numbers_of_rows_that_do_not_agree(strategy: str) -> None:
    made = contraction(strategy, num_elements=None)
    with pytest.raises(InputError, match=r"weights\[1\]:.*\(1 or 3"):
        made(features(), weights=sets(made, 1, 2))


@ALL
@pytest.mark.parametrize("wrong", [3, -1])
def test_elements_out_of_range(strategy: str, wrong: int) -> None:
    made = Polynomial({"a": "2x0e"}, "2x0e", [("a",)], weights="element", num_elements=3, strategy=strategy)
    got = f"got {min(wrong, 0)} to {max(wrong, 2)}"
    with pytest.raises(InputError, match=f"index: elements run from 0 to 2, {got}"):
        made(torch.randn(3, 2), index=torch.tensor([0, 2, wrong]))
    with pytest.raises(InputError, match="index: must have a row for each of the 3 rows of a, got 2"):
        made(torch.randn(3, 2), index=INDEX[:2])


def test_checkpoints_of_other_shapes_are_refused() -> None:
    with pytest.raises(InputError, match=r"weights\.w0_0:.*\(1, 1, 2\).*\(3, 1, 2\)"):
        Polynomial({"a": "2x0e"}, "2x0e", [("a",)], weights="element", num_elements=3).load_state_dict(
            Polynomial({"a": "2x0e"}, "2x0e", [("a",)]).state_dict()
        )


class Contracted(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.inner(x, y)


class OfElements(Contracted):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.inner(x, index=y)


class OfEdges(Contracted):
    def forward(self, x: Tensor, src: Tensor, dst: Tensor, weights: list[Tensor]) -> Tensor:
        return self.inner(x, edge_src=src, edge_dst=dst, weights=weights)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@ALL
def test_torchscript(strategy: str) -> None:
    """In a network: one-hot elements and their numbers, weights of its own and given ones, edges."""
    contracted = Contracted(contraction(strategy, internal_weights=True))
    options, irreps = {"strategy": strategy}, "2x0e+2x1o"
    own = Polynomial({"a": irreps}, irreps, [("a", "a")], weights="element", num_elements=3, **options).double()
    edges = Polynomial(
        {"a": irreps}, irreps, [("a", "a")], weights="given", edges={"a": "src", "out": "dst"}, **options
    ).double()
    given = [torch.randn(1, *shape, dtype=torch.float64) for shape in edges.weight_shapes]
    src, dst = torch.randint(3, (2, 7))
    x, hot = features(), torch.nn.functional.one_hot(INDEX, 3).double()
    for network, rest in (
        (contracted, [hot]),
        (contracted, [INDEX]),
        (OfElements(own), [INDEX]),
        (OfEdges(edges), [src, dst, given]),
    ):
        at = (x if network is contracted else x.flatten(1)).clone().requires_grad_()
        runs = network, torch.jit.script(network)
        torch.testing.assert_close(*(derivatives(run(at, *rest), [at]) for run in runs))
