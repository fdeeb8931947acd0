"""Tensor products of edges, summed into nodes."""

# annotations are objects, not strings: TorchScript reads them

from typing import Any, ClassVar, Optional

import torch
from e3nn.util.jit import compile_mode
from torch import Tensor

from tpgen.base.errors import InputError
from tpgen.emitter.leaf import record_leaf_call
from tpgen.kernels.rows import EDGE_PAIRS, EDGES
from tpgen.kernels.runtime.batched import run_product
from tpgen.kernels.runtime.description import can_share_weights_of_edge_pairs, describe
from tpgen.kernels.runtime.ops import kernel_conv
from tpgen.kernels.runtime.pairs import repeat_paired_rows
from tpgen.nn.checks import check_edge_index, check_edge_index_fits
from tpgen.nn.edges import EdgeOrder
from tpgen.nn.tensor_product import TensorProduct


@compile_mode("script")
class TensorProductConv(TensorProduct):
    r"""Gather, product and scatter in one form: :math:`z_n = \sum_{e:\, dst(e) = n} x_{src(e)} \otimes_{w_e} y_e`.

    A kernel (``strategy`` ``kernel``, or ``auto`` on a CPU) stores no edge's product, not even in derivatives, and sums
    edges in order, independent of threads.  Other strategies gather, multiply and `index_add`.

    Parameters are those of `TensorProduct`.

    >>> from tpgen.planner.presets import channelwise
    >>> conv = TensorProductConv.from_plan(channelwise("8x0e+8x1o", "0e+1o", "0e+1o"), strategy="grouped")
    >>> x, y, w = torch.randn(5, 32), torch.randn(12, 4), torch.randn(12, conv.weight_numel)
    >>> src, dst = torch.randint(5, (2, 12))
    >>> conv(x, y, w, src, dst, num_nodes=5).shape
    torch.Size([5, 64])
    """

    directions: ClassVar[dict[str, str]] = {"forward": "conv", "right": "right"}
    edges: ClassVar[bool] = True
    __constants__: ClassVar[list[str]] = ["_by_kernel"]  # TorchScript leaves out what it rules out

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        y: Tensor,
        weight: Optional[Tensor],  # noqa: UP045
        edge_src: Tensor,
        edge_dst: Optional[Tensor] = None,  # noqa: UP045
        num_nodes: Optional[int] = None,  # noqa: UP045
        check_index: bool = True,
    ) -> Tensor:
        """Sum each edge's product into its receiving node.

        Returns ``(num_nodes, out)``; nodes without edges are zero.

        Parameters
        ----------
        x
            node features ``(nodes, in1)``.
        y
            edge attributes ``(edges, in2)``.
        weight
            ``(edges, numel)``, ``(numel,)`` if shared, None if internal.
        edge_src, edge_dst
            row of ``x`` that an edge reads, and result row that receives the edge: int64 or int32 ``(edges,)``, in any
            order (GPUs and graphs copy int32).  An `EdgeOrder` as ``edge_src`` replaces both and ``num_nodes``; sort
            ``y`` and ``weight`` then.
        num_nodes
            rows of the result, by default those of ``x``.
        check_index
            check index ranges in each call and derivative; with False, a wrong index is undefined behaviour.
        """
        if not torch.jit.is_scripting():
            if isinstance(edge_src, EdgeOrder):
                return self._convolve_with_edge_order(x, y, weight, edge_src, edge_dst, num_nodes, check_index)
            text = self._checked if check_index else self._trusting
            made = self._try_kernel(text, x, y, weight, edge_src, edge_dst, num_nodes)
            if made is not None:
                return made
            return self._check_operands_and_convolve(x, y, weight, edge_src, edge_dst, num_nodes, check_index)
        assert edge_dst is not None
        return self._convolve_in_script(
            x, y, self._check_weight_in_script(weight), edge_src, edge_dst, num_nodes, check_index
        )

    def forward_pairs(
        self,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        edge_src: Tensor,
        edge_dst: Optional[Tensor] = None,  # noqa: UP045
        num_nodes: Optional[int] = None,  # noqa: UP045
    ) -> Tensor:
        """Convolve as `forward`, with two edges to a row of weights.

        Edge e reads row ``e % rows`` of weights ``(rows, numel)``: both directions of an edge, listed in two halves,
        share weights.  Needs at least half as many rows as edges.

        >>> from tpgen.planner.presets import channelwise
        >>> conv = TensorProductConv.from_plan(channelwise("8x0e", "0e+1o", "8x0e+8x1o"), strategy="kernel")
        >>> x, y, w = torch.randn(5, 8), torch.randn(12, 4), torch.randn(6, conv.weight_numel)
        >>> src, dst = torch.randint(5, (2, 6))
        >>> conv.forward_pairs(x, y, w, torch.cat([src, dst]), torch.cat([dst, src])).shape
        torch.Size([5, 32])
        """
        text = self._checked if self._takes_pairs else ""
        made = self._try_kernel(text, x, y, weight, edge_src, edge_dst, num_nodes, (*EDGES, EDGE_PAIRS))
        if made is not None:
            return made
        self._update_strategy_after_kernel_failures()
        weight = self._check_weight_or_take_own(weight)
        if self.shared_weights or not self.weight_numel:  # no rows that edges could share
            return self.forward(x, y, weight, edge_src, edge_dst, num_nodes)
        here = isinstance(x, Tensor) and x.device.type == "cpu" and not torch.jit.is_tracing()
        if self._takes_pairs and here and isinstance(edge_src, Tensor) and isinstance(edge_dst, Tensor):
            nodes = x.shape[0] if num_nodes is None else num_nodes
            x, y, weight = self._check_and_convert_operands({"x": (x, self._in1_dim), "y": (y, self._in2_dim)}, weight)
            return kernel_conv(x, y, weight, edge_src, edge_dst, nodes, self._checked, paired=True)
        return self.forward(x, y, repeat_paired_rows(weight, y.shape[0]), edge_src, edge_dst, num_nodes)

    def _check_operands_and_convolve(
        self,
        x: Tensor,
        y: Tensor,
        weight: Tensor | None,
        src: Tensor,
        dst: Any,
        num_nodes: int | None,
        check_index: bool,
    ) -> Tensor:
        # the sum over edges with both ends given, where the call is no usual one: left to a tracer, or looked at
        if dst is None:
            raise InputError("edge_dst: give the other end of the edges too, or an EdgeOrder for both")
        if not isinstance(x, Tensor):
            node = record_leaf_call(self, x, y, weight, src, dst, num_nodes, check_index)
            if node is not None:
                return node
        check_edge_index("edge_src", src)
        check_edge_index("edge_dst", dst)
        self._update_strategy_after_kernel_failures()
        if not self._by_kernel:  # graphs are written for int64; kernels read either
            src, dst = src.long(), dst.long()
        w = self._check_weight_or_take_own(weight)
        x, y, w = self._check_and_convert_operands({"x": (x, self._in1_dim), "y": (y, self._in2_dim)}, w)
        nodes = x.shape[0] if num_nodes is None else num_nodes
        self._check_edges(x, y, w, src, dst, nodes, check_index)
        if self.choice.strategy == "kernel" and torch.jit.is_tracing():
            return self._convolve_in_jit_trace(x, y, w, src, dst, nodes)
        if self.choice.strategy == "kernel":
            return kernel_conv(x, y, w, src, dst, nodes, self._checked if check_index else self._trusting)
        return self._run_program("forward", x, y, w, src, dst, nodes)

    def _convolve_with_edge_order(
        self,
        x: Tensor,
        y: Tensor,
        weight: Any,
        edges: EdgeOrder,
        edge_dst: Any,
        num_nodes: int | None,
        check_index: bool,
    ) -> Tensor:
        src, dst, nodes = edges.ends(edge_dst, num_nodes)
        if isinstance(x, Tensor) and x.dim() and x.shape[0] != edges.num_nodes:
            raise InputError(f"x: must have a row for each of the {edges.num_nodes} nodes, got {tuple(x.shape)}")
        made = self._try_kernel(self._checked if check_index else self._trusting, x, y, weight, src, dst, nodes)
        return self._check_operands_and_convolve(x, y, weight, src, dst, nodes, check_index) if made is None else made

    def _generate_programs(self) -> None:
        super()._generate_programs()
        # with and without a check of the edges; written here, as torch.compile cannot trace the writing
        kernel = self._by_kernel = self.choice.strategy == "kernel"
        self._checked = describe(self.plan, self.layout, check_index=True) if kernel else ""
        self._trusting = describe(self.plan, self.layout, check_index=False) if kernel else ""
        self._takes_pairs = kernel and can_share_weights_of_edge_pairs(self.plan, self.layout, self.output_mask.dtype)

    def __prepare_scriptable__(self) -> "TensorProductConv":
        return self  # without `right`, which a convolution has not

    def _convolve_in_jit_trace(self, x: Tensor, y: Tensor, w: Tensor, src: Tensor, dst: Tensor, nodes: int) -> Tensor:
        # a trace records `nodes` as a constant argument of the convolution's operator, and keeps new_zeros symbolic
        messages = run_product(x.index_select(0, src), y, w, [], self._checked)
        return messages.new_zeros(nodes, messages.shape[1]).index_add(0, dst, messages)

    def _convolve_in_script(
        self,
        x: Tensor,
        y: Tensor,
        w: Tensor,
        src: Tensor,
        dst: Tensor,
        num_nodes: Optional[int],  # noqa: UP045
        check_index: bool,
    ) -> Tensor:
        nodes = x.size(0) if num_nodes is None else num_nodes
        if self._by_kernel:  # alone, so that TorchScript can rule it out
            if not check_index:
                return run_product(x, y, w, [src, dst], self._trusting, "src dst", nodes)
        else:
            src, dst = src.long(), dst.long()
        return self._forward_program(x, y, w, src, dst, nodes)

    def meta_operands(self, rows: int, nodes: int | None = None) -> list[Tensor]:
        """A call's operands and edge indices on the meta device."""
        x = self._meta_tensor_of_own_dtype(rows if nodes is None else nodes, self._in1_dim)
        weights = self._make_meta_weights(rows) or [None]  # type: ignore[list-item]
        index = torch.empty(rows, dtype=torch.int64, device="meta")
        return [x, self._meta_tensor_of_own_dtype(rows, self._in2_dim), *weights, index, index]

    def right(self, y: Tensor, weight: Optional[Tensor] = None) -> Tensor:  # noqa: UP045
        """Raise `InputError`: use `TensorProduct.right` on the edges."""
        raise InputError(
            "right is not defined for a convolution: "
            "build TensorProduct.from_plan(conv.plan) and use its right on the edges"
        )

    def _check_edges(
        self, x: Tensor, y: Tensor, w: Tensor, src: Tensor, dst: Tensor, nodes: int, check_index: bool
    ) -> None:
        if x.dim() != 2 or y.dim() != 2:
            raise InputError(
                "a convolution takes x as (nodes, in1) and y as (edges, in2), "
                f"got {tuple(x.shape)} and {tuple(y.shape)}"
            )
        if nodes < 0:
            raise InputError(f"num_nodes: must not be negative, got {nodes}")
        if not self.shared_weights and self.weight_numel and w.shape[:-1] != y.shape[:1]:
            raise InputError(f"weight: must have one row for each of the {y.shape[0]} edges, got {tuple(w.shape)}")
        for name, index, limit, what in (
            ("edge_src", src, x.shape[0], "rows of x"),
            ("edge_dst", dst, nodes, "num_nodes"),
        ):
            look = check_index and self.choice.strategy != "kernel"
            check_edge_index_fits(name, index, x, y.shape[0], limit, what, look)
