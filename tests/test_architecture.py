"""The import rules of docs/architecture.md, read off the source.

Direction is checked for every import, cycles for those that run when a module is imported (a function may import a
module of its own package at its first call).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = (
    "errors",
    "planner",
    "form",
    "kernels",
    "emitter",
    "compiler",
    "nn",
    "networks",
    "inspection",
    "conversion",
    "integrations",
    "benchmarking",
    "demo",
    "cli",
)
FREE = {"tpgen._version"}  # imports nothing, anybody may read it
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "tpgen").rglob("*.py"))
}


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


def layer(name: str) -> int:
    """Number of the package that a module belongs to."""
    return LAYERS.index(name.split(".")[1])


def imports(name: str, *, in_functions: bool = True) -> Iterator[str]:
    """Modules of tpgen that a module imports."""
    pending: list[ast.AST] = [tree(name)]
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not in_functions:
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not in_functions:
            continue
        pending.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "tpgen")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            if node.module and node.module.split(".")[0] == "tpgen":
                # "from package import module" names the module
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    yield full if full in MODULES else node.module


def dotted(name: str) -> set[str]:
    """Every dotted name that the code of a module reads, such as ``torch.fx.Graph``; imported names in full."""
    found = set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Attribute):
            found.add(ast.unparse(node))
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


INNER = [name for name in MODULES if name not in {"tpgen", "tpgen.__main__", *FREE}]


def test_every_package_has_its_place() -> None:
    assert {name.split(".")[1] for name in INNER} <= set(LAYERS)


@pytest.mark.parametrize("name", INNER)
def test_imports_point_to_the_left(name: str) -> None:
    for imported in imports(name):
        assert imported != "tpgen", f"{name} imports from the package root; import from the defining module"
        if imported not in FREE:
            assert layer(imported) <= layer(name), f"{name} imports {imported}, which stands to its right"


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {name: set(imports(name, in_functions=False)) for name in INNER}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_functions_import_from_their_own_package_alone() -> None:
    for name in INNER:
        late = set(imports(name)) - set(imports(name, in_functions=False))
        outside = [i for i in late if i not in FREE and layer(i) != layer(name)]
        assert not outside, f"{name} imports {outside} inside a function"


@pytest.mark.parametrize("name", INNER)
def test_only_the_emitter_writes_graphs(name: str) -> None:
    if LAYERS[layer(name)] not in ("emitter", "networks", "inspection"):
        assert not {d for d in dotted(name) if d.startswith("torch.fx")}


@pytest.mark.parametrize("name", INNER)
def test_only_the_backends_compile(name: str) -> None:
    if name == "tpgen.compiler.backends":
        return
    asked = {
        "nn": {"torch.jit", "torch.jit.is_scripting", "torch.jit.export"},
        "conversion": {"torch.jit", "torch.jit.ScriptModule"},
    }
    allowed = asked.get(LAYERS[layer(name)], set())
    for used in dotted(name) - allowed:
        compiles = used == "torch.compile" or used.startswith(
            ("torch.jit", "torch.cuda.CUDAGraph", "torch.cuda.graph", "torch.cuda.make_graphed_callables")
        )
        assert not compiles, f"{name} names {used}"


def test_the_root_exports_what_it_names() -> None:
    import tpgen

    assert all(hasattr(tpgen, name) for name in tpgen.__all__)
    assert 5 <= len(tpgen.__all__) <= 20


def test_the_rules_can_be_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The checks themselves see what they are there to see."""
    bad = tmp_path / "bad.py"
    bad.write_text(
        "import torch\nfrom torch import fx\nimport tpgen\n"
        "def f():\n    from tpgen.nn import checks\n    torch.jit.script(f)\n"
    )
    monkeypatch.setitem(MODULES, "tpgen.planner.bad", bad)
    assert set(imports("tpgen.planner.bad")) == {"tpgen", "tpgen.nn.checks"}
    assert set(imports("tpgen.planner.bad", in_functions=False)) == {"tpgen"}
    assert {"torch.fx", "torch.jit.script", "torch.jit"} <= dotted("tpgen.planner.bad")
    with pytest.raises(AssertionError, match="imports"):
        test_imports_point_to_the_left("tpgen.planner.bad")
    with pytest.raises(AssertionError, match="names torch"):
        test_only_the_backends_compile("tpgen.planner.bad")
