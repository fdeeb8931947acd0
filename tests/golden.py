"""Golden files: a test compares a text with its file; ``--accept-golden`` writes the files anew."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from tpgen.kernels.cpp.text import read_header

KERNELS = Path(__file__).parent.parent / "tpgen" / "kernels"


def check_golden(file: Path, text: str, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--accept-golden"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == text, f"{file.name} differs: read it, then accept it by --accept-golden"


def without_headers(text: str, room: str) -> str:
    """A text with a line in the place of each header of ``kernels/<room>``, which is read there."""
    for file in (KERNELS / room).glob("*.h"):
        text = text.replace(read_header(file).strip("\n"), f"// {file.name}")
    return text


def without_prelude(text: str, prelude: str) -> str:
    """A text with one line in the place of its prelude: a golden file shows one, and the line has a hash of all."""
    assert prelude in text
    return text.replace(prelude, f"// prelude {sha256(prelude.encode()).hexdigest()[:12]}")
