"""Load this folder's network into Python: ``network = load(folder)``, then ``network(*inputs)``.  Needs torch only."""

import ctypes
import hashlib
import importlib
import json
import os
import re
import sys
from pathlib import Path

import torch

# words in an error of a package, and what to do
REMEDIES = {
    "dim value is too small": "README.md names the least of each size; compute fewer by the network that this package "
    "was written from",
    "index out of bounds": "an edge or another index points to a row that is not there",
}


def load(folder=Path(__file__).parent):
    """Verify the folder's files and return the network.  Raises RuntimeError with a remedy."""
    folder = Path(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, wanted in manifest["files"].items():
        file = folder / name
        if not file.exists() or hashlib.sha256(file.read_bytes()).hexdigest() != wanted:
            state = "is not what was deployed" if file.exists() else "is missing"
            raise RuntimeError(f"{file} {state}: copy the whole folder again, or deploy anew")
    here = torch.__version__.split("+")[0]
    if here != manifest["torch"]:
        raise RuntimeError(f"deployed with torch {manifest['torch']}, and this is {here}: use that one, or deploy anew")
    lacking = _missing_features(manifest["features"])
    if lacking:
        raise RuntimeError(f"built for a processor with {lacking}: deploy on the machine that it is to run on")
    _operators(folder)
    os.environ.setdefault("AOTI_RUNTIME_CHECK_INPUTS", "1")  # or operands that do not fit give wrong numbers
    importlib.import_module("torch._inductor.codecache")  # torch 2.10 reads it without an import of its own
    package = torch._inductor.aoti_load_package(str(folder / "model.pt2"))

    def network(*inputs):
        if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs):
            raise RuntimeError(
                "an input requires a gradient, and this package computes values, forces among them: give x.detach(), "
                "or call it under torch.no_grad()"
            )
        try:
            return package(*(x.contiguous() if isinstance(x, torch.Tensor) else x for x in inputs))
        except RuntimeError as error:
            said = str(error).partition("\nException raised from")[0].strip()  # behind it is the stack of C++
            for words, remedy in REMEDIES.items():
                if words in said:
                    said = f"{said}: {remedy}"
            raise RuntimeError(said) from None

    return network


def _missing_features(features, cpuinfo=Path("/proc/cpuinfo")):
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else None
    return " and ".join(sorted(set(features) - {*found[1].split(), *_vector_length(features)})) if found else ""


def _vector_length(features):
    asked = any(name.startswith("sve=") for name in features)
    return [f"sve={ctypes.CDLL(None).prctl(51) & 0xFFFF}"] if asked else []


def _operators(folder):
    library = str((folder / "libtpgen.so").resolve())
    if sys.modules.get("tpgen"):
        import tpgen.kernels.runtime.ops  # noqa: F401
    elif library not in torch.ops.loaded_libraries and any((folder / "kernels").iterdir()):
        if hasattr(torch.ops.tpgen, "form"):
            raise RuntimeError(
                "another deployed network serves the operators of this process: run each in a process of its own, "
                "deploy both as one network, or import tpgen before you load the first"
            )
        torch.ops.load_library(library)


if __name__ == "__main__":
    print(load()(*torch.load(Path(__file__).parent / "inputs.pt")))
