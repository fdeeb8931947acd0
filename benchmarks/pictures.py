"""The pictures of the docs, taken from the code as it is: `make pictures` writes all of them into docs/pictures.

The same code gives the same files: what was measured is drawn from records in
docs/records.  The picture of the explorer is taken in Chromium; without one it is left as it is, which the command
says, and ends with 1.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import tpgen
from benchmarks.network_picture import draw_networks
from benchmarks.small_picture import draw_shares
from tpgen.planner.problems import PROBLEMS
from tpgen.tools.inspection.costs.pictures import draw_couplings, draw_graph
from tpgen.tools.inspection.costs.roofline import Ceilings
from tpgen.tools.inspection.explorer.page import write_explorer
from tpgen.tools.inspection.stages.request import Request

DOCS = Path(__file__).parent.parent / "docs"
FOLDER = DOCS / "pictures"
MACHINE = Ceilings(bandwidth=16e9, flops=140e9)  # of one core; given, so that no picture depends on the hour
_SCREEN = (1040, 680)
_FENCED = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


class NoBrowserError(Exception):
    """There is no Chromium here."""


def _explain(path: Path) -> None:
    tpgen.explain(PROBLEMS["mace-large"].plan, rows=2000, strategy="kernel", ceilings=MACHINE).plot(path)


def _captured(path: Path) -> None:
    """The product of docs/compile_report.md."""
    product = tpgen.FullyConnectedTensorProduct("2x0e+1x1o", "0e+1o", "1o", strategy="grouped")
    draw_graph(Request(product.plan, strategy="grouped"), path)


def _flat(path: Path) -> None:
    """The network of docs/fx.md, as that page draws it."""
    _draw_as_in("fx.md", path)


def _draw_as_in(page: str, path: Path) -> None:
    """Run the code of a page as far as the block that draws a picture of this name."""
    blocks = _FENCED.findall((DOCS / page).read_text(encoding="utf-8"))
    named = f'"{path.name}"'
    last = next(n for n, block in enumerate(blocks) if named in block)
    names: dict[str, Any] = {"__name__": "__main__"}
    for n, block in enumerate(blocks[: last + 1]):
        program = compile(block.replace(named, repr(str(path))), f"{page}, block {n + 1}", "exec")
        with redirect_stdout(StringIO()):
            exec(program, names)  # what the page shows its reader


def _explorer(path: Path) -> None:
    """A path of mace-medium, chosen."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise NoBrowserError("no Chromium here (Debian: apt-get install chromium)")
    with tempfile.TemporaryDirectory() as folder:
        page = write_explorer(PROBLEMS["mace-medium"].plan, Path(folder) / "page.html", rows=2000, ceilings=MACHINE)
        shot = Path(folder) / "shot.png"
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        size = ["--force-device-scale-factor=1", f"--window-size={_SCREEN[0]},{_SCREEN[1]}", "--no-first-run"]
        command = [browser, *flags, *size, f"--user-data-dir={folder}/profile", f"--screenshot={shot}"]
        subprocess.run([*command, f"{page.as_uri()}#path=6"], check=True, capture_output=True, timeout=120)
        shutil.move(shot, path)


PICTURES: dict[str, Callable[[Path], None]] = {
    "captured.png": _captured,
    "couplings.png": lambda path: draw_couplings(PROBLEMS["mace-medium"].plan, path),
    "explain.png": _explain,
    "explorer.png": _explorer,
    "flat.png": _flat,
    "networks.png": draw_networks,
    "small_systems.png": draw_shares,
    "graph.png": lambda path: draw_graph(Request(PROBLEMS["mace-medium"].plan, strategy="einsum"), path),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.pictures")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PICTURES)}; all where left out")
    parser.add_argument("--out", type=Path, default=FOLDER, help="the folder (docs/pictures)")
    asked = parser.parse_args()
    for name in asked.names:
        if name not in PICTURES:
            parser.error(f"there is no picture {name!r}; there are {', '.join(PICTURES)}")
    asked.out.mkdir(parents=True, exist_ok=True)
    return max([_take(name, asked.out.resolve() / name) for name in asked.names or PICTURES], default=0)


def _take(name: str, path: Path) -> int:
    try:
        PICTURES[name](path)
    except NoBrowserError as error:
        print(f"*** {name} IS NOT TAKEN: {error}", file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
