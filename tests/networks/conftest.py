"""Fixtures that several tests of networks share."""

from __future__ import annotations

from tests.networks.served import counted, recomputed

__all__ = ["counted", "recomputed"]
