"""A polynomial's program as a module for TorchScript."""

from collections.abc import Sequence
from typing import List, Optional  # noqa: UP035 (TorchScript reads them)

from torch import Tensor, fx, nn

from tpgen.emitter.polynomial import EDGE_ARGUMENTS, NODES, Ends
from tpgen.planner.plan import OUT, Plan


def make_scriptable_caller(
    module: nn.Module,
    program: str,
    plan: Plan,
    index: str,
    ends: Ends,
    weights: Optional[Sequence[str]],  # noqa: UP045
) -> fx.GraphModule:
    """Module for TorchScript that calls submodule ``program`` with `forward`'s arguments.

    ``index`` names the argument of elements (empty: none); ``weights`` names parameters (None: an argument).
    """
    graph = fx.Graph()
    given = {o.name: graph.placeholder(o.name, Tensor) for o in plan.inputs}
    last = [graph.call_function(_element_index_of_rows, (graph.placeholder(index, Tensor),))] if index else []
    if weights is None:
        held = graph.placeholder("weights", List[Tensor])  # noqa: UP006
        used = [graph.call_function(nth, (held, n)) for n in range(len(plan.weights))]
    else:
        used = [graph.get_attr(name) for name in weights]
    found = dict(ends)
    last += [graph.placeholder(name, Tensor) for end, name in EDGE_ARGUMENTS.items() if end in found.values()]
    if OUT in found:
        number = graph.placeholder(NODES, Optional[int], None)  # noqa: UP045
        order = sorted((found[name] != found[OUT], name) for name in found if name != OUT)
        like = given[order[0][1]] if order else next(iter(given.values()))
        last.append(graph.call_function(_count_result_rows, (number, like)))
    graph.output(graph.call_module(program, (*given.values(), *used, *last)))
    return fx.GraphModule(module, graph)


def _element_index_of_rows(index: Tensor) -> Tensor:
    return index if index.dim() == 1 else index.argmax(1)


def nth(weights: List[Tensor], n: int) -> Tensor:  # noqa: UP006
    """The n-th weight tensor."""
    return weights[n]


def _count_result_rows(number: Optional[int], like: Tensor) -> int:  # noqa: UP045
    return like.size(0) if number is None else number
