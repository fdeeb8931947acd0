"""The types that a user's own checker sees: options by name and type, modules that return tensors."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import ClassVar, get_origin, get_type_hints

import pytest

import tpgen
from tpgen.compiler.config import (
    MODULE_FIELDS,
    Config,
    ConvertOptions,
    DirectionOptions,
    LinearOptions,
    ModuleOptions,
    RunOptions,
)
from tpgen.tools.inspection.stages.calls import PolynomialRequest

ROOT = Path(__file__).parent.parent
_RIGHT = """
from typing_extensions import assert_type

import tpgen
from tpgen.tools.inspection.stages.dump import dump_stage
from tpgen.planner.presets import channelwise

product = tpgen.TensorProduct("2x1o", "1o", "2x1e", [(0, 0, 0, "uvu", True)], strategy="grouped", layout="ir_mul")
named = tpgen.FullyConnectedTensorProduct("1o", "1o", "1e", backend="inductor", mode="max-autotune")
linear = tpgen.Linear("2x1o", "3x1o", strategy="einsum")
plan: tpgen.Plan = tpgen.make_plan("1o", "1o", "1e", [(0, 0, 0, "uvw", True)])
text: str = dump_stage(channelwise("2x1o", "1o", "1e"), "cpp", rows=4)
found = tpgen.explain(product, rows=10, measure=False).flops + 1
tpgen.convert(product, report=print, strategy="auto")
assert_type(tpgen.restore(tpgen.convert(product)), tpgen.TensorProduct)
"""
_WRONG = {
    'tpgen.FullTensorProduct("1o", "1o", strategi="grouped")': 'Unexpected keyword argument "strategi"',
    'tpgen.FullTensorProduct("1o", "1o", strategy=3)': 'has incompatible type "int"; expected "str"',
    'tpgen.TensorProduct("1o", "1o", "1e", [], streams="two")': 'has incompatible type "str"; expected "int"',
    'tpgen.Linear("1o", "1o", streams=1)': 'Unexpected keyword argument "streams"',
    "assert_type(tpgen.convert(linear), tpgen.TensorProduct)": 'Expression is of type "Linear"',
    'tpgen.convert(linear, layout="ir_mul")': 'Unexpected keyword argument "layout"',
    'dump_stage(plan, "cpp", row=3)': 'Unexpected keyword argument "row"',
}
# torch and e3nn are Any here: their own types take long to read and are not what is asked about
_CONFIG = "[mypy]\n[mypy-torch.*,e3nn.*,numpy.*]\nfollow_imports = skip\nignore_missing_imports = True\n"


@pytest.fixture(scope="module")
def users_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment in which tpgen is installed as a wheel would be, beside what it needs."""
    folder = tmp_path_factory.mktemp("user")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "tpgen").symlink_to(ROOT / "tpgen")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "venv" / "bin" / "python"


def test_a_users_script_is_checked(users_python: Path, tmp_path: Path) -> None:
    script, config = tmp_path / "script.py", tmp_path / "mypy.ini"
    lines = [*_RIGHT.splitlines(), *_WRONG]
    script.write_text("\n".join(lines) + "\n")
    config.write_text(_CONFIG)
    command = [sys.executable, "-m", "mypy", "--python-executable", users_python, "--config-file", config]
    found = subprocess.run(
        [*command, "--cache-dir", tmp_path / "c", script], capture_output=True, text=True, cwd=tmp_path
    )
    said = {int(line.split(":")[1]): line for line in found.stdout.splitlines() if ": error: " in line}
    assert list(said) == [lines.index(wrong) + 1 for wrong in _WRONG], found.stdout + found.stderr
    for wrong, message in _WRONG.items():
        assert message in said[lines.index(wrong) + 1]


def test_the_types_of_options_are_those_of_their_values() -> None:
    fields = get_type_hints(Config)
    assert get_type_hints(ModuleOptions) == {name: fields[name] for name in MODULE_FIELDS}
    assert set(ConvertOptions.__annotations__) | {"layout"} == set(ModuleOptions.__annotations__)
    assert get_type_hints(RunOptions).items() < get_type_hints(LinearOptions).items()
    hints = get_type_hints(PolynomialRequest).items()
    of_request = {name: hint for name, hint in hints if get_origin(hint) is not ClassVar}
    assert get_type_hints(DirectionOptions) == {name: hint for name, hint in of_request.items() if name != "plan"}


@pytest.mark.parametrize("name", sorted({*tpgen.__all__} - {"__version__"}))
def test_a_signature_says_what_irreps_may_be(name: str) -> None:
    """And so do the pages of the reference, which show signatures as they are written."""
    public = getattr(tpgen, name)
    signature = inspect.signature(public.__init__ if isinstance(public, type) else public)
    said = {name: str(p.annotation) for name, p in signature.parameters.items() if name.startswith("irreps_")}
    if name != "verify":  # which takes names and kinds of vectors too
        assert {name: text for name, text in said.items() if not re.search(r"Irreps *\| *str", text)} == {}


def test_each_argument_has_a_meaning_of_its_own() -> None:
    """The reference repeats what a docstring says of several names for each of them."""
    for module in (tpgen.TensorProduct, tpgen.Linear, tpgen.Polynomial):
        said = re.findall(r"^    (\w+(?:, \w+)*)\n        (.*)$", module.__doc__ or "", re.MULTILINE)
        assert said
        assert [names for names, text in said if "; whether" in text or "none``;" in text] == []
