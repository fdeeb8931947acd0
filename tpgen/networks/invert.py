"""Inverse of a traced elementwise function.

>>> import torch
>>> from torch import fx
>>> inverse = invert(fx.symbolic_trace(lambda x: torch.exp(2 * x)))
>>> inverse(torch.exp(2 * torch.tensor([0.5, 3.0])))
tensor([0.5000, 3.0000])
>>> print(inverse.code.strip())
def forward(self, y):
    log = torch.log(y);  y = None
    truediv = log / 2;  log = None
    return truediv
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.fx.proxy import GraphAppendingTracer

from tpgen.base._torch import pytree
from tpgen.base.errors import InverseError

# inverse(y, place, *constants) -> x, as torch code: y is what the step gave, place the position of its input among the
# arguments, and the constants are the other arguments in order.
Inverse = Callable[..., Any]


def _invert_unary(function: Callable[[Any], Any]) -> Inverse:
    return lambda y, place: function(y)


def _invert_subtraction(y: Any, place: int, constant: Any) -> Any:
    return y + constant if place == 0 else constant - y


def _invert_division(y: Any, place: int, constant: Any) -> Any:
    return y * constant if place == 0 else constant / y


def _invert_power(y: Any, place: int, constant: Any) -> Any:
    if place == 0:
        return y ** (1.0 / constant)
    return torch.log(y) / (math.log(constant) if isinstance(constant, (int, float)) else torch.log(constant))


# What undoes a step of torch or Python, by its name; square and powers are undone on positive numbers.
INVERSES: dict[str, Inverse] = {
    "add": lambda y, place, constant: y - constant,
    "sub": _invert_subtraction,
    "mul": lambda y, place, constant: y / constant,
    "truediv": _invert_division,
    "neg": _invert_unary(torch.neg),
    "reciprocal": _invert_unary(torch.reciprocal),
    "exp": _invert_unary(torch.log),
    "log": _invert_unary(torch.exp),
    "exp2": _invert_unary(torch.log2),
    "log2": _invert_unary(torch.exp2),
    "expm1": _invert_unary(torch.log1p),
    "log1p": _invert_unary(torch.expm1),
    "log10": _invert_unary(lambda y: 10.0**y),
    "tanh": _invert_unary(torch.atanh),
    "atanh": _invert_unary(torch.tanh),
    "sinh": _invert_unary(torch.asinh),
    "asinh": _invert_unary(torch.sinh),
    "sigmoid": _invert_unary(torch.logit),
    "logit": _invert_unary(torch.sigmoid),
    "sqrt": _invert_unary(torch.square),
    "rsqrt": _invert_unary(lambda y: torch.reciprocal(torch.square(y))),
    "square": _invert_unary(torch.sqrt),
    "identity": _invert_unary(lambda y: y),
    "pow": _invert_power,
}

# Other names of the same steps.
ALIASES = {
    "subtract": "sub",
    "multiply": "mul",
    "div": "truediv",
    "divide": "truediv",
    "true_divide": "truediv",
    "negative": "neg",
    "arctanh": "atanh",
    "arcsinh": "asinh",
    "expit": "sigmoid",
}
_HARMLESS = {"inplace"}  # keywords that change no value


def invert(graph_module: fx.GraphModule, inverses: Mapping[Any, Inverse] | None = None) -> fx.GraphModule:
    """The inverse of an elementwise function, as a graph.

    The graph must be a chain of steps from one placeholder to the output; other values are constants.  Steps that are
    one-to-one on positive numbers only, as ``square``, invert to the positive number.

    ``inverses`` precede `INVERSES`: ``(y, place, *constants) -> x`` in torch code, by function, class or path of a
    module, or name, with the input's ``place`` among the arguments.

    Raises `InverseError` for a step without an inverse, and for an untraced function.

    >>> import torch
    >>> double = invert(fx.symbolic_trace(lambda x: torch.sin(x) + 1), {torch.sin: lambda y, place: torch.asin(y)})
    >>> double(torch.tensor(1.5)).sin()
    tensor(0.5000)
    """
    if not isinstance(graph_module, fx.GraphModule):
        raise InverseError(
            f"invert reads the graph of a traced function, got {type(graph_module).__name__}: give it "
            "trace_network(module), or torch.fx.symbolic_trace(function)"
        )
    return _GraphInverter(graph_module, inverses or {}).run()


class _GraphInverter:
    def __init__(self, original: fx.GraphModule, extra_inverses: Mapping[Any, Inverse]) -> None:
        self.original = original
        self.given = extra_inverses
        self.graph = fx.Graph()
        self.tracer = GraphAppendingTracer(self.graph)
        self.constants: dict[fx.Node, fx.Node] = {}

    def run(self) -> fx.GraphModule:
        """Write inverse steps from output to input."""
        steps = [(node, place, self._find_inverse(node)) for node, place in self._list_steps_from_output()]
        current: Any = fx.Proxy(self.graph.placeholder("y"), self.tracer)
        for node, place, inverse in steps:
            written = len(self.graph.nodes)
            constants = [self._copy_constant(a) for n, a in enumerate(node.args) if n != place]
            self._check_inverse_takes_constants(node, inverse, constants)
            current = inverse(current, place, *constants)
            for new in list(self.graph.nodes)[written:]:
                new.meta["inverse_of"] = node.name
        self.graph.output(current.node)
        self.graph.lint()
        return fx.GraphModule(self.original, self.graph, class_name=f"{type(self.original).__name__}_inverse")

    def _list_steps_from_output(self) -> list[tuple[fx.Node, int]]:
        # the steps from the output back to the input, the last first, each with the place of what it is applied to
        inputs = [node for node in self.original.graph.nodes if node.op == "placeholder"]
        if len(inputs) != 1:
            raise InverseError(
                f"an inverse needs a function of one input, and this graph has {len(inputs)}: fix the others while "
                "tracing (concrete_args=...), or make them buffers"
            )
        depends = {inputs[0]}
        for node in self.original.graph.nodes:
            if not depends.isdisjoint(node.all_input_nodes):
                depends.add(node)
        output = next(node for node in self.original.graph.nodes if node.op == "output")
        current: Any = output.args[0]
        if not isinstance(current, fx.Node) or current not in depends:
            raise InverseError(
                "the output must be one tensor that depends on the input: return it alone, not in a tuple or a dict"
            )
        chain = []
        while current is not inputs[0]:
            places = [n for n, a in enumerate(current.args) if isinstance(a, fx.Node) and a in depends]
            keywords = [a for a in pytree.tree_leaves(current.kwargs) if isinstance(a, fx.Node)]
            if len(places) != 1 or not depends.isdisjoint(keywords):
                raise InverseError(
                    f"{self._name_node(current)} reads the input in more than one place or in a list or keyword, so it "
                    "cannot be undone by itself: trace that part as one function (functions=...), and pass its inverse "
                    "(inverses={function: inverse})"
                )
            chain.append((current, places[0]))
            current = current.args[places[0]]
        return chain

    def _find_inverse(self, node: fx.Node) -> Inverse:
        name, keys = _name_and_lookup_keys_of_step(node, self.original)
        if node.kwargs and set(node.kwargs) - _HARMLESS:
            raise InverseError(
                f"{self._name_node(node)} is called with {', '.join(node.kwargs)}, which its inverse would not know: "
                "write it without keywords, as steps of their own"
            )
        for key in keys:
            if key in self.given:
                return self.given[key]
        if name not in INVERSES or not _is_operation_of_torch_or_python(node, self.original):
            raise InverseError(
                f"{self._name_node(node)} has no inverse here; if it has one, pass it: "
                f"inverses={{{name!r}: lambda y, place, *constants: ...}}; known steps: {', '.join(INVERSES)}"
            )
        return INVERSES[name]

    def _check_inverse_takes_constants(self, node: fx.Node, inverse: Inverse, constants: list[Any]) -> None:
        try:
            inspect.signature(inverse).bind(None, 0, *constants)
        except ValueError:  # a function that does not tell its signature
            return
        except TypeError:
            name, _ = _name_and_lookup_keys_of_step(node, self.original)
            raise InverseError(
                f"{self._name_node(node)} is called with {len(constants)} further arguments, which its inverse does "
                "not take: write it without them, as steps of their own, or pass an inverse that takes them "
                f"(inverses={{{name!r}: lambda y, place, *constants: ...}})"
            ) from None

    def _name_node(self, node: fx.Node) -> str:
        return f"node {node.name!r} ({_name_and_lookup_keys_of_step(node, self.original)[0]})"

    def _copy_constant(self, argument: Any) -> Any:
        copied = fx.map_arg(argument, self._copy_constant_node)
        return fx.Proxy(copied, self.tracer) if isinstance(copied, fx.Node) else copied

    def _copy_constant_node(self, node: fx.Node) -> fx.Node:
        if node not in self.constants:
            self.constants[node] = self.graph.node_copy(node, self._copy_constant_node)
        return self.constants[node]


def _name_and_lookup_keys_of_step(node: fx.Node, module: nn.Module) -> tuple[str, list[Any]]:
    if node.op == "call_module":
        kind = type(module.get_submodule(str(node.target)))
        return kind.__name__.lower(), [kind, kind.__name__.lower(), str(node.target)]
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    name = ALIASES.get(name, name)
    return name, [node.target, name]


def _is_operation_of_torch_or_python(node: fx.Node, module: nn.Module) -> bool:
    if node.op == "call_module":
        return type(module.get_submodule(str(node.target))).__module__.startswith("torch.nn.")
    home = getattr(node.target, "__module__", None) or "torch"
    if home.startswith("torch._ops.") and home != "torch._ops.aten":  # operators of other libraries stand there too
        return False
    return node.op == "call_method" or home.split(".")[0] in ("torch", "_operator")
