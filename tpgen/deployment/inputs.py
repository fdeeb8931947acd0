"""Inputs of a deployed network as its README lists them: by name, with sizes in the words of the field."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from inspect import signature
from string import ascii_lowercase
from typing import Any

from torch import nn
from torch.export import ExportedProgram

from tpgen.deployment.dicts import OfTensors
from tpgen.deployment.models import OfStructures

_LETTERS = [a + b for a in ("", *ascii_lowercase) for b in ascii_lowercase]
# axes that the field has a word for, by the name of the tensor
_AXES = {
    **dict.fromkeys(("pos", "positions", "atom_types", "elements", "species", "node_attrs"), (0, "atoms")),
    **dict.fromkeys(("shifts", "unit_shifts", "edge_cell_shift", "edge_attr", "edge_vectors"), (0, "edges")),
    **dict.fromkeys(("edge_index", "edges"), (1, "edges")),
}


def names_of(network: nn.Module, count: int) -> list[str]:
    """Names of so many inputs: those that a network of a dict lists, or those in its forward.

    >>> names_of(nn.Bilinear(2, 3, 4), 2)
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


def described_input(program: ExportedProgram, names: Sequence[str]) -> str:
    """A table of a program's inputs; sizes that are open have words or letters, and their least if it is not 0."""
    user = set(program.graph_signature.user_inputs)
    values = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in user]
    axes = [(x.shape, *_AXES.get(name, (0, ""))) for name, x in zip(names, values, strict=True)]
    known = {str(shape[axis]): word for shape, axis, word in reversed(axes) if word and axis < len(shape)}
    letters = iter(_LETTERS)

    def size(n: Any) -> str:
        fixed = n if isinstance(n, int) else n.node.maybe_as_int()
        if fixed is None and str(n) not in known:
            known[str(n)] = next(letters)
        if fixed is not None:
            return str(fixed)
        least = n.node.shape_env.bound_sympy(n.node.expr).lower
        return known[str(n)] + (f" ≥ {least}" if least > 0 else "")

    rows = [
        f"| `{name}` | ({', '.join(map(size, x.shape))}) | {str(x.dtype).removeprefix('torch.')} |"
        for name, x in zip(names, values, strict=True)
    ]
    return "\n".join(["| input | shape | dtype |", "|---|---|---|", *rows])
