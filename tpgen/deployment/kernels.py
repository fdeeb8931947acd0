"""Find the kernels that a program calls, and their libraries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

import tpgen.kernels.runtime.ops  # noqa: F401  registers what programs call
from tpgen.errors import DeployError
from tpgen.form.call import Call
from tpgen.kernels.arguments import KernelSpec
from tpgen.kernels.build.build import Wanted, load_library
from tpgen.kernels.runtime.call import FormCall, opening_text
from tpgen.kernels.runtime.load import source_of
from tpgen.kernels.runtime.runtime import kernels_of as forms

_PRODUCT, _GRADIENTS = torch.ops.tpgen.product.default, torch.ops.tpgen.gradients.default
_FORM, _POLYNOMIAL = torch.ops.tpgen.form.default, torch.ops.tpgen.polynomial.default


@dataclass(frozen=True)
class Needed:
    """A kernel for a dtype, of rows or of edges: it computes a part of a call, or all of it."""

    description: str
    dtype: torch.dtype
    call: str
    part: str
    indexed: bool
    fixed: bool  # whether it stands behind the operators of products, which take their tensors one by one

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
    arguments: tuple[Any, ...] = (*node.args, None, None)  # the last, an index of edges, may be left out
    if node.target is _PRODUCT:
        x1, _, _, text, src = arguments[:5]
        yield from _parts(FormCall([x1], src, src, text, "x1 x2 w -> out"), fixed=True)
    elif node.target is _GRADIENTS:
        x1, _, _, _, text, mask, src = arguments[:7]
        yield from _parts(FormCall([x1], src, src, text, opening_text(mask)), fixed=True)
    elif node.target is _FORM:
        yield from _parts(FormCall(*node.args))
    elif node.target is _POLYNOMIAL:
        tensors, index, text, call = node.args
        yield from _parts(FormCall(tensors, None, None, text, call, index))


def _parts(call: FormCall, fixed: bool = False) -> Iterator[Needed]:
    """A kernel for each sweep of a call: both ends of a gather are two."""
    node: Any = call.tensors[0]
    value, kernels = node.meta["val"], forms(call.description)
    assert isinstance(value, Tensor)
    dtype, description, indexed = value.dtype, kernels.description, call.indexed
    widens = kernels.widens(call.slots, dtype, indexed, "cpu")
    if not description.live or widens or kernels.expands(call._replace(tensors=[value])):
        raise DeployError(
            f"a call in {dtype} of plan {description.plan.digest} has no kernel of its own to deploy: convert "
            "the network with .float(), or deploy tpgen.portable(network)"
        )
    for part in kernels.signature(call.call, indexed).parts:
        yield Needed(call.description, dtype, call.call, str(part), indexed, fixed)
