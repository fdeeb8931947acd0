"""How long attacks take: the same few examples in every run of the tests, others by ``ATTACKS=1000``."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_EXAMPLES = os.environ.get("ATTACKS")
settings.register_profile(
    "attacks",
    max_examples=int(_EXAMPLES or 8),
    derandomize=not _EXAMPLES,
    print_blob=True,
    deadline=None,  # a kernel may be compiled
    database=None,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("attacks")
