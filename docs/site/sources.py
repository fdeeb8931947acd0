"""The page of every module, made of their docstrings when the site is built."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "tpgen"
HEAD = """# Every module

The packages of tpgen and their modules, each with the first words of its docstring. [Architecture](architecture.md)
says how they depend on each other and where to begin.
"""


def sources_page() -> str:
    return HEAD + "".join(map(_section, packages()))


def packages() -> list[Path]:
    return [PACKAGE, *sorted(file.parent for file in PACKAGE.rglob("__init__.py") if file.parent != PACKAGE)]


def said(file: Path) -> str:
    """The first paragraph of a module's docstring, as a cell of a table."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    first = " ".join(text.split("\n\n")[0].split())
    return re.sub(r":$", ".", first).replace("|", r"\|")


def _section(folder: Path) -> str:
    name = "tpgen" if folder == PACKAGE else f"{folder.relative_to(PACKAGE).as_posix()}/"
    files = [file for file in sorted(folder.glob("*.py")) if file.name not in ("__init__.py", "_version.py")]
    files += sorted((folder / "files").glob("*.py"))  # which a deployed folder gets
    rows = [f"| `{file.relative_to(folder).with_suffix('').as_posix()}` | {said(file)} |" for file in files]
    listed = "\n".join(["\n| module | what it is |", "|---|---|", *rows, ""]) if rows else ""
    return f"\n## `{name}`\n\n{said(folder / '__init__.py')}\n{listed}"
