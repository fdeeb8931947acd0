"""Load this folder's network into Python: ``network = load(folder)``, then ``network(*inputs)``.

It needs torch and nothing else.  Run as a program it computes the example inputs.
"""

import hashlib
import json
from pathlib import Path

import torch


def load(folder=Path(__file__).parent):
    """The network, once every file is what was written.  Raises RuntimeError that says what to do."""
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
    if not hasattr(torch.ops.tpgen, "product"):  # tpgen itself, where it is imported, has the same operators
        torch.ops.load_library(folder / "libtpgen.so")
    package = torch._inductor.aoti_load_package(str(folder / "model.pt2"))

    def network(*inputs):
        if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs):
            raise RuntimeError(
                "an input requires a gradient, and this package computes values, forces among them: give x.detach(), "
                "or call it under torch.no_grad()"
            )
        return package(*inputs)

    return network


if __name__ == "__main__":
    print(load()(*torch.load(Path(__file__).parent / "inputs.pt")))
