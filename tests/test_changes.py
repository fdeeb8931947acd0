"""Additions of docs/architecture.md, made in a scratch copy of the package: they work, in as many files as it says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
STATED = dict(re.findall(r"^\| (a [\w ]+) \| (\d+) \|$", PAGE, re.MULTILINE))

_ROW = 'Mode("uvw", "u", "v", "w", needs_weight=True),\n'
_COMMAND = '''import click


@click.command("hello")
def hello_command() -> None:
    """Greet the reader."""
    click.echo("hello")
'''
# The edits of each addition, as (file, old text, new text), and a program that uses the addition.
ADDITIONS = {
    "a mode": (
        [("planner/modes.py", _ROW, _ROW + 'Mode("uvvu", "u", "v", "vu"),\n')],
        "import torch; from tpgen import TensorProduct; "
        "product = TensorProduct('2x0e', '3x1o', '6x1o', [(0, 0, 0, 'uvvu', False)], strategy='einsum'); "
        "x, y = torch.randn(4, 2), torch.randn(4, 9); made = product(x, y); "
        "asked = torch.einsum('zu,zvi->zvui', x, y.reshape(4, 3, 3)).reshape(4, 18); "
        "torch.testing.assert_close(made, asked * (made[0, 0] / asked[0, 0]))",
    ),
    "a strategy": (
        [
            (
                "emitter/strategies.py",
                '"einsum": make_strategy(einsum),\n',
                '"einsum": make_strategy(einsum),\n"mine": make_strategy(einsum),\n',
            )
        ],
        "import torch; from tpgen import TensorProduct; "
        "given = '2x0e', '1o', '2x1o', [(0, 0, 0, 'uvu', False)]; "
        "asked, made = (TensorProduct(*given, strategy=name) for name in ('einsum', 'mine')); "
        "x, y = torch.randn(4, 2), torch.randn(4, 3); torch.testing.assert_close(made(x, y), asked(x, y))",
    ),
    "a command": (
        [
            ("tools/cli/hello.py", "", _COMMAND),
            ("tools/cli/app.py", "COMMANDS = {\n", 'COMMANDS = {\n    "hello": "Greet the reader.",\n'),
            ("tools/cli/app.py", "EXAMPLES = {\n", 'EXAMPLES = {\n    "hello": ("",),\n'),
        ],
        "from tpgen.tools.cli.app import main; main(['hello'])",
    ),
    "a way to find rows": (
        [
            (
                "kernels/rows.py",
                "(SOURCES, DESTINATIONS, ELEMENTS, EDGE_PAIRS)}",
                "(SOURCES, DESTINATIONS, ELEMENTS, EDGE_PAIRS, "
                'RowRule("kind", "x2", "kinds", "kind", ": kinds run from 0 to {}"))}',
            )
        ],
        "import torch; from tpgen.kernels.runtime.ops import describe; from tpgen.planner.presets import channelwise; "
        "text = describe(channelwise('8x0e', '0e+1o', '8x0e+8x1o')); call = 'x1 x2 w -> out'; "
        "form = torch.ops.tpgen.form; x, y, w, kind = torch.randn(5, 8), torch.randn(2, 4), torch.randn(5, 16), "
        "torch.tensor([1, 0, 0, 1, 1]); y.requires_grad_(); "
        "made, asked = form([x, y, w], [kind], text, call, 'kind')[0], form([x, y[kind], w], [], text, call)[0]; "
        "torch.testing.assert_close(made, asked); "
        "both = [torch.autograd.grad(z.sin().sum(), y)[0] for z in (made, asked)]; torch.testing.assert_close(*both)",
    ),
}


def test_the_page_states_a_number_for_each() -> None:
    assert set(STATED) == set(ADDITIONS)


@pytest.mark.parametrize("addition", ADDITIONS)
def test_an_addition_touches_as_many_files_as_the_page_says(addition: str, tmp_path: Path) -> None:
    edits, program = ADDITIONS[addition]
    package = tmp_path / "tpgen"
    shutil.copytree(ROOT / "tpgen", package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in edits:
        file = package / name
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        assert text.count(old) == 1 or not file.exists(), f"{name} has changed"
        file.write_text(text.replace(old, new) if text else new, encoding="utf-8")
    assert len({name for name, *_ in edits}) == int(STATED[addition])
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
