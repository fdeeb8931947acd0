"""docs/source.md lists every module with the first words of its docstring, and docs/architecture.md every package.

After a change of modules, write the page anew with::

    python -m pytest tests/test_source_page.py --accept-golden
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tpgen"
PAGE = ROOT / "docs" / "source.md"
PACKAGES = [PACKAGE, *sorted(file.parent for file in PACKAGE.rglob("__init__.py") if file.parent != PACKAGE)]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
HEAD = """# Every module

The packages of tpgen and their modules, each with the first words of its docstring, in the order of the alphabet.
[architecture.md](architecture.md) says how they depend on each other and where to begin. A test compares this page
with the code, and writes it.
"""


def said(file: Path) -> str:
    """The first paragraph of a module's docstring, as a cell of a table."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    first = " ".join(text.split("\n\n")[0].split())
    return re.sub(r":$", ".", first).replace("|", r"\|")


def section(folder: Path) -> str:
    """One package: what it is, and its modules."""
    name = "tpgen" if folder == PACKAGE else f"{folder.relative_to(PACKAGE).as_posix()}/"
    files = [file for file in sorted(folder.glob("*.py")) if file.name not in ("__init__.py", "_version.py")]
    files += sorted((folder / "files").glob("*.py"))  # which a deployed folder gets
    rows = [f"| `{file.relative_to(folder).with_suffix('').as_posix()}` | {said(file)} |" for file in files]
    listed = "\n".join(["\n| module | what it is |", "|---|---|", *rows, ""]) if rows else ""
    return f"\n## `{name}`\n\n{said(folder / '__init__.py')}\n{listed}"


def test_the_page_lists_every_module(request: pytest.FixtureRequest) -> None:
    text = HEAD + "".join(map(section, PACKAGES))
    if request.config.getoption("--accept-golden"):
        PAGE.write_text(text, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == text, (
        f"modules changed; {Path(__file__).name} says how to write the page"
    )


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: folder.name)
def test_every_module_says_what_it_is(folder: Path) -> None:
    assert [file.name for file in folder.glob("*.py") if not said(file) and file.name != "_version.py"] == []


def rows() -> list[list[str]]:
    """The cells of the table of packages."""
    (table,) = re.findall(r"^\| package \|.*?\n\n", ARCHITECTURE, re.MULTILINE | re.DOTALL)
    return [line.strip("| ").split(" | ") for line in table.strip().split("\n")[2:]]


def test_every_package_has_its_row() -> None:
    named = {name for row in rows() for name in re.findall(r"`([\w./]+)`", row[0])}
    top = {f"{folder.name}/" for folder in PACKAGES if folder.parent == PACKAGE}
    top |= {file.name for file in PACKAGE.glob("*.py") if not file.name.startswith("_")}
    assert named == top
    inner = {f"{folder.name}/" for folder in PACKAGES if folder.parent.parent == PACKAGE}
    assert {name for name in inner if f"`{name}`" not in ARCHITECTURE} == set()


def test_rows_name_modules_that_there_are() -> None:
    words = {"auto", "right", "conversion/adapters.py"}  # of other things
    for cells in rows():
        packages = [PACKAGE / name for name in re.findall(r"`(\w+)/`", cells[0])]
        there = {path.stem if path.is_file() else f"{path.name}/" for p in packages for path in p.rglob("*")}
        assert set(re.findall(r"`([\w/.]+)`", cells[-1])) - there - words == set(), cells[0]
