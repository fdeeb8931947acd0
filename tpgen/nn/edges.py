"""Sorted edges of a graph."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from tpgen.base._torch import pytree
from tpgen.base.errors import InputError
from tpgen.kernels.cuda.driver import captured_graph_number
from tpgen.kernels.cuda.orders import remember_as_ascending, sort_unless_known
from tpgen.nn.checks import can_read_values, check_edge_index, check_range


@dataclass(frozen=True, eq=False)
class EdgeOrder:
    """Edges sorted by receiver, stably: convolutions of large graphs run much faster.

    Compute edge attributes from `senders` and `receivers`, or `sort` existing ones; pass the order to convolutions.

    >>> edges = EdgeOrder.of(torch.tensor([0, 1, 2]), torch.tensor([2, 0, 2]), num_nodes=4)
    >>> edges.senders, edges.receivers, edges.first
    (tensor([1, 0, 2]), tensor([0, 2, 2]), tensor([0, 1, 1, 3, 3]))
    >>> edges.sort(torch.tensor([10.0, 11.0, 12.0]))
    tensor([11., 10., 12.])

    As ``edge_src``:

    >>> from tpgen.nn.conv import TensorProductConv
    >>> from tpgen.planner.presets import channelwise
    >>> conv = TensorProductConv.from_plan(channelwise("8x0e+8x1o", "0e+1o", "0e+1o"), strategy="grouped")
    >>> x, y, w = torch.randn(4, 32), torch.randn(3, 4), torch.randn(3, conv.weight_numel)
    >>> conv(x, edges.sort(y), edges.sort(w), edges).shape
    torch.Size([4, 64])

    `of` checks indices; so do convolutions, unless ``check_index=False``.  An `EdgeOrder` can be compiled, exported and
    pickled.
    """

    senders: Tensor  # node that each edge comes from
    receivers: Tensor  # node that each edge points to, ascending
    order: Tensor  # which of the edges given each is
    first: Tensor  # where the edges of each node begin, and at the end how many there are
    num_nodes: int

    @staticmethod
    def of(senders: Tensor, receivers: Tensor, num_nodes: int) -> EdgeOrder:
        """Sort edges by receiver; raises `InputError` unless indices are integers of existing nodes.

        >>> EdgeOrder.of(torch.tensor([0, 5]), torch.tensor([1, 0]), num_nodes=2)
        Traceback (most recent call last):
        tpgen.base.errors.InputError: senders: indices run from 0 to 1 (num_nodes), got 0 to 5
        """
        ends = {"senders": senders, "receivers": receivers}
        for name, index in ends.items():
            check_edge_index(name, index)
        _check_senders_and_receivers(ends, num_nodes)
        for name, index in ends.items():
            check_range(name, index, num_nodes, " (num_nodes)")
        found, order = torch.sort(receivers.long(), stable=True)
        first = torch.searchsorted(found, torch.arange(num_nodes + 1, device=found.device))
        return _register_sort_order_for_gpu_kernels(EdgeOrder(senders.long()[order], found, order, first, num_nodes))

    @property
    def num_edges(self) -> int:
        return self.senders.shape[0]

    def ends(self, edge_dst: Tensor | None = None, num_nodes: int | None = None) -> tuple[Tensor, Tensor, int]:
        """Senders, receivers, number of nodes; `InputError` if ``edge_dst`` or another ``num_nodes`` is given."""
        if edge_dst is not None or num_nodes not in (None, self.num_nodes):
            raise InputError("an EdgeOrder stands for edge_src, edge_dst and num_nodes: give neither of the others")
        return self.senders, self.receivers, self.num_nodes

    def sort(self, x: Tensor) -> Tensor:
        """Permute rows from the original edge order into sorted order."""
        self._check_rows(x)
        return x[self.order]

    def unsort(self, x: Tensor) -> Tensor:
        """Permute rows back into the original edge order."""
        self._check_rows(x)
        return torch.empty_like(x).index_copy(0, self.order, x)

    def to(self, device: torch.device | str) -> EdgeOrder:
        """Copy the edges to a device."""
        senders, receivers, order, first = (getattr(self, name).to(device) for name in _TENSORS)
        return _register_sort_order_for_gpu_kernels(EdgeOrder(senders, receivers, order, first, self.num_nodes))

    def _check_rows(self, x: Tensor) -> None:
        if not x.dim() or x.shape[0] != self.num_edges:
            raise InputError(f"must have one row for each of the {self.num_edges} edges, got {tuple(x.shape)}")

    def __str__(self) -> str:
        return f"{self.num_edges} edges of {self.num_nodes} nodes, in the order of their receivers"


_GPU = "cuda"
_TENSORS = tuple(field.name for field in fields(EdgeOrder))[:-1]


def _check_senders_and_receivers(ends: dict[str, Tensor], num_nodes: int) -> None:
    shapes = {tuple(index.shape) for index in ends.values()}
    if len(shapes) > 1 or any(index.dim() != 1 for index in ends.values()):
        raise InputError(
            "senders and receivers must hold one index for each edge, got shapes "
            f"{' and '.join(str(tuple(index.shape)) for index in ends.values())}"
        )
    if isinstance(num_nodes, bool) or not isinstance(num_nodes, (int, torch.SymInt)) or num_nodes < 0:
        raise InputError(f"num_nodes: must be a number of nodes, got {num_nodes!r}")


def _register_sort_order_for_gpu_kernels(edges: EdgeOrder) -> EdgeOrder:
    # kernels on a GPU walk over edges by either end: by receiver as they stand, by sender in an order that is made
    if edges.senders.device.type == _GPU and can_read_values(edges.senders):
        remember_as_ascending(edges.receivers)
        sort_unless_known(edges.senders, edges.num_nodes, captured_graph_number(edges.senders.get_device()))
    return edges


pytree.register_pytree_node(
    EdgeOrder,
    lambda edges: ([getattr(edges, name) for name in _TENSORS], edges.num_nodes),
    lambda tensors, num_nodes: EdgeOrder(**dict(zip(_TENSORS, tensors, strict=True)), num_nodes=num_nodes),
    serialized_type_name="tpgen.EdgeOrder",
    flatten_with_keys_fn=lambda edges: (
        [(pytree.GetAttrKey(name), getattr(edges, name)) for name in _TENSORS],
        edges.num_nodes,
    ),
)
