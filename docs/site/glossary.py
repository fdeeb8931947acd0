"""The words of docs/glossary.md, which the site shows as tooltips of links to them."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "glossary.md"
_ENTRY = re.compile(r"^## (?P<word>.+)\n\n(?P<meaning>.+)$", re.MULTILINE)


def meanings() -> dict[str, str]:
    """What each word means, in one line without marks, by the anchor of its heading."""
    return {
        entry["word"].lower().replace(" ", "-"): re.sub(r'[`*"]', "", entry["meaning"])
        for entry in _ENTRY.finditer(PAGE.read_text(encoding="utf-8"))
    }


def with_tooltips(markdown: str) -> str:
    """A page whose links to the glossary say what the word means."""
    known = meanings()
    return re.sub(
        r"glossary\.md#(?P<word>[\w-]+)\)", lambda m: f'glossary.md#{m["word"]} "{known[m["word"]]}")', markdown
    )
