"""Faults as potentials in use have had them, each caught by its law; and unusual potentials that none accuses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.tools.verification.crystals import AWKWARD, FAULTS, UNSEEN, Crystal, crystal
from tpgen.base.errors import InputError
from tpgen.tools.verification.verify import verify


def laws() -> list[str]:
    return list(dict.fromkeys(law for law, _ in FAULTS.values()))


def test_there_are_forty() -> None:
    assert len(FAULTS) >= 40
    assert len(AWKWARD) >= 10


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught_by_its_law(fault: str) -> None:
    law, made = FAULTS[fault]
    torch.manual_seed(0)
    report = verify(made().double(), crystal(), only=[law])
    assert report.failed == (law,), str(report)


@pytest.mark.parametrize("name", [*AWKWARD, *UNSEEN])
def test_what_is_right_is_not_accused(name: str) -> None:
    made = (AWKWARD | UNSEEN)[name]
    report = verify(made().double(), crystal(), only=laws())
    assert not report.failed, str(report)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_right_potential_has_passed(dtype: torch.dtype) -> None:
    report = verify(Crystal().to(dtype), crystal(dtype=dtype))
    assert report.passed, str(report)
    assert "no law sees whether a network predicts what it should: another table of species" in str(report)
    why = report.finding("compiled", "gradients").why
    assert "gives none, or wrong ones, of a function that takes gradients itself, without tpgen too" in why


class Relu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x)


def test_where_nothing_was_said_to_turn_nothing_has_passed() -> None:
    report = verify(Relu(), (torch.randn(4, 3),))
    assert not report.passed
    assert not report.failed
    assert "every law that was compared holds; not compared, and so not passed: equivariant" in str(report)
    assert "inputs undeclared: say how they turn" in report.finding("equivariant").why
    assert verify(Relu(), (torch.randn(4, 3),), irreps_in=[None], irreps_out=[None]).passed


def test_a_result_of_which_nothing_was_said_is_an_error() -> None:
    with pytest.raises(InputError, match=r"irreps_out: say how 'out' turns, as inputs do: irreps_out=\{'out': '1o'\}"):
        verify(Relu(), (torch.randn(4, 3),), irreps_in=["1o"])
