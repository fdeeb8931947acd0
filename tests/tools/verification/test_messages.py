"""Faults of a network of messages, each caught by its law; unusual and right ones, which none accuses."""

from __future__ import annotations

import pytest
import torch

from tests.tools.verification.messages import AWKWARD, FAULTS, TURNS, UNSEEN, Messages, skewed
from tpgen.tools.verification.verify import Verification, verify

LAWS = ["equivariant", "stress", "edges", "memory", "surroundings", "history"]


pytestmark = pytest.mark.usefixtures("double")


def verified(made: type[Messages], laws: list[str]) -> Verification:
    torch.manual_seed(0)
    return verify(made(), skewed(), only=laws, **TURNS)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught_by_its_law(fault: str) -> None:
    law, made = FAULTS[fault]
    report = verified(made, [law])
    assert report.failed == (law,), str(report)


@pytest.mark.parametrize("name", [*AWKWARD, *UNSEEN])
def test_what_is_right_is_not_accused(name: str) -> None:
    report = verified((AWKWARD | UNSEEN)[name], LAWS)
    assert not report.failed, str(report)


def test_a_view_is_no_fault_and_is_told() -> None:
    report = verified(AWKWARD["a view of the positions"], ["memory"])
    assert report.passed
    assert (
        "it does not take them: view size is not compatible"
        in report.finding("memory", "with axes in another order").why
    )


def test_what_was_changed_is_named_and_set_back() -> None:
    found = verified(FAULTS["one thread for the whole process"][1], ["surroundings"]).finding("surroundings")
    assert found.why == "Touched: a call changes the number of threads"
    found = verified(FAULTS["gradients left in parameters"][1], ["surroundings"]).finding("surroundings")
    assert "a call changes the gradient of embedding, the gradient of radial.0.weight" in found.why
    assert torch.is_grad_enabled()


def test_modules_made_in_single_precision_are_not_exact_in_double() -> None:
    """Couplings that were rounded once stay so: the law of turning sees it."""
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    report = verify(Messages().double(), skewed(), only="equivariant", **TURNS)
    assert report.failed == ("equivariant",)
