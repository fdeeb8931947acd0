"""How long attacks take: the same few examples in every run of the tests, others by ``ATTACKS=1000``."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

from tests.attacks.counts import ATTACKS, counted, pytest_terminal_summary

__all__ = ["counted", "pytest_terminal_summary"]
settings.register_profile(
    "attacks",
    max_examples=ATTACKS,
    derandomize="ATTACKS" not in os.environ,
    print_blob=True,
    deadline=None,  # a kernel may be compiled
    database=None,
    phases=[Phase.explicit, Phase.generate],  # a fault is read sooner than hypothesis finds a smaller one
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("attacks")
