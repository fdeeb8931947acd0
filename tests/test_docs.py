"""The documentation does what it says: snippets run, shown output is what they print, links resolve.

In README.md and docs/*.md

- the ```python blocks of one page run in order in one namespace; ``python no-run`` is compiled only;
- an ```output block after a ```python block is what that block prints (``...`` stands for anything);
- a ```console block holds commands, ``$ tpgen ...``, and below each what it prints (again ``...``); ``console fails``
  holds commands that exit with an error.

- ``output measured`` holds errors that differ from machine to machine: lines count as far as the first such figure.

``--accept-golden`` writes the ```output blocks anew, except those that hold ``...``.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import linecache
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch

import tpgen
from tests.machine import needs_compiler
from tpgen.compiler.backends import BACKENDS
from tpgen.emitter.strategies import STRATEGIES
from tpgen.planner.modes import MODES

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
COMPILED = (
    "kernels.md",
    "polynomials.md",
    "fx.md",
    "index.md",
    "own_network.md",
    "README.md",
)  # what they show is what generated kernels do
MEASURED = ROOT / "docs" / "benchmarks.md"  # benchmarks.report writes it; may be linked before there is one
_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block: its info string, its text, the line and the character where the text starts."""

    info: str
    text: str
    line: int
    start: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(m["info"].strip(), m["text"], text.count("\n", 0, m.start("text")) + 1, m.start("text"))
        for m in _FENCE.finditer(text)
    ]


def having(*infos: str) -> list:
    """The pages with a block of one of these kinds, as parameters."""
    return [
        pytest.param(p, id=p.name, marks=needs_compiler if p.name in COMPILED else ())
        for p in PAGES
        if any(b.info in infos for b in blocks(p))
    ]


_ERRORS = re.compile(r"\b\d[\d.]*e-\d+.*$", re.MULTILINE)


def matches(shown: str, printed: str, measured: bool = False) -> bool:
    if measured:
        shown, printed = (_ERRORS.sub("#", text) for text in (shown, printed))
    return doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)


@pytest.fixture
def _restored() -> Iterator[None]:
    """Leave torch as it was, whatever a page does."""
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)
    torch.compiler.reset()


@pytest.mark.usefixtures("_restored")
@pytest.mark.filterwarnings("ignore:1 module stays without tpgen, the first .readout.")  # own_network.md says so
@pytest.mark.parametrize("page", having("python", "python no-run"))
def test_snippets(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType("page_of_docs")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # Dynamo looks up in it what a class reads
    namespace = vars(module)
    printed, accepted = None, {}
    for block in blocks(page):
        if block.info in ("python", "python no-run"):
            name = f"{page.name}:{block.line}"
            # a traceback, and whatever else reads source, finds the snippet by this name
            linecache.cache[name] = (len(block.text), None, block.text.splitlines(keepends=True), name)
            code = compile(block.text, name, "exec")
            printed = None
            if block.info == "python":
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    exec(code, namespace)
                printed = out.getvalue()
        elif block.info in ("output", "output measured"):
            assert printed is not None, f"{page.name}:{block.line}: an output block without a python block that runs"
            if not matches(block.text, printed, measured=block.info.endswith("measured")):
                accepted[block] = printed
            printed = None
    _accept_or_fail(page, accepted, pytestconfig.getoption("--accept-golden"))


def _accept_or_fail(page: Path, printed: dict[Block, str], accept: bool) -> None:
    """Write what was printed into the blocks that show something else, or fail."""
    text = page.read_text(encoding="utf-8")
    for block in sorted(printed, key=lambda b: -b.start):
        if not accept or "..." in block.text:
            pytest.fail(f"{page.name}:{block.line} shows\n{block.text}\nbut what it prints is\n{printed[block]}")
        lines = "\n".join(line.rstrip() for line in printed[block].splitlines())
        text = text[: block.start] + lines + "\n" + text[block.start + len(block.text) :]
        page.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("page", having("console", "console fails"))
def test_commands(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> None:
    from click.testing import CliRunner

    from tpgen.tools.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    accepted = {}
    for block in blocks(page):
        if block.info not in ("console", "console fails"):
            continue
        parts = []
        for command, shown in _commands(block.text):
            words = shlex.split(command.replace("\\\n", " "), comments=True)
            assert words[0] == "tpgen", f"not a tpgen command: {command}"
            result = CliRunner().invoke(main, words[1:], prog_name=words[0])
            where = f"{page.name}:{block.line}: {command}\n{result.output}"
            assert (result.exit_code != 0) == block.info.endswith("fails"), where
            assert result.exception is None or isinstance(result.exception, SystemExit), where
            parts.append(f"$ {command}\n" + (shown if not shown or matches(shown, result.output) else result.output))
        if "".join(parts) != block.text:
            accepted[block] = "".join(parts)
    _accept_or_fail(page, accepted, pytestconfig.getoption("--accept-golden"))


def _commands(text: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output shown for it."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(m[1], m[2]) for part in parts if (m := re.match(r"((?:[^\n]*\\\n)*[^\n]*)\n(.*)", part, re.DOTALL))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page: Path) -> None:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    broken = []
    for link in _LINK.finditer(text):
        target, _, anchor = link["target"].partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / target).resolve() if target else page
        if file == MEASURED and not file.exists():
            continue
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            broken.append(link["target"])
    assert not broken


def _anchors(page: Path) -> set[str]:
    """Names of the headings of a page, as a link spells them."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_first_screen_of_the_readme_says_what_a_newcomer_needs() -> None:
    """Its use, how to install it, the line, a picture with figures, how to try it, lines that run, what they print."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    screen = text.split("\n`model` is still the same")[0]
    wanted = ("One line", "networks.md", "make demo", "make test", "pip install .", "convert(", "![", "equal")
    places = [screen.find(text) for text in wanted]
    assert -1 not in places
    assert places == sorted(places)
    assert len(screen.splitlines()) < 60
    assert len(text.split()) <= 900


def test_docs_stay_short() -> None:
    """Whoever adds a paragraph takes one away."""
    words = {page: len(page.read_text(encoding="utf-8").split()) for page in (ROOT / "docs").rglob("*.md")}
    assert sum(words.values()) <= 42_500
    assert [page for page, count in words.items() if count > 2_700] == []
    assert len((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split()) <= 1_000


def test_pages_import_public_names_from_the_root() -> None:
    """What stands in a module below may change with any version, and readers copy what they see."""
    taught = [*PAGES, *(ROOT / "docs" / "examples").glob("*.py"), *(ROOT / "docs" / "examples").glob("*.ipynb")]
    below = re.compile(r"from tpgen\.[\w.]+ import ([\w, ]+)")
    for page in taught:
        names = {name for m in below.finditer(page.read_text(encoding="utf-8")) for name in m[1].split(", ")}
        assert not names & {*tpgen.__all__}, page.name


def mentioned() -> set[tuple[str, tuple[str, ...]]]:
    """Commands that the pages show in their text or in blocks, with the options given to them, each with its page."""
    found = set()
    for page in set(PAGES) - {ROOT / "CHANGELOG.md"}:  # which tells of what is gone
        text = page.read_text(encoding="utf-8")
        shown = [m[1] for m in re.finditer(r"`(tpgen [^`\n]+)`", text)]
        shown += [m[1] for m in re.finditer(r"^(?: {4}|\$ )(tpgen [a-z][^\n]*)$", text, re.MULTILINE)]
        shown += [line for b in blocks(page) if b.info == "sh" for line in b.text.splitlines() if line[:6] == "tpgen "]
        found |= {(page.name, tuple(command.partition(" #")[0].split())) for command in shown}
    return found


def test_every_command_that_is_mentioned_exists_with_its_options() -> None:
    from click import Context, Group

    from tpgen.tools.cli.app import main

    wrong = set()
    for page, (_, *words) in mentioned():
        command, context = main, Context(main)
        while isinstance(command, Group) and words and (found := command.get_command(context, words[0])):
            command, words = found, words[1:]
        known = {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)} | {"--help", "--version"}
        unknown = {word for word in words if word.startswith("--")} - known
        if isinstance(command, Group) and words and words[0] not in ("--help", "COMMAND", "--version"):
            wrong.add(f"{page}: tpgen {words[0]}")
        elif unknown and command.name != "mace-run-train":  # which hands its options on
            wrong.add(f"{page}: {command.name} {unknown}")
    assert not wrong


# Words of tpgen's own that no reader knows, as they stand in sentences.
OURS = {
    "strategy": r"strateg(?:y|ies)",
    "sweep": r"sweeps?",
    "placement": r"placements?",
    "open-slot": r"(?:open )?slots?",
    "provenance": r"provenance",
    "contender": r"contenders?",
    "schedule": r"schedules?",
}
# Pages that scripts write, and those that explain nothing or everything.
WRITTEN = {"benchmarks.md", "benchmarks_layers.md", "networks.md", "CHANGELOG.md", "glossary.md"}


@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in WRITTEN], ids=lambda page: page.name)
def test_a_word_of_ours_is_explained_where_it_first_stands(page: Path) -> None:
    """It is a link to where it is explained, or stands in italics where the page explains it."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    prose = re.sub(r"`[^`]*`|^(?: {4}|#|:::|\|).*$", "", text, flags=re.MULTILINE)
    for word, spelled in OURS.items():
        first = re.search(rf"(?<![-\w/#]){spelled}\b", prose, flags=re.IGNORECASE)
        explained = re.search(rf"\[[^\]]*\b{spelled}\b[^\]]*\]\(|\*{spelled}\*", prose, flags=re.IGNORECASE)
        if first:
            where = prose[max(0, first.start() - 60) : first.end() + 30]
            here = explained is not None and explained.start() <= first.start() <= explained.end()
            assert here, f"link the first {first[0]!r} of the page to glossary.md#{word}: {where!r}"


def test_mode_table_is_that_of_the_planner() -> None:
    """docs/concepts.md: a row for each mode, with its einsum, the letters of its weight and its fan-in."""
    rows = re.findall(
        r"^\| `([^`]+)` +\| `([^`]+)` +\| `([^`]+)` +\| (\S+) +\| (yes|no) +\|",
        (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    expected = [
        (
            mode.name,
            f"{mode.in1}i,{mode.in2}j,ijk,{mode.weight}->{mode.out}k",
            mode.weight,
            f"`{mode.fan_in}`" if mode.fan_in else "1",
            "yes" if mode.needs_weight else "no",
        )
        for mode in MODES.values()
    ]
    assert rows == expected


API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def test_the_page_of_names_has_every_public_name_and_every_choice() -> None:
    assert sorted(re.findall(r"\[`(\w+)`\]\(reference/", API)) == sorted({*tpgen.__all__} - {"__version__"})
    choices = {name: re.findall(r"`(\w+)`", cell) for name, cell in re.findall(r"^\| `(\w+)` \| ([^|]+) \|", API, re.M)}
    assert sorted(choices["strategy"]) == sorted(["auto", *STRATEGIES])
    assert choices["backend"] == [*BACKENDS]


_PATH = re.compile(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.py)`")
_TABLE_OF = re.compile(r"`([A-Z_]{3,})` (?:in|of) `((?:[a-z_0-9]+/)+[a-z_0-9]+\.py)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_tables_of_the_code_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    places = {name: [r / name for r in (ROOT, ROOT / "tpgen", ROOT / "docs")] for name in _PATH.findall(text)}
    assert [name for name, found in places.items() if not any(path.exists() for path in found)] == []
    tables = {(table, ROOT / "tpgen" / file) for table, file in _TABLE_OF.findall(text)}
    assert [table for table, file in tables if not re.search(rf"^{table}\b", file.read_text("utf-8"), re.M)] == []


def test_modules_that_the_map_of_a_package_names_are_there() -> None:
    """Rows of tables that begin with a folder list modules and folders below it, or words of PyTorch and of users."""
    for page, home in ((ROOT / "docs" / "architecture.md", ""), (ROOT / "tpgen" / "kernels" / "README.md", "kernels")):
        rows = re.findall(r"^\| `([a-z_]+)/` \|(.*)", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(rows) > 4
        for folder, text in rows:
            below = {path.stem for path in (ROOT / "tpgen" / home / folder).rglob("*") if path.name[:2] != "__"}
            assert {*re.findall(r"`([a-z_]+)/?`", text)} - below <= {"auto", "vmap"}, f"{page.name}: {folder}"
