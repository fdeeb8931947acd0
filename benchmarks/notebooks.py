"""Notebooks of the docs, run cell by cell; `python -m benchmarks.notebooks` stores what they put out.

Those of `CLIENTS` are run in the environment of a project (``make clients``).  Outputs are kept as Jupyter keeps them:
what a cell printed, and its last expression, as text, a picture or a page.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "docs" / "examples"
CLIENTS = {"faster_mace.ipynb": "mace"}


def run_notebook(notebook: Path) -> dict[str, Any]:
    """The notebook with the outputs that its cells have here and now, in a folder of their own."""
    document = json.loads(notebook.read_text(encoding="utf-8"))
    namespace: dict[str, Any] = {"__name__": "notebook"}
    with tempfile.TemporaryDirectory() as folder, _inside(folder):
        for cell in document["cells"]:
            if cell["cell_type"] == "code":
                cell["outputs"] = run_cell(cell, namespace)
    return document


@contextlib.contextmanager
def _inside(folder: str) -> Any:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def run_cell(cell: dict[str, Any], namespace: dict[str, Any]) -> list[dict[str, Any]]:
    """The outputs of a cell as a notebook keeps them: what it printed, and its last expression."""
    module = ast.parse("".join(cell["source"]))
    *body, end = module.body
    last = end.value if isinstance(end, ast.Expr) else None
    module.body = body if last is not None else module.body
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(module, "cell", "exec"), namespace)
        value = eval(compile(ast.Expression(last), "cell", "eval"), namespace) if last is not None else None
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    if value is not None:
        text = str(value) if hasattr(value, "_repr_pretty_") else repr(value)  # as IPython does
        data = {"text/plain": text.splitlines(keepends=True), **_rich(value)}
        outputs.append({"data": data, "execution_count": None, "metadata": {}, "output_type": "execute_result"})
    return outputs


def _rich(value: Any) -> dict[str, Any]:
    """How Jupyter shows a picture, or a page of tpgen's."""
    return {kind: show(value) for name, (kind, show) in _SHOWN.items() if type(value).__name__ == name}


def _png(figure: Any) -> str:
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=80, metadata={"Software": None})
    return base64.b64encode(drawn.getvalue()).decode()


_SHOWN: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "Figure": ("image/png", _png),
    "Page": ("text/html", lambda page: [page._repr_html_()]),
}
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*\.?\d*(?:e[-+]?\d+)?(?!\w)")


def structure(document: dict[str, Any]) -> list[Any]:
    """Outputs without their numbers and pictures: what is the same on every machine."""
    cells = [cell["outputs"] for cell in document["cells"] if cell["cell_type"] == "code"]
    return [[_structure(output) for output in outputs] for outputs in cells]


def _structure(output: dict[str, Any]) -> dict[str, str]:
    data = output.get("data", {"text": output.get("text", "")})
    return {kind: "" if kind == "image/png" else _masked("".join(text)) for kind, text in data.items()}


def _masked(text: str) -> str:
    return " ".join(_NUMBER.sub("#", text).split())


def write_notebook(document: dict[str, Any], notebook: Path) -> None:
    notebook.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.notebooks")
    parser.add_argument("names", nargs="*", metavar="NAME", help="files of docs/examples; all where left out")
    parser.add_argument("--clients", type=Path, default=Path(".clients"), help="where the projects' environments are")
    parser.add_argument("--here", action="store_true", help="in this environment, whichever a notebook is for")
    asked = parser.parse_args()
    return max(
        (
            _renew(FOLDER / name, asked)
            for name in asked.names or [file.name for file in sorted(FOLDER.glob("*.ipynb"))]
        ),
        default=0,
    )


def _renew(notebook: Path, asked: argparse.Namespace) -> int:
    client = CLIENTS.get(notebook.name)
    if client and not asked.here:
        python = asked.clients / client / "bin" / "python"
        if not python.exists():
            print(f"*** {notebook.name} IS NOT RUN: there is no {python} (make clients)", file=sys.stderr)
            return 1
        command = [str(python), "-W", "ignore", "-m", "benchmarks.notebooks", "--here", notebook.name]
        return subprocess.run(command, env={**os.environ, "PYTHONPATH": os.getcwd()}, check=False).returncode
    write_notebook(run_notebook(notebook), notebook)
    print(notebook)
    return 0


if __name__ == "__main__":
    sys.exit(main())
