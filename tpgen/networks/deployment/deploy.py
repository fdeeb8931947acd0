"""Deployment into a folder."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from inspect import signature
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from tpgen.base.errors import DeployError
from tpgen.base.progress import ProgressOption, step_reporter
from tpgen.networks.deployment.dicts import OfTensors
from tpgen.networks.deployment.models import OfStructures, describe_model
from tpgen.networks.deployment.runtime import build_kernels_of, list_processor_features, write_runtime
from tpgen.networks.packages import write_package
from tpgen.networks.program import network_program

_FORMAT = "tpgen.deployed/1"
_FILES = Path(__file__).parent / "files"


def deploy(
    network: nn.Module,
    inputs: Sequence[Any] | None = None,
    out: str | Path = "deployed",
    *,
    metadata: Mapping[str, str] | None = None,
    ghosts: bool = False,
    progress: ProgressOption = None,
) -> Path:
    """Write a network and its kernels into a new folder; return the folder, which appears only when complete.

    ``inputs`` are the tensors of one call, with open sizes as in `network_program`.  A MACE, NequIP or SevenNet model
    needs none: docs/deploy.md lists its tensors.  ``metadata`` goes into the package.  With ``ghosts``, an Allegro
    takes a rank's atoms and ghosts, without a cell, for ``pair_allegro``.  ``progress`` is True for a bar, or a
    function of each step's name.

    Raises `DeployError` if ``out`` exists, the network cannot be one program, a product has no kernel, or ``ghosts``
    meets any model but Allegro.
    """
    folder = Path(out).absolute()
    if folder.exists():
        raise DeployError(f"{folder} exists: name a folder that does not, or remove it")
    model, title = None if inputs is not None else describe_model(network), type(network).__name__
    if ghosts:
        if model is None:
            raise DeployError("ghosts stand among the atoms of a model: leave inputs out, or write such a forward")
        model = model.with_ghosts(network)
    if model is not None:
        inputs, network = model.make_example_inputs(), OfStructures(network, model)
        metadata = {**model.pair_nequip_metadata(), **(metadata or {})}
    assert inputs is not None
    if not all(isinstance(x, Tensor) for x in inputs):
        kinds = ", ".join(type(x).__name__ for x in inputs)
        raise DeployError(f"a deployed network takes tensors alone, got {kinds}: let its forward take them one by one")
    inputs = [x.detach().contiguous() for x in inputs]
    with step_reporter(progress, 3) as begin:
        begin("write the network down as one program")
        few_alike = model is not None and model.few_alike
        write = partial(network_program, network, inputs, few_alike=few_alike)
        program = write()
        with _create_folder_atomically(folder) as made:
            begin("compile its kernels")
            program, kernels = build_kernels_of(program, write)
            write_runtime(kernels, made)
            begin("compile what lies between them")
            options = {"aot_inductor.metadata": dict(metadata)} if metadata else None
            write_package(program, str(made / "model.pt2"), options)
            _release_tracked_fake_tensors(program)
            torch.save(inputs, made / "inputs.pt")
            if model is not None:
                (made / "model.nequip.pt2").symlink_to("model.pt2")  # the name that pair_nequip asks for
            shown = {"title": title, "inputs": format_input_table(program, name_inputs(network, len(inputs)))}
            shown["results"] = "" if model is None else f" {model.describe_for_readme()}"
            _write_readme_example_and_manifest(
                made, shown, {} if model is None else {"model": model.manifest_entries()}
            )
    return folder


def _release_tracked_fake_tensors(program: ExportedProgram) -> None:
    for node in program.graph.find_nodes(op="placeholder"):
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None and mode.shape_env is not None:
            mode.shape_env.tracked_fakes = []


@contextmanager
def _create_folder_atomically(folder: Path) -> Iterator[Path]:
    # a folder beside it, which takes its name when all is written
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield made
        made.chmod(0o755)
        made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _write_readme_example_and_manifest(
    folder: Path, readme_fields: Mapping[str, str], manifest_fields: Mapping[str, Any]
) -> None:
    for name in ("load.py", "example.cpp"):
        shutil.copyfile(_FILES / name, folder / name)
    version = torch.__version__.split("+")[0]
    processor = " ".join([platform.machine(), *list_processor_features()])
    text = (_FILES / "README.md").read_text(encoding="utf-8")
    for name, value in {**readme_fields, "torch": version, "processor": processor}.items():
        text = text.replace(f"{{{name}}}", value)
    (folder / "README.md").write_text(text, encoding="utf-8")
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    sums = {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    manifest = {
        "format": _FORMAT,
        "torch": version,
        "features": list_processor_features(),
        "files": sums,
        **manifest_fields,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")


# -- inputs as the README lists them: by name, with sizes in the words of the field -----------------------------------

_LETTERS = [a + b for a in ("", *ascii_lowercase) for b in ascii_lowercase]
# axes that the field has a word for, by the name of the tensor
_AXES = {
    **dict.fromkeys(("pos", "positions", "atom_types", "elements", "species", "node_attrs"), (0, "atoms")),
    **dict.fromkeys(("shifts", "unit_shifts", "edge_cell_shift", "edge_attr", "edge_vectors"), (0, "edges")),
    **dict.fromkeys(("edge_index", "edges"), (1, "edges")),
}


def name_inputs(network: nn.Module, count: int) -> list[str]:
    """Names of ``count`` inputs, from the network or forward's arguments.

    >>> name_inputs(nn.Bilinear(2, 3, 4), 2)
    ['input1', 'input2']
    """
    found: list[str] = []
    if isinstance(network, (OfTensors, OfStructures)):
        found = [*network.inputs]
    else:
        with suppress(TypeError, ValueError):  # a forward that Python cannot look into
            parameters = signature(network.forward).parameters.values()
            found = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [*found[:count], *(f"input {n}" for n in range(len(found), count))]


def format_input_table(program: ExportedProgram, names: Sequence[str]) -> str:
    """Markdown table of a program's inputs ``names``, with letters for open sizes."""
    user = set(program.graph_signature.user_inputs)
    values = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in user]
    axes = [(x.shape, *_AXES.get(name, (0, ""))) for name, x in zip(names, values, strict=True)]
    known = {str(shape[axis]): word for shape, axis, word in reversed(axes) if word and axis < len(shape)}
    letters = iter(_LETTERS)

    def format_size_by_letter(n: Any) -> str:
        fixed = n if isinstance(n, int) else n.node.maybe_as_int()
        if fixed is None and str(n) not in known:
            known[str(n)] = next(letters)
        if fixed is not None:
            return str(fixed)
        least = n.node.shape_env.bound_sympy(n.node.expr).lower
        return known[str(n)] + (f" ≥ {least}" if least > 0 else "")

    rows = [
        f"| `{name}` | ({', '.join(map(format_size_by_letter, x.shape))}) | {str(x.dtype).removeprefix('torch.')} |"
        for name, x in zip(names, values, strict=True)
    ]
    return "\n".join(["| input | shape | dtype |", "|---|---|---|", *rows])
