"""The import rules of docs/architecture.md, read off the source.

Direction and cycles are checked for every import, also for those inside functions; the few of these that there are for
a reason are listed with it.  An import for type checkers alone is none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.cases import run_python

ROOT = Path(__file__).parent.parent
LAYERS = (
    "errors",
    "text",
    "drawing",
    "notebook",
    "progress",
    "remember",
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
    "deployment",
    "verification",
    "benchmarking",
    "demo",
    "cli",
)
FREE = {"tpgen._version", "tpgen._e3nn"}  # these import nothing of the package, anybody may read them
# (module, what it imports inside a function): why
LATE = {
    ("tpgen.nn.tensor_product", "tpgen.inspection.costs.explain"): "the method belongs to the module, what it does to "
    "inspection, which imports the module; programs that only run products never load it",
    ("tpgen.nn.form_module", "tpgen.inspection.costs.memory"): "the same",
    ("tpgen.nn.polynomial_module", "tpgen.inspection.costs.explain_polynomial"): "the same",
    ("tpgen.nn.linear", "tpgen.inspection.costs.explain_linear"): "the same",
    ("tpgen.deployment.files.load", "tpgen.kernels.operators.ops"): "the file runs without "
    "tpgen where a package was deployed; where tpgen is imported, its operators serve",
    ("tpgen.deployment.files.load", "tpgen.kernels.polynomial.operator"): "the same",
}
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
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
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
    for imported in set(imports(name)) - {late for module, late in LATE if module == name}:
        assert imported != "tpgen", f"{name} imports from the package root; import from the defining module"
        if imported not in FREE:
            assert layer(imported) <= layer(name), f"{name} imports {imported}, which stands to its right"


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {name: set(imports(name, in_functions=False)) for name in INNER}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


@pytest.mark.parametrize("name", INNER)
def test_functions_import_nothing_of_the_package(name: str) -> None:
    """An import at the first call hides a cycle, or what a module is made of."""
    late = set(imports(name)) - set(imports(name, in_functions=False))
    assert late <= {found for module, found in LATE if module == name}, f"{name} imports {late} inside a function"


def test_the_listed_late_imports_are_there() -> None:
    assert all(late in set(imports(name)) for name, late in LATE)


# Functions whose few answers are facts about this process, the machine or the package: there is nothing to limit.
FACTS = {
    "tpgen.compiler.autotune": {"say_once"},
    "tpgen.conversion.notices": {"_say"},
    "tpgen.inspection.costs.roofline": {"_remembered"},
    "tpgen.kernels.cpp.text": {"read_header"},
    "tpgen.kernels.cuda.driver": {"_open", "need_driver", "cuda_taken", "capability", "processors"},
    "tpgen.kernels.cuda.nvrtc": {"_candidates", "_opened"},
    "tpgen.kernels.libraries.cache": {"_checked_directory", "fallback"},
    "tpgen.kernels.libraries.compiler": {"_find", "openmp_runtime", "cpu_features"},
    "tpgen.kernels.native.functions": {"native_function"},
    "tpgen.kernels.native.runtime": {"_runtime"},
    "tpgen.kernels.native.source": {"process_text"},
    "tpgen.kernels.operators.call": {"slots_in"},
    "tpgen.kernels.operators.runtime": {"slots_of"},
    "tpgen.kernels.operators.targets": {"target_of", "polynomial_target_of"},
    "tpgen.networks.cse": {"_is_random"},
}


def cached(name: str) -> set[str]:
    """Functions of a module under `functools.cache` or `lru_cache`."""
    functions = [node for node in ast.walk(tree(name)) if isinstance(node, ast.FunctionDef)]
    decorators = {f.name: {ast.unparse(d).split("(")[0] for d in f.decorator_list} for f in functions}
    return {f for f, names in decorators.items() if names & {"cache", "lru_cache"}}


@pytest.mark.parametrize("name", INNER)
def test_every_cache_that_grows_can_be_seen(name: str) -> None:
    """What grows with the products of a process is `remembered`, so that `tpgen.caches()` lists and limits it."""
    assert cached(name) <= FACTS.get(name, set()), "use tpgen.remember.remembered, or list it as a fact"


def test_every_package_that_names_e3nn_prepares_its_import() -> None:
    naming = {name for name in INNER if any(found.split(".")[0] == "e3nn" for found in dotted(name))}
    packages = {".".join(name.split(".")[:2]) for name in naming}
    assert not [package for package in packages if "tpgen._e3nn" not in set(imports(package))]


def test_the_package_needs_no_benchmarks() -> None:
    assert not [name for name in MODULES if any(found.split(".")[0] == "benchmarks" for found in dotted(name))]


# --- what is loaded, in a process of its own --------------------------------------------------------------------------


def loaded(code: str) -> set[str]:
    """The modules that a fresh process holds after running the code."""
    return set(run_python(f"{code}\nimport sys\nprint(*sys.modules)").splitlines()[-1].split())


def of(found: set[str], *packages: str) -> list[str]:
    return sorted(name for name in found if name in packages or name.startswith(tuple(f"{p}." for p in packages)))


def test_the_root_loads_nothing_but_itself() -> None:
    assert of(loaded("import tpgen"), "tpgen", "torch", "e3nn", "numpy") == ["tpgen", "tpgen._version"]


def test_beside_torch_the_root_registers_the_operators() -> None:
    code = "import torch, tpgen\ntorch.ops.tpgen.product.default, torch.ops.tpgen.polynomial.default"
    assert not of(loaded(code), *(f"tpgen.{layer}" for layer in LAYERS[LAYERS.index("nn") :]))


def test_products_load_nothing_that_inspects_them() -> None:
    code = "import tpgen\ntpgen.TensorProduct('1o', '1o', '1e', [(0, 0, 0, 'uvw', True)])\ntpgen.TensorProductConv"
    right = [f"tpgen.{layer}" for layer in LAYERS[LAYERS.index("networks") :]]
    assert not of(loaded(code), *right, "matplotlib", "rich", "click", "pygments")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["explian"]])
def test_the_command_line_answers_without_torch(arguments: list[str]) -> None:
    found = loaded(f"from tpgen.cli import main\ntry: main({arguments})\nexcept SystemExit: pass")
    assert not of(found, "torch", "e3nn", "numpy", "rich", "matplotlib")


@pytest.mark.parametrize("name", INNER)
def test_only_the_emitter_writes_graphs(name: str) -> None:
    if LAYERS[layer(name)] not in ("emitter", "networks", "inspection"):
        assert not {d for d in dotted(name) if d.startswith("torch.fx")}


@pytest.mark.parametrize("name", INNER)
def test_only_the_backends_compile(name: str) -> None:
    if name == "tpgen.compiler.backends":
        return
    asked = {
        "nn": {"torch.jit", "torch.jit.is_scripting", "torch.jit.is_tracing", "torch.jit.export"},
        "conversion": {"torch.jit", "torch.jit.ScriptModule", "torch.jit.is_scripting"},
        "integrations": {"torch.jit", "torch.jit.is_scripting", "torch.jit.ScriptModule"},
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
    assert 5 <= len(tpgen.__all__) <= 28
    assert sorted(tpgen.__all__) == sorted([*tpgen._HOMES, "__version__"])
    typed = next(node for node in ast.walk(tree("tpgen")) if isinstance(node, ast.If))
    told = {a.name: i.module for i in typed.body if isinstance(i, ast.ImportFrom) for a in i.names}
    assert told == {name: f"tpgen.{home}" for name, home in tpgen._HOMES.items()}
    assert set(tpgen.__all__) <= set(dir(tpgen))
    with pytest.raises(AttributeError, match="no attribute 'TensorProdukt'"):
        tpgen.TensorProdukt  # noqa: B018


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
