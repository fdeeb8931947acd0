"""Faults of a second reader are caught by their law; what may be meant is told; what is right is not accused."""

from __future__ import annotations

import warnings

import pytest

from tests.tools.verification.newcomers import DROPPED, FAULTS, NOISY, ORDERED, RIGHT, TOLD, Cut, _pushed
from tests.tools.verification.strangers import VECTORS, rows
from tests.tools.verification.suspicious import cluster, of
from tests.tools.verification.test_strangers import check_caught, check_passed, check_told
from tpgen.base.errors import InputError
from tpgen.tools.verification.verify import verify

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught_by_its_law(name: str) -> None:
    check_caught(FAULTS[name])


@pytest.mark.parametrize("name", TOLD)
def test_what_may_be_meant_is_told(name: str) -> None:
    check_told(TOLD[name])


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_has_passed(name: str) -> None:
    check_passed(RIGHT[name])


def test_forces_that_nobody_can_tell_are_no_pass() -> None:
    report = verify(of(told=_pushed)().double(), cluster(), **ORDERED, without=["compiled", "smooth", "conservation"])
    assert "not compared, and so not passed: forces" in report.said or "forces" not in report.failed
    assert not report.passed


def test_a_random_network_is_told_once() -> None:
    laws = ["equivariant", "permutation", "first order", "Hessian", "parameters", "memory", "history", "repeated"]
    report = verify(NOISY().double(), rows(), **VECTORS, only=laws)
    assert report.failed == ("repeated",), str(report)
    assert verify(DROPPED().double(), rows(), **VECTORS, only=laws).passed


def test_a_network_in_evaluation_needs_no_graph() -> None:
    report = verify(Cut().double().eval(), cluster(), only=["parameters"])
    assert report.passed, str(report)


def test_laws_are_left_out() -> None:
    report = verify(of()().double(), cluster(), only=["forces", "translation"], without="forces")
    assert {finding.law for finding in report.findings} == {"translation"}
    with pytest.raises(InputError, match="unknown law 'compield': did you mean 'compiled'"):
        verify(of()().double(), cluster(), without="compield")


def test_a_role_is_said_once() -> None:
    with pytest.raises(InputError, match="one result is the energy, got 2"):
        verify(of(told=lambda self, e, f: (e, f))().double(), cluster(), irreps_out=["energy", "energy"])


def test_nothing_is_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        verify(of()().double(), cluster(), only=["permutation", "edges"])
