"""Tests inside the projects that tpgen has an adapter for, where one is installed (``make test-clients``)."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [f"test_{client}.py" for client in ("mace", "nequip", "sevenn") if find_spec(client) is None]
