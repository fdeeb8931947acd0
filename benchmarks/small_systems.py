"""Small systems, stock against converted against one program: energies, forces and stress, and a step of training.

    python -m benchmarks.small_systems --seconds 10

Each row runs in its project's environment (``make clients``).  The first run also builds the programs, which takes
minutes; the next finds them in the cache of kernels.  A ratio is the median of those of calls in turn.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

# project, size, atoms, modes of stock beside eager
ROWS = (
    ("nequip", "2 layers, l=3, 32 features", 40, ["compiled"]),
    ("nequip", "l=2, 64 features", 64, ["compiled"]),
    ("mace", "96x0e+96x1o", 40, ["scripted", "compiled"]),
    ("mace", "128x0e", 64, ["scripted", "compiled"]),
    ("mace", "128x0e+128x1o", 64, ["scripted", "compiled"]),
    ("mace", "128x0e+128x1o, a molecule", 21, ["scripted", "compiled"]),
    ("mace", "128x0e+128x1o, 8 molecules", 21, ["scripted", "compiled"]),
    ("sevenn", "SevenNet-0", 64, ["scripted"]),
)
ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_systems")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each task of a row")
    parser.add_argument("--eager", action="store_true", help="leave out stock's scripted and compiled modes")
    asked = parser.parse_args()
    for project, size, atoms, modes in ROWS:
        command = [str(ROOT / ".clients" / project / "bin" / "python"), "-W", "ignore"]
        command += ["-m", "benchmarks.network_measures", project, "--size", size, "--atoms", str(atoms)]
        command += ["--seconds", str(asked.seconds), "--modes", *([] if asked.eager else modes), "program"]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            sys.exit(f"{project} {size} could not be measured")


if __name__ == "__main__":
    main()
