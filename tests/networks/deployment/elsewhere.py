"""Programs in a process of their own that knows nothing of tpgen, as those who load a deployed folder write them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

LIBRARY = 'torch.ops.load_library(sys.argv[1] + "/libtpgen.so")\n'
NETWORK = "sys.path.insert(0, sys.argv[1])\nfrom load import load\nnetwork = load()\n"
_BEGIN = 'import sys, torch\nsys.modules["tpgen"] = None\ngiven = torch.load(sys.argv[2])\n'
_END = "\ntorch.save(found, sys.argv[2])\n"


def run_without_tpgen(folder: Path, code: str, given: Any, more: tuple[str | Path, ...] = ()) -> tuple[Any, list[str]]:
    """What code makes of ``given`` as ``found``, and the lines that it prints; an `AssertionError` if it fails.

    It finds the folder in the first argument, and ``more`` from the third on.
    """
    file = folder.parent / f"{folder.name}.given.pt"
    torch.save(given, file)
    command = [sys.executable, "-c", f"{_BEGIN}{code}{_END}", str(folder), str(file), *map(str, more)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return torch.load(file), done.stdout.splitlines()
