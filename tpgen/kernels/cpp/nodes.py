"""C++ of sums by node before weights mix copies."""

from __future__ import annotations

from collections.abc import Iterator

from tpgen.form.form import Term
from tpgen.kernels.cpp.prelude import header_text
from tpgen.kernels.cpp.text import Writer, number_literal, write_sum_of_blocks
from tpgen.kernels.cpp.tiles import lane_list
from tpgen.kernels.placement.nodes import NODE_ROWS, NODES_AT_A_TIME, NodePlacement

_VECTORS_BESIDE_SUMS = 8  # registers that hold no sums
_REGISTERS_OF_NODE = 8


class NodeKernelWriter:
    """Writes C++ of a kernel of nodes."""

    def __init__(self, placement: NodePlacement, w: Writer) -> None:
        self.p, self.s, self.w = placement, placement.schedule, w

    def write_functions_called_by_kernel(self) -> None:
        p, w, target = self.p, self.w, self.s.target
        sizes = {"K": p.dim["x1"], "P": p.dim["x2"], "OUT": p.dim["out"]}
        sums = target.registers - _VECTORS_BESIDE_SUMS
        at_a_time = {
            "NODES": NODES_AT_A_TIME,
            "FEW": target.registers // _REGISTERS_OF_NODE,
            "EDGES": NODE_ROWS,
            "SUMS": sums,
        }
        w.line(f"enum {{ {', '.join(f'{name} = {size}' for name, size in (sizes | at_a_time).items())} }};")
        rest = p.dim["x1"] % target.lanes or target.lanes
        lanes = lane_list([lane if lane < rest else target.lanes for lane in range(target.lanes)])
        w.line(f"static inline vec last_scalars(vec v) {{ return __builtin_shufflevector(v, vec{{}}, {lanes}); }}")
        w.raw(header_text("nodes"))
        kept = 0
        for term in self.s.terms:
            starts = [self.s.segment_start(term, operand) for operand in ("x2", "out", "w")]
            scale = number_literal(term.entries[0].value, target.dtype)
            numbers = ", ".join(map(str, (term.size("v"), term.size("w"), *starts, kept, scale)))
            with w.part("paths"), w.paths(term.path):
                w.line(f"static const Path path_{term.path} = {{{numbers}}};")
            kept += term.size("vw") * p.lanes_of_scalars
        head = f"static void compute({', '.join(f'{kind} {name}' for kind, name in self._parameters())})"
        with w.part("function compute"), w.block(head):
            self._write_work_on_nodes()

    def _parameters(self) -> list[tuple[str, str]]:
        given: list[tuple[str, str]] = [("const real*", o) for o in ("x1", "x2", "out") if o in self.p.given]
        given += [("const num*", "weights")] * ("w" in self.p.given)
        opened = [("real*", f"d_{name}") for name in self.p.opened if name != "w"]
        opened += [("num*", "a_w")] * ("w" in self.p.opened)
        return [("Nodes&", "of"), *given, *opened, *(("num*", name) for name in self.p.scratch)]

    def _write_work_on_nodes(self) -> None:
        w, opened = self.w, self.p.opened
        if "x1" in self.p.given:
            w.line("stage_scalars(of, x1, scalars);")
        if "out" in opened:
            w.line("clear(by_out, of.count * OUT * W);")
        if "x1" in opened:
            w.line("clear(by_scalars, row_of_scalars(of.count, 0));")
        for term in self.s.terms:
            with w.paths(term.path):
                self._write_work_on_path(term)
        if "x2" in opened:
            for start, size in self.p.starts_and_sizes_that_no_path_uses("x2"):
                w.line(f"zero_products(of, {size}, d_x2 + {start});")
        if "out" in opened:
            w.line("add_out(of, by_out, d_out);")
        if "x1" in opened:
            w.line("give_scalars(of, by_scalars, d_x1);")

    def _write_work_on_path(self, term: Term) -> None:
        w, dim, path = self.w, term.size("k"), f"path_{term.path}"
        if "out" in self.p.given:
            w.line(f"find_cotangents(of, out + {path}.out);")
        step = self.p.copies_at_a_time(term)
        with w.block(f"for (int u = 0; u < {term.size('v')}; u += {step})"):
            w.line(f"const Path some = copies_of({path}, u, {step}, {dim});")
            w.line(f"const int size = some.copies * {dim};")
            if "x2" in self.p.given:
                w.line("find_products(of, x2 + some.p);")
            if "x2" in self.p.opened:
                w.line("clear(by_products, of.count * EDGES * (i64)whole_vectors(size));")
            with w.block("for (int k = 0; k < LANES; k += W)"):
                w.line(f"const i64 at = some.kept + k * (i64){term.size('vw')};")
                for line in self._steps_on_vector_of_scalars(dim):
                    w.line(line)
            if "x2" in self.p.opened:
                w.line("give_products(of, size, by_products, d_x2 + some.p);")

    def _steps_on_vector_of_scalars(self, dim: int) -> Iterator[str]:
        is_padded = self.p.dim["x1"] < self.p.lanes_of_scalars
        if "node_sums" in self.p.scratch:
            yield "sum_products(of, size, scalars + k, node_sums);"
            if is_padded:
                yield "if (k + W > K) clear_padding(node_sums, of.count * size);"
        if "out" in self.p.opened:
            yield f"mix<{dim}>(of, some, weights + at, node_sums, by_out + some.out * W);"
        if "w" in self.p.opened:
            yield f"add_weights<{dim}>(of, some, node_sums, a_w + at);"
        if "node_slopes" in self.p.scratch:
            yield f"unmix<{dim}>(of, some, weights + at, node_slopes);"
            if is_padded:
                yield "if (k + W > K) clear_padding(node_slopes, of.count * size);"
        if "x1" in self.p.opened:
            yield "add_scalars(of, size, node_slopes, by_scalars + k);"
        if "x2" in self.p.opened:
            yield "add_products(of, size, node_slopes, scalars + k, by_products);"

    def write_copy_of_shared_weights_into_scratch(self) -> None:
        self._write_calls_for_each_path("keep_lanes(w + {0}.weights, {1}, {0}.scale, weights + {0}.kept);")

    def write_sum_of_weight_gradients_over_blocks(self) -> None:
        write_sum_of_blocks(self.w, self.p.block_sums)
        self._write_calls_for_each_path("give_lanes(d_w + {0}.weights, {1}, {0}.scale, sums + {0}.kept);")
        for start, size in self.p.starts_and_sizes_that_no_path_uses("w"):
            self.w.line(f"zero(d_w + {start}, {size});")

    def _write_calls_for_each_path(self, call: str) -> None:
        for term in self.s.terms:
            with self.w.paths(term.path):
                self.w.line(call.format(f"path_{term.path}", term.size("vw")))

    def write_loop_over_rows_of_block(self) -> None:
        w = self.w
        w.line("const i64 from = owner_at(first, owners, b * span), to = owner_at(first, owners, (b + 1) * span);")
        if "out" in self.p.opened:
            w.line("zero(d_out + from * OUT, (to - from) * OUT);")
        w.line("Nodes of; of.count = 0;")
        compute = f"compute({', '.join(name for _, name in self._parameters())});"
        with w.block("for (i64 node = from; node < to; ++node)"):
            w.line("for (i64 q = first[node]; q < first[node + 1]; q += EDGES) {")
            w.line("const int n = of.count++;")
            w.line("of.node[n] = node;")
            w.line("of.rows[n] = (int)least(EDGES, first[node + 1] - q);")
            w.line("for (int e = 0; e < of.rows[n]; ++e) of.row[n][e] = order[q + e];")
            w.line(f"if (of.count == NODES) {{ {compute} of.count = 0; }}")
            w.line("}")
        w.line(f"if (of.count) {compute}")
