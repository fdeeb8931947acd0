"""Faults are caught by their laws, what may be meant is told, and what is right is not accused."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.tools.verification import (
    clusters,
    crystals,
    holding,
    lattices,
    layers,
    messages,
    molecules,
    newcomers,
    padding,
    potentials,
    rounding,
    strangers,
    suspicious,
)
from tests.tools.verification.planted import OF_PRODUCTS, Planted
from tpgen.tools.verification.findings import FAILED, NOT_COMPARED, PASSED
from tpgen.tools.verification.verify import LAWS, Verification

TABLES = (
    *(clusters, crystals, holding, lattices, layers, messages, molecules),
    *(newcomers, padding, potentials, rounding, strangers, suspicious),
)


def table(kind: str) -> dict[str, Planted]:
    """Networks of a kind in all tables, by table and name."""
    found: dict[str, Planted] = {}
    for module in TABLES:
        found |= {f"{name_of(module)}: {name}": planted for name, planted in vars(module).get(kind, {}).items()}
    return found


def name_of(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


FAULTS, TOLD, RIGHT, AWKWARD, UNSEEN = map(table, ("FAULTS", "TOLD", "RIGHT", "AWKWARD", "UNSEEN"))


def text_of(report: Verification) -> str:
    return "\n".join([report.settings, *(finding.why for finding in report.findings)])


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught_by_its_law(name: str) -> None:
    planted = FAULTS[name]
    report = planted.verified()
    assert report.failed == ((planted.laws,) if isinstance(planted.laws, str) else (*planted.laws,)), str(report)
    assert planted.why in text_of(report), str(report)
    assert all(planted.part in finding.part for finding in report.findings if finding.status == FAILED), str(report)


@pytest.mark.parametrize("name", TOLD)
def test_what_may_be_meant_is_told(name: str) -> None:
    planted = TOLD[name]
    report = planted.verified()
    assert not report.failed, str(report)
    told = [f for f in report.findings if f.status == NOT_COMPARED and planted.part in f.part]
    assert any(planted.why in finding.why for finding in told), str(report)
    assert planted.why[:30] in str(report)


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_passes(name: str) -> None:
    planted = RIGHT[name]
    report = planted.verified()
    assert report.passed, str(report)
    assert planted.why in text_of(report), str(report)
    assert any(planted.part in finding.part for finding in report.findings if finding.status == PASSED), str(report)
    others = [told.why for told in TOLD.values() if told.laws == planted.laws and planted.laws == "smooth"]
    assert not any(why in text_of(report) for why in others), str(report)


@pytest.mark.parametrize("name", [*AWKWARD, *UNSEEN])
def test_no_law_accuses_what_is_right_or_cannot_be_seen(name: str) -> None:
    report = (AWKWARD | UNSEEN)[name].verified()
    assert not report.failed, [finding for finding in report.findings if finding.status == FAILED]


def test_faults_are_as_many_as_laws_and_more() -> None:
    caught = {planted.laws for planted in FAULTS.values() if isinstance(planted.laws, str)}
    assert caught >= set(LAWS) - OF_PRODUCTS - {"third order"}, "and test_faults.py plants these"
    assert len(crystals.FAULTS) >= 40
