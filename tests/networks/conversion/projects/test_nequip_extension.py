"""The modifier ``enable_tpgen``, found in whichever order modules are imported, on stand-ins of NequIP's modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import run_python

# NequIP loads extensions while it is half imported, and one of them may import a module of NequIP's that asks for more
NEQUIP = {
    "nequip/__init__.py": """
import importlib
half = True
for extension in ("extension_before", "tpgen.networks.conversion.projects.nequip_extension"):
    importlib.import_module(extension)
half = False
""",
    "nequip/model/__init__.py": "import nequip\nassert not nequip.half\n",
    "nequip/model/modify_utils.py": """
def get_all_modifiers(module, _all_modifiers=None):
    found = {} if _all_modifiers is None else _all_modifiers
    for child in module.children():
        get_all_modifiers(child, _all_modifiers=found)
    return found
""",
    "nequip/nn/__init__.py": "",
    "nequip/nn/model_modifier_utils.py": """
def model_modifier(**facts):
    def mark(method):
        method.__func__.facts = facts
        return method
    return mark
""",
    "extension_before/__init__.py": "import nequip\n",
}
USE = """
import torch
from e3nn import o3
from nequip.model.modify_utils import get_all_modifiers
network = torch.nn.Sequential(o3.Linear("2x0e", "2x0e"))
(name, modifier), = get_all_modifiers(network).items()
assert (name, modifier.__func__.facts["persistent"], modifier.__func__.facts["unsupported_devices"]) == (
    "enable_tpgen", False, ["cuda"]), (name, modifier.__func__.facts)
assert modifier == get_all_modifiers(network)[name]
assert modifier(network) is network
assert type(network[0]).__name__ == "ConvertedLinear"
assert modifier(network) is network
print("found")
"""


def run(folder: Path, code: str, **files: str) -> str:
    for name, text in (NEQUIP | files).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return run_python(f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}")


@pytest.mark.parametrize(
    "first", ["nequip", "extension_before", "nequip.nn", "tpgen", "tpgen.networks.conversion.projects.nequip_extension"]
)
def test_the_modifier_is_found_whatever_is_imported_first(first: str, tmp_path: Path) -> None:
    assert run(tmp_path, f"import {first}, nequip{USE}") == "found\n"


def test_a_version_that_searches_elsewhere_is_named(tmp_path: Path) -> None:
    code = """
import warnings, nequip
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    import nequip.model.modify_utils
print(said[0].message)
"""
    done = run(tmp_path, code, **{"nequip/model/modify_utils.py": ""})
    assert "NequIP has no model modifier enable_tpgen: its nequip.model.modify_utils has no get_all_" in done
