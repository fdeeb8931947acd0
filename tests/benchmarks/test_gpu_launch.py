"""The times of launches, on a device that does nothing, in a process of their own."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.machine import needs_compiler


@needs_compiler
def test_every_call_is_launched_in_cpp() -> None:
    """Two launches where sums follow: of nodes across runs, of edges by sender, of weights by element."""
    command = [sys.executable, "-W", "error", "-m", "benchmarks.gpu_launch", "--seconds", "0"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    rows = [re.split(" {2,}", line) for line in made.stdout.splitlines() if "µs" in line]
    launches = {row[0]: int(row[-1]) for row in rows}
    assert launches == {
        "product": 1,
        "convolution": 2,
        "product, gradients": 1,
        "convolution, gradients": 2,
        "convolution, gradients collected": 2,
        "polynomial": 1,
        "polynomial, gradients": 2,
    }
