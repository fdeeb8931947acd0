"""A linear layer with matrices of each species."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.machine import needs_compiler
from tpgen.conversion import species as module
from tpgen.conversion.species import grouped_linear, species_linear
from tpgen.errors import InputError
from tpgen.form.reference import reference_product
from tpgen.networks.recording import Groups, find_groups
from tpgen.planner.linear import make_linear_plan

pytestmark = needs_compiler
PLAN = make_linear_plan("8x0e+4x1o", "6x1o+5x0e+2x0e+3x2e")
SPECIES = torch.tensor([3, 0, 1, 3, 3, 0, 1])  # none of the third


def operands() -> tuple[Tensor, Tensor]:
    x, w = torch.randn(7, 20, dtype=torch.float64), torch.randn(4, PLAN.weight_numel, dtype=torch.float64)
    return x.requires_grad_(), w.requires_grad_()


def layer(x: Tensor, w: Tensor) -> Tensor:
    return species_linear(x, w, SPECIES, PLAN)


def by_definition(x: Tensor, w: Tensor) -> Tensor:
    rows = zip(x.split(1), SPECIES, strict=True)
    return torch.cat([reference_product(PLAN, row, w[s]) for row, s in rows])


def test_each_row_has_the_weights_of_its_species() -> None:
    x, w = operands()
    torch.testing.assert_close(layer(x, w), by_definition(x, w))
    found, wanted = (torch.autograd.grad(f(x, w).square().sum(), (x, w)) for f in (layer, by_definition))
    torch.testing.assert_close(found, wanted)
    assert not found[1][2].any(), "a species without rows has no gradient"


def test_rows_in_groups_have_the_weights_of_their_species() -> None:
    groups = Groups(*find_groups(SPECIES))

    def grouped(x: Tensor, w: Tensor) -> Tensor:
        return grouped_linear(x, w.index_select(0, groups.there), groups, PLAN)

    x, w = operands()
    torch.testing.assert_close(grouped(x, w), by_definition(x, w))
    assert torch.autograd.gradcheck(grouped, operands())
    assert torch.autograd.gradgradcheck(grouped, operands())


def test_derivatives_of_two_orders() -> None:
    assert torch.autograd.gradcheck(layer, operands(), check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(layer, operands(), check_batched_grad=True)


def test_a_third_derivative() -> None:
    def third(f) -> Tensor:
        torch.manual_seed(3)
        x, w = operands()
        (first,) = torch.autograd.grad(f(x, w).pow(3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.pow(2).sum(), w, create_graph=True)
        return torch.autograd.grad(second.sum(), x)[0]

    torch.testing.assert_close(third(layer), third(by_definition))


def test_gradients_that_nobody_asks_for_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, run = [], module._Layer.by_kernel
    monkeypatch.setattr(module._Layer, "by_kernel", lambda *given: opened.append(given[-1]) or run(*given))
    x, w = operands()
    torch.autograd.grad(layer(x, w).sum(), x)
    assert opened == [(2,), (0,)]


def test_no_rows() -> None:
    x, w = torch.zeros(0, 20, requires_grad=True), torch.zeros(4, PLAN.weight_numel, requires_grad=True)
    found = species_linear(x, w, SPECIES[:0], PLAN)
    assert found.shape == (0, PLAN.irreps_out.dim)
    assert [g.shape for g in torch.autograd.grad(found.sum(), (x, w))] == [x.shape, w.shape]


def test_what_torch_transforms_goes_by_rows() -> None:
    x, w = operands()
    many = torch.randn(3, *x.shape, dtype=torch.float64)
    found = torch.func.vmap(layer, (0, None))(many, w)
    torch.testing.assert_close(found, torch.stack([layer(one, w) for one in many]))
    torch.testing.assert_close(
        torch.func.grad(lambda x: layer(x, w).sum())(x), torch.autograd.grad(layer(x, w).sum(), x)[0]
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((torch.zeros(7, 19), torch.zeros(4, 100), SPECIES), r"x: must have shape \(rows, 20\), got \(7, 19\)"),
        ((torch.zeros(7, 20), torch.zeros(4, 3), SPECIES), r"weight: must have shape \(species, \d+\), got \(4, 3\)"),
        ((torch.zeros(7, 20), None, SPECIES.int()), r"species: must be int64 with one number for each of the 7 rows"),
        (
            (torch.zeros(7, 20), None, SPECIES + 1),
            r"species: numbers run from 0 to 3, got 1 to 4: give weights for each",
        ),
        (
            (torch.zeros(7, 20), None, SPECIES - 1),
            r"species: numbers run from 0 to 3, got -1 to 2: give weights for each",
        ),
    ],
)
def test_bad_input(given: tuple, message: str) -> None:
    x, w, species = given
    with pytest.raises(InputError, match=message):
        species_linear(x, torch.zeros(4, PLAN.weight_numel) if w is None else w, species, PLAN)
