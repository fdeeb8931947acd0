"""The site of the docs leaves nothing out; `make docs` builds it and stops at a broken link."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import tpgen
from docs.site.glossary import meanings, with_tooltips

ROOT = Path(__file__).parent.parent
CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
REFERENCE = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
ENTRIES = re.findall(r"^::: (tpgen[\w.]+)$", REFERENCE, flags=re.MULTILINE)


def test_every_page_has_its_place_in_the_navigation() -> None:
    named = set(re.findall(r"[\w/]+\.md", CONFIG.split("\nnav:\n")[1]))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    examples = {f"examples/{path.stem}.md" for path in (ROOT / "docs" / "examples").glob("*.*")}
    assert pages | examples <= named


def test_every_entry_of_the_reference_is_there() -> None:
    for entry in ENTRIES:
        try:
            import_module(entry)
        except ModuleNotFoundError:
            module, _, name = entry.rpartition(".")
            assert getattr(import_module(module), name).__doc__, entry


def test_every_public_name_is_in_the_reference() -> None:
    homes = {f"tpgen.{home}.{name}" for name, home in tpgen._HOMES.items()}
    assert not {home for home in homes if home not in ENTRIES and home.rpartition(".")[0] not in ENTRIES}


def test_every_word_of_the_glossary_has_a_meaning_of_one_line() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert [word.replace("-", " ") for word in meanings()] == [w.lower() for w in re.findall(r"^## (.*)$", text, re.M)]
    assert all(20 < len(meaning) < 200 for meaning in meanings().values())


def test_a_link_to_the_glossary_shows_what_the_word_means() -> None:
    shown = with_tooltips("a [sweep](glossary.md#sweep) and [more](../glossary.md#role)")
    assert f'(glossary.md#sweep "{meanings()["sweep"]}")' in shown
    assert f'(../glossary.md#role "{meanings()["role"]}")' in shown
