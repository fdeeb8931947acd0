"""Public names, each the first that a process asks for."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("name", ["compile_step", "compile_training", "convert", "portable", "ready"])
def test_a_name_loads_first(name: str) -> None:
    subprocess.run([sys.executable, "-c", f"from tpgen import {name}"], check=True, timeout=120)
