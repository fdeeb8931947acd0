"""The import rules of docs/architecture.md, read off the source.

Direction and cycles are checked for every import, also for those inside functions; the few of these that there are for
a reason are listed with it.  An import for type checkers alone is none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.cases import run_python
from tpgen.base.public import HOMES

ROOT = Path(__file__).parent.parent
# Rooms of each wing, from the ground up.  A module imports from its own room and from those before it.
WINGS = {
    "base": (
        *("_version", "base.locks", "base.errors", "base.text", "base.drawing", "base.notebook", "base.progress"),
        *("base.remember", "base._torch", "base._e3nn_constants", "base._e3nn", "base.clock", "base.public"),
    ),
    "generator": (
        *("planner", "form"),
        *(f"kernels.{room}" for room in ("rows", "arguments", "sweep", "placement", "cpp", "build", "cuda", "runtime")),
        *("emitter", "compiler", "nn", "functions"),
    ),
    "networks": ("networks", "networks.conversion", "networks.deployment"),
    "tools": ("tools.inspection", "tools.verification", "tools.bench", "tools.demo", "tools.cli"),
}
ROOMS = [room for rooms in WINGS.values() for room in rooms]
# Modules that load others by name: why
LOADERS = {
    "tpgen.base.public": "public names are loaded when somebody asks for them, a tool by a method of a module too",
    "tpgen.base._torch": "private names of torch",
    "tpgen.tools.cli.app": "a command is loaded when it is run",
    "tpgen.tools.cli.networks": "a network that a user names",
    "tpgen.networks.deployment.models": "clients, which need not be here",
    "tpgen.networks.deployment.files.load": "a module of torch 2.10, which reads it without an import of its own",
    "tpgen.networks.conversion.packages": "the installed class of a class that a package brought",
    "tpgen.networks.conversion.projects.mace": "the half of an adapter that imports MACE",
    "tpgen.networks.conversion.projects.nequip": "the halves of adapters that import NequIP and Allegro",
    "tpgen.networks.conversion.projects.sevennet": "the half of an adapter that imports SevenNet",
    "tpgen.networks.conversion.projects.lammps": "the client that LAMMPS runs",
}
# (module, what it imports inside a function): why
LATE = {
    ("tpgen.networks.deployment.files.load", "tpgen.kernels.runtime.ops"): "the file runs without "
    "tpgen where a package was deployed; where tpgen is imported, its operators serve",
}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "tpgen").rglob("*.py"))
}
OURS = ("tpgen", "benchmarks")
BENCHMARKS = {f"benchmarks.{path.stem}": path for path in sorted((ROOT / "benchmarks").glob("*.py"))}


@cache
def tree(name: str) -> ast.Module:
    return ast.parse((MODULES | BENCHMARKS)[name].read_text(encoding="utf-8"))


def room(name: str) -> str:
    """Room of a module: the longest that its name begins with; that of a package's face is its first."""
    inner = name.removeprefix("tpgen.")
    rooms = [room for room in ROOMS if f"{inner}.".startswith(f"{room}.")]
    return max(rooms, key=len) if rooms else next(room for room in ROOMS if room.startswith(f"{inner}."))


def wing(name: str) -> str:
    return next(wing for wing, rooms in WINGS.items() if room(name) in rooms)


def loaded_by_name(node: ast.AST) -> list[str] | None:
    """Modules that a call of `import_module` may load, as far as its text tells."""
    if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith(("import_module", "__import__")):
        return None
    match node.args[0]:
        case ast.Constant(value=name):
            return [name]
        case ast.JoinedStr(values=[ast.Constant(value=start), *_]) if start != "tpgen.":  # any public name's
            return [name for name in MODULES if name.startswith(start) and "." not in name.removeprefix(start)]
        case _:
            return []


def imports(name: str, *, in_functions: bool = True, for_types: bool = False, by_name: bool = True) -> Iterator[str]:
    """Modules of ours that a module imports: at the top, in functions, for type checkers alone, or by their names."""
    pending: list[ast.AST] = [tree(name)]
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not in_functions:
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not for_types:
            continue
        pending.extend(ast.iter_child_nodes(node))
        if by_name:
            yield from (found for found in loaded_by_name(node) or () if found.split(".")[0] in OURS and found != name)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in OURS)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            if node.module and node.module.split(".")[0] in OURS:
                # "from package import module" names the module
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    yield full if full in MODULES | BENCHMARKS else node.module


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


INNER = [name for name in MODULES if name not in {"tpgen", "tpgen.__main__"}]


def test_every_module_has_a_room() -> None:
    assert {room(name) for name in INNER} == set(ROOMS)


def top(name: str) -> str:
    """The entry of `tpgen/` that a module stands in."""
    return name.split(".")[1]


def package(name: str) -> str:
    return "kernels" if top(name) == "kernels" else room(name)


def test_a_newcomer_meets_few_rooms() -> None:
    """Entries of `tpgen/`, arrows between them, and floors: a room stands on a floor above all that it imports."""
    arrows = {(top(n), top(i)) for n in INNER for i in set(imports(n)) if i in INNER} - {(top(n),) * 2 for n in INNER}
    below = {room: {b for a, b in arrows if a == room} for room in {top(n) for n in INNER}}
    floors: dict[str, int] = {}
    for one in TopologicalSorter(below).static_order():
        floors[one] = 1 + max((floors[under] for under in below[one]), default=0)
    entries = [path.name for path in (ROOT / "tpgen").iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 14
    assert len(arrows) <= 52
    assert max(floors.values()) <= 10


def test_modules_that_load_others_by_name_are_listed() -> None:
    found = {n for n in INNER if any(loaded_by_name(node) is not None for node in ast.walk(tree(n)))}
    assert found == set(LOADERS)


def test_generator_and_networks_know_no_tool() -> None:
    below = [name for name in INNER if wing(name) != "tools"]
    known = {(n, i) for n in below for i in imports(n, for_types=True)}
    assert not {(n, i) for n, i in known if i in INNER and wing(i) == "tools"}


@pytest.mark.parametrize("name", INNER)
def test_imports_point_to_the_left(name: str) -> None:
    for imported in set(imports(name)) - {late for module, late in LATE if module == name}:
        assert imported != "tpgen", f"{name} imports from the package root; import from the defining module"
        before = ROOMS.index(room(imported)) <= ROOMS.index(room(name))
        assert before, f"{name} imports {imported}, which stands to its right"


def test_no_module_imports_itself_in_a_circle() -> None:
    """Imports in functions and for type checkers count too: of two that know each other one knows too much."""
    graph = {
        name: {i for i in imports(name, for_types=True) if (name, i) not in LATE} for name in (*INNER, *BENCHMARKS)
    }
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


@pytest.mark.parametrize("name", INNER)
def test_functions_import_nothing_of_the_package(name: str) -> None:
    """An import at the first call hides a cycle, or what a module is made of."""
    late = set(imports(name, by_name=False)) - set(imports(name, in_functions=False, by_name=False))
    assert late <= {found for module, found in LATE if module == name}, f"{name} imports {late} inside a function"


def test_the_listed_imports_are_there() -> None:
    assert all(late in set(imports(name)) for name, late in LATE)


# Functions whose few answers are facts about this process, the machine or the package: there is nothing to limit.
FACTS = {
    "tpgen.compiler.autotune": {"warn_once_of_missing_kernels"},
    "tpgen.networks.conversion.notices": {"_warn_once"},
    "tpgen.tools.inspection.costs.roofline": {"_cached_ceilings"},
    "tpgen.kernels.cpp.text": {"read_header"},
    "tpgen.kernels.cuda.driver": {
        *("_load_driver_library", "need_driver", "find_entry_points", "driver_cuda_version"),
        *("capability", "count_multiprocessors"),
    },
    "tpgen.kernels.cuda.nvrtc": {"_list_candidate_files", "_load_library_or_none"},
    "tpgen.kernels.build.cache": {"_create_and_check_directory", "make_temporary_cache"},
    "tpgen.kernels.build.compiler": {"_first_usable_compiler", "find_openmp_runtime"},
    "tpgen.kernels.build.processor": {"cpu_features"},
    "tpgen.kernels.runtime.native.source": {"compile_header_function", "write_process_runtime_source"},
    "tpgen.kernels.runtime.native.identity": {"_make_identity_test_method", "_register_dict_watcher"},
    "tpgen.kernels.runtime.native.words": {
        *(
            "_offset_of_class_pointer",
            "_offset_of_mro_pointer",
            "_find_offsets_of_function_fields",
            "_offset_of_cell_content",
        ),
        *(
            "_is_list_layout_known",
            "_is_inline_value_layout_known",
            "_is_dict_order_layout_known",
            "_is_dict_version_layout_known",
        ),
    },
    "tpgen.kernels.runtime.native.runtime": {"_build_cpp_runtime_or_none"},
    "tpgen.kernels.runtime.call": {"product_call_text"},
    "tpgen.networks.named": {"_get_operator_that_calls_kernel_by_number"},
    "tpgen.kernels.runtime.targets": {"target_of"},
    "tpgen.networks.cse": {"_is_name_of_random_function"},
    "tpgen.networks.signature": {"_spec_of_nodes_in_preorder"},
    "tpgen.networks.objects": {"_is_class_of_plain_attributes"},
}


def cached(name: str) -> set[str]:
    """Functions of a module under `functools.cache` or `lru_cache`."""
    functions = [node for node in ast.walk(tree(name)) if isinstance(node, ast.FunctionDef)]
    decorators = {f.name: {ast.unparse(d).split("(")[0] for d in f.decorator_list} for f in functions}
    return {f for f, names in decorators.items() if names & {"cache", "lru_cache"}}


@pytest.mark.parametrize("name", INNER)
def test_every_cache_that_grows_can_be_seen(name: str) -> None:
    """What grows with the products of a process is `remembered`, so that `tpgen.caches()` lists and limits it."""
    assert cached(name) <= FACTS.get(name, set()), "use tpgen.base.remember.remembered, or list it as a fact"


# Classes whose instances are of one kind of plan, form or module.
KINDS = {
    *("ProductDescription", "PolynomialDescription", "Form", "PolynomialRequest", "FormModule", "PolynomialModule"),
    *("TensorProduct", "TensorProductConv", "TensorSquare", "Linear", "Polynomial", "SymmetricContraction"),
}


def asked(name: str) -> list[str]:
    """Lines of a module that ask for the kind of a plan or module, in the place of a table by kinds."""
    found = []
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            classes = {one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)}
        elif isinstance(node, ast.Compare) and not isinstance(node.ops[0], (ast.In, ast.NotIn)):
            sides = {ast.unparse(side) for side in (node.left, *node.comparators)}
            classes = KINDS if any(side.endswith((".maker", ".maker.form")) for side in sides) else set()
        else:
            continue
        found += [ast.unparse(node)] if classes & KINDS else []
    return found


@pytest.mark.parametrize("name", INNER)
def test_kinds_are_told_apart_by_tables(name: str) -> None:
    """A new kind is a `Maker` and its module in `MODULES`: code looks up what it does by `Maker.form`."""
    assert not asked(name), f"{asked(name)}: look it up in a table by plan.maker.form"


def defined(name: str) -> Iterator[str]:
    """Public names that a module gives to functions, classes and values."""
    for node in tree(name).body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Assign():
                yield from (target.id for target in node.targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name()):
                yield node.target.id


def test_a_public_name_has_one_meaning() -> None:
    """A reader who searches a name finds one place; a name of one module alone begins with an underscore."""
    homes: dict[str, list[str]] = {}
    for name in MODULES:
        for public in sorted({public for public in defined(name) if not public.startswith("_")}):
            homes.setdefault(public, []).append(name)
    assert not {public: names for public, names in homes.items() if len(names) > 1}


def test_every_folder_of_tests_and_doctests_is_collected(pytestconfig: pytest.Config) -> None:
    """pytest leaves out folders by their names, by default those that are called build."""
    folders = {path.parent for top in ("tests", "tpgen", "benchmarks") for path in (ROOT / top).rglob("*.py")}
    names = {name for folder in folders for name in folder.relative_to(ROOT).parts}
    patterns = pytestconfig.getini("norecursedirs")
    assert [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)] == []


def test_the_package_needs_no_benchmarks() -> None:
    assert not [name for name in MODULES if any(found.split(".")[0] == "benchmarks" for found in dotted(name))]


# --- what is loaded, in a process of its own --------------------------------------------------------------------------


def loaded(code: str) -> set[str]:
    """The modules that a fresh process holds after running the code."""
    return set(run_python(f"{code}\nimport sys\nprint(*sys.modules)").splitlines()[-1].split())


def of(found: set[str], *packages: str) -> list[str]:
    return sorted(name for name in found if name in packages or name.startswith(tuple(f"{p}." for p in packages)))


def test_the_root_loads_nothing_but_itself() -> None:
    assert of(loaded("import tpgen"), "tpgen", "torch", "e3nn", "numpy") == [
        *("tpgen", "tpgen._version", "tpgen.base", "tpgen.base._e3nn_constants", "tpgen.base.public")
    ]


def test_beside_torch_the_root_registers_the_operators() -> None:
    code = "import torch, tpgen\ntorch.ops.tpgen.order.default, torch.ops.tpgen.form.default"
    assert not of(loaded(code), *(f"tpgen.{room}" for room in ROOMS[ROOMS.index("nn") :]))


def test_products_load_nothing_that_inspects_them() -> None:
    code = "import tpgen\ntpgen.TensorProduct('1o', '1o', '1e', [(0, 0, 0, 'uvw', True)])\ntpgen.TensorProductConv"
    right = [f"tpgen.{room}" for room in (*WINGS["networks"], *WINGS["tools"])]
    assert not of(loaded(code), *right, "matplotlib", "rich", "click", "pygments")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["explian"]])
def test_the_command_line_answers_without_torch(arguments: list[str]) -> None:
    found = loaded(f"from tpgen.tools.cli import main\ntry: main({arguments})\nexcept SystemExit: pass")
    assert not of(found, "torch", "e3nn", "numpy", "rich", "matplotlib")


@pytest.mark.parametrize("name", INNER)
def test_only_the_emitter_writes_graphs(name: str) -> None:
    if room(name) not in ("emitter", "networks", "tools.inspection"):
        assert not {d for d in dotted(name) if d.startswith("torch.fx")}


RECORDS = {"torch.cuda.CUDAGraph", "torch.cuda.graph", "torch.cuda.graph_pool_handle"}


@pytest.mark.parametrize("name", INNER)
def test_only_the_backends_compile(name: str) -> None:
    if name == "tpgen.compiler.backends":
        return
    asked = {
        "nn": {"torch.jit", "torch.jit.is_scripting", "torch.jit.is_tracing", "torch.jit.export"},
        "functions": {"torch.jit", "torch.jit.is_tracing"},
        "kernels": {"torch.jit", "torch.jit.is_scripting"},
        "networks": {"torch.jit", "torch.jit.ScriptFunction"}
        | (RECORDS if name == "tpgen.networks.replays" else set()),
        "networks.conversion": {
            "torch.jit",
            "torch.jit.ScriptModule",
            "torch.jit.ScriptFunction",
            "torch.jit.is_scripting",
        },
    }
    allowed = asked.get(package(name), set())
    for used in dotted(name) - allowed:
        compiles = used == "torch.compile" or used.startswith(
            ("torch.jit", "torch.cuda.CUDAGraph", "torch.cuda.graph", "torch.cuda.make_graphed_callables")
        )
        assert not compiles, f"{name} names {used}"


def private(name: str) -> set[str]:
    """Private names of torch that a module names, by whatever names it imported torch's modules."""
    nodes = [node for node in ast.walk(tree(name)) if isinstance(node, ast.ImportFrom) and node.module]
    known = {alias.asname or alias.name: f"{node.module}.{alias.name}" for node in nodes for alias in node.names}
    parts = [d.split(".") for d in dotted(name)]
    full = {".".join([known.get(first, first), *rest]) for first, *rest in parts}
    return {d for d in full if d.startswith("torch.") and any(map(is_private, d.split(".")))}


def is_private(part: str) -> bool:
    return part.startswith("_") and not part.endswith("__")


@pytest.mark.parametrize("name", sorted(MODULES))
def test_private_names_of_torch_stand_in_one_file(name: str) -> None:
    """But for a file that runs where tpgen is not."""
    allowed = {"tpgen.networks.deployment.files.load": {"torch._inductor", "torch._inductor.aoti_load_package"}}
    if name != "tpgen.base._torch":
        assert private(name) <= allowed.get(name, set()), f"{name}: take it from tpgen.base._torch"


def test_the_root_exports_what_it_names() -> None:
    import tpgen

    assert all(hasattr(tpgen, name) for name in tpgen.__all__)
    assert 5 <= len(tpgen.__all__) <= 33
    assert sorted(tpgen.__all__) == sorted([*HOMES, "__version__"])
    typed = next(node for node in ast.walk(tree("tpgen")) if isinstance(node, ast.If))
    told = {a.name: i.module for i in typed.body if isinstance(i, ast.ImportFrom) for a in i.names}
    assert told == {name: f"tpgen.{home}" for name, home in HOMES.items()}
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
    bad.write_text("from torch.autograd import forward_ad\nlevel = forward_ad._current_level\n")
    tree.cache_clear()
    with pytest.raises(AssertionError, match="_torch"):
        test_private_names_of_torch_stand_in_one_file("tpgen.planner.bad")
    bad.write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tpgen.kernels.cpp.text import Text\n")
    tree.cache_clear()
    monkeypatch.setitem(MODULES, "tpgen.kernels.cpp.bad", bad)
    assert set(imports("tpgen.kernels.cpp.bad", for_types=True)) == {"tpgen.kernels.cpp.text"}
    assert not set(imports("tpgen.kernels.cpp.bad"))
    bad.write_text("make_plan: int = 0\n")
    tree.cache_clear()
    with pytest.raises(AssertionError, match="make_plan"):
        test_a_public_name_has_one_meaning()
    bad.write_text("from tpgen.kernels.cpp import text\n")
    tree.cache_clear()
    monkeypatch.setitem(MODULES, "tpgen.kernels.sweep.bad", bad)
    with pytest.raises(AssertionError, match="stands to its right"):
        test_imports_point_to_the_left("tpgen.kernels.sweep.bad")
    bad.write_text("isinstance(m, (int, Linear)), p.maker is LINEAR, p.maker.form in TABLE, isinstance(m, o3.Linear)")
    tree.cache_clear()
    assert len(asked("tpgen.kernels.sweep.bad")) == 2
