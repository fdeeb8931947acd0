"""Every module and package says what it is, and docs/architecture.md has a row for every package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.site.sources import PACKAGE, packages, said, sources_page

ROOT = Path(__file__).parent.parent
PACKAGES = packages()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_page_of_the_site_lists_every_module() -> None:
    page = sources_page()
    assert all(f"| `{file.stem}` | " in page for file in PACKAGE.rglob("*.py") if not file.stem.startswith("_"))


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: folder.name)
def test_every_module_says_what_it_is(folder: Path) -> None:
    assert [file.name for file in folder.glob("*.py") if not said(file) and file.name != "_version.py"] == []


def rows() -> list[list[str]]:
    """The cells of the table of packages."""
    (table,) = re.findall(r"^\| package \|.*?\n\n", ARCHITECTURE, re.MULTILINE | re.DOTALL)
    return [line.strip("| ").split(" | ") for line in table.strip().split("\n")[2:]]


def test_every_package_has_its_row() -> None:
    """A room of its own for each package, but for what stands in `base/`; the wing of tools has no module itself."""
    named = {name for row in rows() for name in re.findall(r"`([\w/]+/)`", row[0])}
    inside = {folder: f"{folder.relative_to(PACKAGE).as_posix()}/" for folder in PACKAGES if folder != PACKAGE}
    wings = {PACKAGE, PACKAGE / "networks", PACKAGE / "tools"}
    assert named == {name for folder, name in inside.items() if folder.parent in wings} - {"tools/"}
    assert [folder.name for folder in inside if f"{folder.name}/`" not in ARCHITECTURE] == []


def test_rows_name_modules_that_there_are() -> None:
    words = {"auto", "right", "conversion/adapters.py"}  # of other things
    for cells in rows():
        packages = [PACKAGE / name for name in re.findall(r"`([\w/]+)/`", cells[0])]
        there = {path.stem if path.is_file() else f"{path.name}/" for p in packages for path in p.rglob("*")}
        assert set(re.findall(r"`([\w/.]+)`", cells[-1])) - there - words == set(), cells[0]


def test_what_doctests_leave_out_is_there() -> None:
    ignored = re.findall(r"--ignore(?:-glob)?=(\S+)", (ROOT / "setup.cfg").read_text(encoding="utf-8"))
    assert [pattern for pattern in ignored if not any(ROOT.glob(pattern))] == []


def test_the_tours_name_what_there_is() -> None:
    """Steps of a product and of a converted network: each file defines the name beside it."""
    steps = re.findall(r"^\| \d+\. .*? \| (`.*?`) \| (?:`(\w+)`)? ?\|", ARCHITECTURE, re.MULTILINE)
    assert len(steps) == 19
    for files, name in steps:
        texts = [(PACKAGE / file).read_text(encoding="utf-8") for file in re.findall(r"`([\w/.]+)`", files)]
        assert not name or any(re.search(rf"^(def|class) {name}\b", text, re.MULTILINE) for text in texts), (
            files,
            name,
        )
