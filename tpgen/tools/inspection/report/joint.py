"""Joint forward-backward graphs, and partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from tpgen.base import _torch
from tpgen.base._torch import pytree
from tpgen.base.errors import TpgenError


@dataclass(frozen=True)
class _SavedTensor:
    name: str
    shape: tuple[int, ...]
    bytes: int
    is_input: bool


@dataclass(frozen=True)
class Partition:
    """Split of a joint graph into forward and backward."""

    partitioner: str
    forward: int  # operations
    backward: int
    saved: tuple[_SavedTensor, ...]
    recomputed: tuple[str, ...]  # nodes of the forward that the backward computes again

    @property
    def bytes(self) -> int:
        """Bytes saved, without inputs."""
        return sum(saved.bytes for saved in self.saved if not saved.is_input)


@dataclass(frozen=True)
class JointGraph:
    """Joint forward-backward graph: code, size and partitions."""

    code: str
    operations: int
    partitions: tuple[Partition, ...]


def trace_joint_graph_of_captured(program: fx.GraphModule) -> JointGraph:
    """Trace the joint forward-backward graph of a graph that Dynamo captured."""
    holders = [node for node in program.graph.nodes if node.op == "placeholder"]
    # buffers are no one's to differentiate; Dynamo's name of an input says where it was found
    constant = [
        "_buffers_" in str(node.target)
        or ("_parameters_" in str(node.target) and not getattr(node.meta["example_value"], "requires_grad", True))
        for node in holders
    ]
    inputs = [_make_empty_like(node.meta["example_value"]) for node in holders]
    return trace_joint_graph(program, inputs, constant)


def _make_empty_like(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    # values are never read
    shape, stride = (tuple(int(n) for n in sizes) for sizes in (value.shape, value.stride()))
    return torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device)


class _StopTracing(Exception):
    """Leaves AOTAutograd before compilation."""


def trace_joint_graph(module: nn.Module, inputs: Sequence[Any], constant: Sequence[bool] = ()) -> JointGraph:
    """Trace a module and gradients on fake tensors, and partition the graph.

    Inputs flagged in ``constant`` have no gradient.

    >>> joint = trace_joint_graph(torch.nn.Sigmoid(), [torch.zeros(4)])
    >>> [(p.partitioner, [s.shape for s in p.saved]) for p in joint.partitions]
    [('default', [(4,)]), ('min-cut', [(4,)])]
    """
    cutters: dict[str, Callable[..., Any]] = {
        "default": _torch.default_partition,
        "min-cut": _torch.min_cut_partition,
    }
    found = [_trace_code_operations_and_partition(module, inputs, constant, name, cut) for name, cut in cutters.items()]
    code, operations, _ = found[0]
    return JointGraph(code, operations, tuple(partition for _, _, partition in found))


def _trace_code_operations_and_partition(
    module: nn.Module, inputs: Sequence[Any], constant: Sequence[bool], name: str, partitioner: Callable[..., Any]
) -> tuple[str, int, Partition]:
    found: list[tuple[str, int, Partition]] = []

    def partition_and_record(joint: fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **rest: Any) -> Any:
        code = joint.print_readable(print_output=False).strip()
        operations = _operation_names(joint.graph)
        forward, backward = partitioner(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **rest)
        found.append((code, len(operations), _describe_partition(name, forward, backward, num_fwd_outputs)))
        raise _StopTracing

    mode = _torch.FakeTensorMode(allow_non_fake_inputs=True)
    parameters = {n: _make_fake_tensor(mode, p, p.requires_grad) for n, p in module.named_parameters()}
    given = pytree.tree_map(lambda a: _make_fake_tensor(mode, a) if isinstance(a, Tensor) else a, list(inputs))
    for value, is_constant in zip(given, constant, strict=False):
        if is_constant and isinstance(value, Tensor):
            value.requires_grad_(False)

    def call_with_parameters(parameter_values: dict[str, Tensor], *arguments: Any) -> Any:
        return torch.func.functional_call(module, parameter_values, arguments)

    try:
        with mode:
            _torch.aot_function(
                call_with_parameters, _skip_compilation, _skip_compilation, partition_fn=partition_and_record
            )(parameters, *given)
    except _StopTracing:
        return found[0]
    raise TpgenError("nothing in the result depends on a parameter or a floating input, so there is no backward")


def _make_fake_tensor(fake_mode: Any, tensor: Tensor, requires_grad: bool = True) -> Tensor:
    fake = fake_mode.from_tensor(tensor.detach())
    return fake.requires_grad_(requires_grad) if fake.is_floating_point() else fake


def _skip_compilation(gm: fx.GraphModule, example_inputs: Any) -> fx.GraphModule:
    return gm


def _describe_partition(name: str, forward: fx.GraphModule, backward: fx.GraphModule, output_count: int) -> Partition:
    (returned,) = (node.args[0] for node in forward.graph.nodes if node.op == "output")
    saved = []
    for node in returned[output_count:]:
        value = node.meta.get("val") if isinstance(node, fx.Node) else None
        if isinstance(value, Tensor):
            held = value.numel() * value.element_size()
            saved.append(
                _SavedTensor(node.name, tuple(int(n) for n in value.shape), int(held), node.op == "placeholder")
            )
    first, second = _operation_names(forward.graph), _operation_names(backward.graph)
    return Partition(name, len(first), len(second), tuple(saved), tuple(n for n in second if n in set(first)))


def _operation_names(graph: fx.Graph) -> list[str]:
    return [node.name for node in graph.nodes if node.op == "call_function"]
