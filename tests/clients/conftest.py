"""Tests inside the projects that tpgen has an adapter for, where one is installed (``make test-clients``)."""

from __future__ import annotations

from importlib.util import find_spec

_TESTS = {"mace": "mace", "nequip": "nequip", "allegro": "nequip_allegro", "sevenn": "sevenn"}
collect_ignore_glob = [f"test_{tests}*.py" for client, tests in _TESTS.items() if find_spec(client) is None]
