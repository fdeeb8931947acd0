"""Faults of strangers are caught by their law; what may be meant is told; what is right is not accused."""

from __future__ import annotations

import pytest
import torch

from tests.tools.verification.lattices import Lattice, triclinic
from tests.tools.verification.strangers import FAULTS, RIGHT, TOLD, Given, Planted
from tpgen.tools.verification import runs
from tpgen.tools.verification.findings import NOT_COMPARED
from tpgen.tools.verification.verify import Verification, verify

pytestmark = pytest.mark.usefixtures("double")


def verified(planted: Planted, given: Given) -> Verification:
    network = planted.made().to(planted.dtype).train(planted.training)
    return verify(network, given, only=[planted.law], **planted.said)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught_by_its_law(name: str) -> None:
    planted = FAULTS[name]
    given, before = planted.given(), planted.given()
    report = verified(planted, given)
    assert report.failed == (planted.law,), str(report)
    assert planted.why in " ".join(finding.why for finding in report.findings)
    assert all(torch.equal(x, y) for x, y in zip(given, before, strict=True)), "the caller's own tensors were changed"


def check_caught(planted: Planted) -> None:
    report = verified(planted, planted.given())
    assert report.failed == (planted.law,), str(report)
    assert planted.why in " ".join(finding.why for finding in report.findings)


def check_told(planted: Planted) -> Verification:
    """No law accuses the network, and one that is not compared says why."""
    report = verified(planted, planted.given())
    assert not report.failed, str(report)
    assert any(planted.why in f.why for f in report.findings if f.status == NOT_COMPARED), str(report)
    return report


def check_passed(planted: Planted) -> None:
    report = verified(planted, planted.given())
    assert report.passed, str(report)


@pytest.mark.parametrize("name", TOLD)
def test_what_may_be_meant_is_told(name: str) -> None:
    assert TOLD[name].why[:30] in str(check_told(TOLD[name]))


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_has_passed(name: str) -> None:
    check_passed(RIGHT[name])


def _fails_in_torch(*given: object) -> None:
    torch.nn.functional.softmax(torch.ones(3), dim=9)


def _fails_itself(*given: object) -> None:
    raise RuntimeError("its own")


@pytest.mark.parametrize("run, failed", [(_fails_in_torch, ()), (_fails_itself, ("compiled",))])
def test_what_torch_cannot_compile_is_told(run, failed: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "compile_program", lambda *given: run)
    report = verify(Lattice(), triclinic(), only=["compiled"])
    assert report.failed == failed, str(report)
    assert not report.passed
    assert failed or "torch cannot compile it: IndexError: Dimension out of range" in report.finding("compiled").why
