"""Pictures of the docs: each is taken by `make pictures`, from the code as it is, and the same every time."""

from __future__ import annotations

import re
import shutil
import struct
from pathlib import Path

import pytest

from benchmarks import network_picture, pictures, small_picture
from benchmarks.pictures import DOCS, FOLDER, PICTURES

_SHOWN = re.compile(r"!\[[^\]]*\]\((?:docs/)?(pictures/[^)]+|images/[^)]+)\)")
_DRAWN = [name for name in PICTURES if name != "explorer.png"]


def _size(path: Path) -> tuple[int, int]:
    """Width and height of a PNG."""
    width, height = struct.unpack(">II", path.read_bytes()[16:24])
    return width, height


def test_every_picture_that_a_page_shows_is_there_and_taken() -> None:
    pages = [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]
    shown = {name for page in pages for name in _SHOWN.findall(page.read_text(encoding="utf-8"))}
    assert all((DOCS / name).is_file() for name in shown)
    assert {name.removeprefix("pictures/") for name in shown if name.startswith("pictures/")} == set(PICTURES)
    drawn = {path.name for path in FOLDER.iterdir()} - {network_picture.FIGURES.name, small_picture.FIGURES.name}
    assert drawn == set(PICTURES), "and none lies there that no page shows"


@pytest.mark.parametrize("name", _DRAWN)
def test_a_picture_is_that_of_the_code(name: str, tmp_path: Path) -> None:
    """Of the size of the one in the docs: it has as many paths and nodes.  Letters differ between versions of fonts."""
    PICTURES[name](tmp_path / name)
    assert _size(tmp_path / name) == _size(FOLDER / name), "make pictures"


def test_a_picture_is_the_same_every_time(tmp_path: Path) -> None:
    for file in ("one.png", "other.png"):
        PICTURES["graph.png"](tmp_path / file)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "other.png").read_bytes()


def test_the_explorer_is_taken_in_a_browser_or_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr("sys.argv", ["pictures", "explorer.png", "--out", str(tmp_path)])
    assert pictures.main() == 1
    assert "explorer.png IS NOT TAKEN: no Chromium here" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["pictures", "explorer.jpg"])
    with pytest.raises(SystemExit):
        pictures.main()
    assert "there is no picture 'explorer.jpg'" in capsys.readouterr().err
