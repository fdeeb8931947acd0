"""Emit forms as fx.GraphModules.

Placeholders: given operands (``x1, x2, w``; ``g`` for the output), row indices, row counts of open slots.
"""

from __future__ import annotations

import linecache
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.fx.graph import PythonCode

from tpgen.base import _torch
from tpgen.base.drawing.graphs import draw_node_graph
from tpgen.base.errors import EmitError, unknown
from tpgen.base.notebook import Shown, collapsible, div_lines, html_table
from tpgen.base.remember import remembered
from tpgen.base.text import table
from tpgen.emitter.constants import Constants, make_tensor_like
from tpgen.emitter.frame import FormPlaceholders
from tpgen.emitter.graph_writer import GraphWriter, list_graph_rows, list_picture_nodes
from tpgen.emitter.passes import name_nodes, put_on_streams
from tpgen.emitter.strategies import STRATEGIES
from tpgen.form.form import Form, Layout, conv_form, form_of, right_form
from tpgen.planner.plan import Plan

PLACEHOLDERS = {"out": "g", "x1*out": "g"}  # tensor name -> argument name, where they differ

_WIDEST = 60  # characters of a cell


@dataclass(frozen=True)
class Emission(Shown):
    """Emitted program: fx graph, and constants in float64 or int64."""

    graph: fx.Graph
    constants: dict[str, np.ndarray]
    title: str

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the placeholders, in order."""
        return tuple(str(node.target) for node in self.graph.nodes if node.op == "placeholder")

    @property
    def code(self) -> str:
        """The graph as Python source."""
        return self.graph.python_code("self").src

    def module(self) -> EmittedModule:
        """Module of the program, in the default dtype."""
        return EmittedModule.from_emission(self)

    def __str__(self) -> str:
        return f"{self.title}\n{table(list_graph_rows(self.graph), widest=_WIDEST)}"

    def _repr_html_(self) -> str:
        rows = [tuple(cell[:_WIDEST] for cell in row) for row in list_graph_rows(self.graph)]
        shown = html_table(rows, left=range(6)) + draw_node_graph(list_picture_nodes(self.graph))
        return div_lines(self.title) + shown + collapsible("code", self.code.strip())


class EmittedModule(Constants, fx.GraphModule):
    """GraphModule with constants exact after ``.double()`` and absent from the state_dict."""

    @classmethod
    def from_emission(cls, emission: Emission) -> EmittedModule:
        """Make the module of an emission."""
        like = torch.empty(0, device="cpu")
        held: dict[str, Any] = {name: make_tensor_like(values, like) for name, values in emission.constants.items()}
        made = cls(held, emission.graph, class_name="tpgen_" + emission.title.split(" ")[0])
        return made._register_exact_constants(emission.constants)

    def recompile(self) -> PythonCode:
        """Recompile; free the source text with the code."""
        written = super().recompile()
        free_source_text_with_code(type(self).forward.__code__)
        return written

    def __deepcopy__(self, memo: dict) -> EmittedModule:
        """Copy, with exact constants."""
        copied = super().__deepcopy__(memo)
        assert isinstance(copied, EmittedModule)
        return copied._register_exact_constants(
            self.__dict__["_exact"]
        )  # fx forgets exact values, and that buffers are not persistent


_SHARED = "fx_generated_"  # names that torch makes of the text, where profilers ask for it: others may have the same


def free_source_text_with_code(code: CodeType) -> None:
    """Free a graph's source text with its code."""
    # torch would keep the text of every graph ever made
    if not code.co_filename.startswith(_SHARED):
        weakref.finalize(code, _drop_cached_source_text, code.co_filename).atexit = False


def _drop_cached_source_text(file_name: str) -> None:
    # from linecache and from torch's own cache
    linecache.cache.pop(file_name, None)
    if (texts := getattr(_torch, "graph_texts", None)) is not None:
        texts.eval_cache.pop(file_name, None)


# Directions of a product by name: which form, and which of its operands is open.
DIRECTIONS: dict[str, Callable[[Plan, Layout], Form]] = {
    "forward": form_of,
    "right": right_form,
    "grad_x1": lambda plan, layout: form_of(plan, layout).open("x1"),
    "grad_x2": lambda plan, layout: form_of(plan, layout).open("x2"),
    "grad_w": lambda plan, layout: form_of(plan, layout).open("w"),
    "conv": conv_form,
}
_OF_TWO_INPUTS = ("right", "grad_x2", "conv")


def list_directions(plan: Plan) -> dict[str, Callable[[Plan, Layout], Form]]:
    """Functions that make a plan's form, by direction; one input lacks ``right``, ``grad_x2`` and ``conv``."""
    lacking = _OF_TWO_INPUTS if len(plan.inputs) < 2 else ()
    return {name: form for name, form in DIRECTIONS.items() if name not in lacking}


def emit_plan(
    plan: Plan, direction: str = "forward", strategy: str = "einsum", layout: Layout = "mul_ir", streams: int = 0
) -> Emission:
    """Write the program of one direction of a product or linear layer, cached.

    >>> from tpgen.planner.presets import channelwise
    >>> emission = emit_plan(channelwise("4x0e", "0e", "0e"))
    >>> emission.arguments
    ('x1', 'x2', 'w')
    """
    if direction not in list_directions(plan):
        raise EmitError(unknown("direction", direction, list_directions(plan)))
    layout = layout if isinstance(layout, str) else tuple(layout)
    return _emit_plan(plan, direction, strategy, layout, streams)


@remembered("programs of products", entries=1024)
def _emit_plan(plan: Plan, direction: str, strategy: str, layout: Layout, streams: int) -> Emission:
    form = list_directions(plan)[direction](plan, layout)
    return emit_form(form, strategy, streams, title=f"{direction} of {plan.digest}, {strategy}")


def emit_form(
    form: Form | tuple[Form, ...], strategy: str = "einsum", streams: int = 0, title: str = "form"
) -> Emission:
    """Write a form's program, on ``streams`` CUDA streams (0: none).

    Several forms become one program, which returns a tuple and computes shared parts once.

    >>> from tpgen.planner.presets import channelwise
    >>> form = form_of(channelwise("4x0e", "0e", "0e"))
    >>> emit_form((form.open("x1"), form.open("w"))).arguments
    ('x1', 'x2', 'w', 'g')
    """
    if strategy not in STRATEGIES:
        raise EmitError(unknown("strategy", strategy, STRATEGIES))
    writer, forms = GraphWriter(), form if isinstance(form, tuple) else (form,)
    # each form is given all operands, also its own open one, so that all share one frame
    given = _add_placeholders(writer, forms)
    results = tuple(STRATEGIES[strategy](writer, each, given) for each in forms)
    graph = name_nodes(writer.finish(results if isinstance(form, tuple) else results[0]))
    if streams:
        graph = put_on_streams(graph, streams)
    return Emission(graph, writer.constants, title)


def _add_placeholders(writer: GraphWriter, forms: tuple[Form, ...]) -> FormPlaceholders:
    form = forms[0]
    names = {slot: "*".join(slot) for slot in form.slots if any(slot in each.given for each in forms)}
    operands = {slot: writer.placeholder(PLACEHOLDERS.get(name, name)) for slot, name in names.items()}
    indices = {name: writer.placeholder(name) for name in form.indices}
    opened = dict.fromkeys(index for each in forms if (index := each.index(each.opened)))
    sizes = {index: writer.placeholder(f"num_{index}", int) for index in opened}
    return FormPlaceholders(operands, indices, sizes)
