"""Find the kernels that a program calls, and their libraries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

import tpgen.kernels.runtime.ops  # noqa: F401  registers what programs call
from tpgen._torch import pytree
from tpgen.errors import DeployError
from tpgen.form.call import Call
from tpgen.kernels.arguments import KernelSpec
from tpgen.kernels.build.build import Wanted, load_library
from tpgen.kernels.runtime.call import CALLS, FormCall
from tpgen.kernels.runtime.load import source_of
from tpgen.kernels.runtime.runtime import kernels_of as forms

_CALLS = {getattr(torch.ops.tpgen, name).default: call for name, call in CALLS.items()}


@dataclass(frozen=True)
class Needed:
    """A kernel for a dtype, of rows or of edges: it computes a part of a call, or all of it."""

    description: str
    dtype: torch.dtype
    call: str
    part: str
    indexed: bool

    def library(self) -> Path:
        """The file of its compiled library, built if it is not in the cache."""
        spec = KernelSpec(forms(self.description).description, Call.parse(self.part), self.dtype, self.indexed)
        return Path(load_library(Wanted(source_of(spec).text))._name)


def kernels_in(program: ExportedProgram) -> list[Needed]:
    """The kernels of a program, each once, in the order of their first call.

    Raises `DeployError` for a call that has none.
    """
    return list(dict.fromkeys(needed for node in program.graph.nodes for needed in _of(node)))


def _of(node: Any) -> Iterator[Needed]:
    if node.target in _CALLS:
        given = pytree.tree_map(lambda x: x.meta["val"] if hasattr(x, "meta") else x, tuple(node.args))
        yield from _parts(_CALLS[node.target](*given).listed())


def _parts(call: FormCall) -> Iterator[Needed]:
    """A kernel for each sweep of a call: both ends of a gather are two."""
    kernels, dtype, indexed = forms(call.description), call.tensors[0].dtype, call.indexed
    description = kernels.description
    widens = kernels.widens(call.slots, dtype, indexed, "cpu")
    if not description.live or widens or kernels.expands(call):
        raise DeployError(
            f"a call in {dtype} of plan {description.plan.digest} has no kernel of its own to deploy: convert "
            "the network with .float(), or deploy tpgen.portable(network)"
        )
    for part in kernels.signature(call.call, indexed).parts:
        yield Needed(call.description, dtype, call.call, str(part), indexed)
