"""What the site needs beside the pages: the repository's own, the examples, and fences and links in its spelling."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from glossary import with_tooltips  # this and `sources` stand beside this file
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File
from sources import sources_page

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
ASSETS = Path(__file__).parent / "assets"
# Pages of the explorer, which `make docs` writes, and where they stand on the site.
EXPLORERS = {"explorer.html": "explorer_live.html", "layer_explorer.html": "examples/layer_explorer.html"}
# Pages of the repository that stand outside docs/, and what they are called on the site.
OUTSIDE = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "tpgen/kernels/README.md": "inside_kernels.md",
}
_FENCE = re.compile(r"^```(python|console|output) ?[\w-]*$", re.MULTILINE)
_LANGUAGE = {"python": "python", "console": "console", "output": "text"}
_PICTURE_OF_THE_PAGE = re.compile(r"^On GitHub you see a picture of it:\n\n!\[.*\n", re.MULTILINE)
_ROLE = re.compile(r":math:`([^`]+)`")
_SYMBOLS = {r"\sum": "Σ", r"\alpha": "α", r"\otimes": "⊗", r"\partial": "∂", r"\dots": "…", r"\,": " ", r"\cdot": "·"}


class Formulas(Extension):
    """Formulas of docstrings as code with their symbols: no page loads a typesetter from another server."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(_Formulas(md), "formulas", 100)


class _Formulas(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        return _ROLE.sub(lambda found: f"`{_plain(found[1])}`", "\n".join(lines)).split("\n")


def _plain(formula: str) -> str:
    for name, symbol in _SYMBOLS.items():
        formula = formula.replace(name, symbol)
    return formula


def on_config(config: Any) -> Any:
    config.markdown_extensions.append(Formulas())
    return config


def on_files(files: Any, config: Any) -> Any:
    for outside, page in OUTSIDE.items():
        text = (ROOT / outside).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "source.md", content=sources_page()))
    for asset in sorted(ASSETS.iterdir()):
        files.append(File.generated(config, f"assets/{asset.name}", content=asset.read_text(encoding="utf-8")))
    for made, page in EXPLORERS.items():
        text = (ROOT / "out" / "site" / made).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    for name, text in example_pages():
        files.append(File.generated(config, f"examples/{name}.md", content=text))
    return files


def example_pages() -> Iterator[tuple[str, str]]:
    for language, ending in (("python", "py"), ("cpp", "cpp")):
        for script in sorted(EXAMPLES.glob(f"*.{ending}")):
            yield script.stem, f"# {script.name}\n\n```{language}\n{script.read_text(encoding='utf-8')}```\n"
    for notebook in sorted(EXAMPLES.glob("*.ipynb")):
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        yield notebook.stem, "\n\n".join(map(_cell, cells))


def _cell(cell: dict[str, Any]) -> str:
    """A cell of a notebook as Markdown: its text; or its code, and what it put out."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source.replace(".ipynb)", ".md)")
    shown = [_output(output.get("data", {"text/plain": output.get("text")})) for output in cell["outputs"]]
    return "\n\n".join([f"```python\n{source}\n```", *shown])


def _output(data: dict[str, Any]) -> str:
    """What a cell put out: a page, else a picture, else text."""
    if "text/html" in data:
        return "".join(data["text/html"])
    if "image/png" in data:
        return f'<img alt="what the cell has drawn" src="data:image/png;base64,{data["image/png"]}">'
    return f"```text\n{''.join(data['text/plain'])}\n```"


_ASKS = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^>]*>""")


def on_post_page(output: str, page: Any, config: Any) -> str:
    """No page asks a server for a part of it."""
    if asked := [tag for tag in _ASKS.findall(output) if 'rel="canonical"' not in tag]:
        raise PluginError(f"{page.file.src_uri} asks a server: {asked[0]}")
    return output


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Fences whose second word is for the tests, links to pages outside docs/, and what a word means as its tooltip."""
    for outside, name in OUTSIDE.items():
        markdown = markdown.replace(f"](../{outside}", f"]({name}")
    if page.file.src_uri == "index.md":  # where the explorer itself stands above its picture
        markdown = _PICTURE_OF_THE_PAGE.sub("", markdown)
    if page.file.src_uri != "examples.md":  # which has the files, to take home
        markdown = markdown.replace(".ipynb)", ".md)")
    return _FENCE.sub(lambda found: f"```{_LANGUAGE[found[1]]}", with_tooltips(markdown))
