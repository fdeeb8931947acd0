"""The site of the docs leaves nothing out; `make docs` builds it and stops at a broken link."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path

from benchmarks.network_picture import COMPILED, CONVERTED, NAMES, STOCK, curves, fastest
from docs.site.glossary import meanings, with_tooltips
from tpgen.base.public import HOMES

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
    homes = {f"tpgen.{home}.{name}" for name, home in HOMES.items()}
    assert not {home for home in homes if home not in ENTRIES and home.rpartition(".")[0] not in ENTRIES}


def test_every_word_of_the_glossary_has_a_meaning_of_one_line() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert [word.replace("-", " ") for word in meanings()] == [w.lower() for w in re.findall(r"^## (.*)$", text, re.M)]
    assert all(20 < len(meaning) < 200 for meaning in meanings().values())


def test_a_link_to_the_glossary_shows_what_the_word_means() -> None:
    shown = with_tooltips("a [sweep](glossary.md#sweep) and [more](../glossary.md#role)")
    assert f'(glossary.md#sweep "{meanings()["sweep"]}")' in shown
    assert f'(../glossary.md#role "{meanings()["role"]}")' in shown


def test_no_page_shows_a_peak_memory_of_nothing() -> None:
    """Large results of kernels stood in memory that no profiler saw, and so the best column was zero."""
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    assert [page.name for page in pages if re.search(r"\b0\.00 KiB", page.read_text(encoding="utf-8"))] == []
    tables = [json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "docs" / "records").glob("*.json")]
    peaks = [row["peak memory"] for table in tables for cells in table for row in cells["rows"] if "peak memory" in row]
    assert peaks
    assert [peak for peak in peaks if peak and float(peak.split()[0]) == 0] == []


def _networks(heading: str) -> list[list[str]]:
    """The cells of a table of docs/networks.md, a list for each row."""
    section = (
        (ROOT / "docs" / "networks.md").read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    )
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:2] == "| "][
        1:
    ]


def _drawn(project: str, atoms: int) -> float:
    """The ratio that the first picture has: of stock's faster mode to converted."""
    found = curves(project)
    return fastest(found[STOCK], found[COMPILED])[atoms] / found[CONVERTED][atoms]


def test_pages_that_repeat_a_figure_agree_with_its_table() -> None:
    """README and the home page say how fast steps are."""
    steps = {row[0]: float(row[2].rstrip("×")) for row in _networks("Times") if row[1] == "step"}
    training = [float(row[2].rstrip("×")) for row in _networks("Times") if row[1] == "training"]
    drawn = {atoms: [_drawn(project, atoms) for project in NAMES] for atoms in (64, 512)}
    gains = [*drawn[64], steps["SevenNet-0, 64 atoms"]]
    few_atoms = (ROOT / "docs" / "small_systems.md").read_text(encoding="utf-8")
    shown = re.findall(r"2 layers, .* atoms \| forces \| ([\d.]+) \| ([\d.]+) \|", few_atoms)
    stock, converted = map(float, shown[0])
    small = f"{stock / converted:.0f} times"
    few = f"{min(gains):.0f} to {max(gains):.0f} times"
    for page in ("README.md", "docs/index.md"):
        said = (ROOT / page).read_text(encoding="utf-8")
        assert f"[{few} as fast]" in said
        assert "(MACE {:.0f}, NequIP {:.0f}, SevenNet {:.0f})".format(*gains) in said
        assert f"[a NequIP of two layers]({'docs/' * (page == 'README.md')}small_systems.md#how-fast) {small}." in said
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    many = f"{min(drawn[512]):.0f} to {max(drawn[512]):.0f} times"
    assert f"With 512 atoms you gain {many}." in text
    assert min(float(row[7].rstrip("×")) for row in _networks("Beside symmetrix")) > 1
    assert min(training) > 1
    assert max(float(row[4]) for row in _networks("Peak memory of a training step")) < 1 / 5
    assert "less than a fifth of the memory" in text
    assert set(re.findall(r"[\d.]+ to [\d.]+ times", text)) == {few, many}, "a reader meets one baseline"


def test_a_ratio_is_that_of_the_times_beside_it() -> None:
    """But for 5 %: it is a median of ratios of calls in turn, beside medians of times."""
    for network, task, ratio, converted, best, eager in _networks("Times"):
        stock = eager if best == "eager" else best.split(maxsplit=1)[1]
        found, said = _seconds(stock) / _seconds(converted), float(ratio.rstrip("×"))
        assert abs(found / said - 1) < 0.05, f"{network}, {task}: {stock} / {converted} is {found:.1f}, not {said}"


def _seconds(text: str) -> float:
    value, unit = text.split()
    return float(value) * {"s": 1.0, "ms": 1e-3}[unit]
