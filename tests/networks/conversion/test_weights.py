"""Weights that wait for a sum by node: each way to write the sum, and whatever else is done with weights and rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from e3nn import o3
from e3nn.nn import FullyConnectedNet
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.machine import needs_compiler
from tests.networks.conversion.networks import check_derivatives
from tests.networks.conversion.test_postponed import Doubled
from tpgen.base.errors import InputError
from tpgen.networks.conversion import late_weights
from tpgen.networks.conversion import weights as module
from tpgen.networks.conversion.convert import conversion_report, convert, restore
from tpgen.networks.conversion.late_weights import LateWeights
from tpgen.networks.conversion.weight_nets import SequentialForWeights
from tpgen.networks.conversion.weights import PostponedRows
from tpgen.networks.signature import Signature
from tpgen.networks.step import compile_step

pytestmark = [needs_compiler, pytest.mark.usefixtures("float64")]
NODES, EDGES = 12, 90
Sum = Callable[[Tensor, Tensor, Any], Tensor]


@pytest.fixture(autouse=True)
def late(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Edges of each sum before a last layer; whatever their number, it is worth it."""
    seen, own = [], LateWeights.sum_by_node
    monkeypatch.setattr(
        LateWeights, "sum_by_node", lambda self, x, *rest: seen.append(x.shape[0]) or own(self, x, *rest)
    )
    for where in (late_weights, module):
        monkeypatch.setattr(where, "WORTH_LATE", 0)
    monkeypatch.setattr(late_weights, "_FEWER", (0.0, 0.0))
    return seen


def scatter(rows: Tensor, at: Tensor, nodes: Any) -> Tensor:
    return rows.new_zeros(nodes, rows.shape[1]).scatter_add_(0, at.view(-1, 1).expand_as(rows), rows)


def by_index(rows: Tensor, at: Tensor, nodes: Any) -> Tensor:
    return torch.zeros(nodes, rows.shape[1], dtype=rows.dtype).index_add(0, at, rows)


def mean(rows: Tensor, at: Tensor, nodes: Any) -> Tensor:
    total = torch.ones(nodes, rows.size(1)).index_add_(0, at, rows)
    return total / torch.bincount(at, minlength=nodes).clamp(min=1)[:, None]


def by_matrix(rows: Tensor, at: Tensor, nodes: Any) -> Tensor:
    return nn.functional.one_hot(at, NODES).to(rows.dtype).T @ rows


class Convolution(nn.Module):
    """One layer as DiffDock and tutorials of e3nn write it."""

    def __init__(self, add: Sum = scatter, own: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.product = o3.FullyConnectedTensorProduct("4x0e+2x1o", "0e+1o", "4x0e+2x1o", shared_weights=False)
        width = self.product.weight_numel
        layers = nn.Linear(6, 9), nn.ReLU(), nn.Dropout(0.1), nn.Linear(9, width, bias=bias)
        self.net = FullyConnectedNet([6, 9, width], torch.tanh) if own else nn.Sequential(*layers)
        self.add = add

    def forward(self, x: Tensor, senders: Tensor, receivers: Tensor, y: Tensor, lengths: Tensor) -> Tensor:
        return self.add(self.product(x[senders], y, self.weights(lengths)), receivers, x.shape[0])

    def weights(self, lengths: Tensor) -> Tensor:
        return self.net(lengths)


class Scaled(Convolution):
    def weights(self, lengths: Tensor) -> Tensor:
        w = self.net(lengths)
        w.mul_(lengths[:, :1].detach().cos())
        return w


class Read(Convolution):
    def weights(self, lengths: Tensor) -> Tensor:
        w = self.net(lengths)
        return w + w.mean()


class Times(Convolution):
    """Weights and rows, each times something by `mul` or in place, as cutoffs and attention do."""

    def __init__(self, weights: Any = lambda w, _c: w, rows: Any = lambda r, _c: r) -> None:
        super().__init__()
        self.own, self.of_rows, self.scale = weights, rows, nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor, senders: Tensor, receivers: Tensor, y: Tensor, lengths: Tensor) -> Tensor:
        column = lengths[:, :1].cos() * self.scale
        rows = self.product(x[senders], y, self.own(self.net(lengths), column))
        return self.add(self.of_rows(rows, column), receivers, x.shape[0]) * self.scale


CASES = {
    "scatter_add_": (Convolution, True),
    "index_add": (lambda: Convolution(by_index), True),
    "mean": (lambda: Convolution(mean), True),
    "without a bias": (lambda: Convolution(bias=False), True),
    "FullyConnectedNet": (lambda: Convolution(own=True), True),
    "scaled in place": (Scaled, True),
    "by a matrix": (lambda: Convolution(by_matrix), False),
    "weights that are read": (Read, False),
    "scaled by what needs a gradient": (lambda: Times(lambda w, c: w.mul_(c)), True),
    "a column times weights": (lambda: Times(lambda w, c: (2 * (c * w) * 3.0).to(c.dtype).double()), True),
    "a parameter times weights": (lambda: Times(lambda w, c: w * c.mean() * 1), True),
    "rows times columns": (lambda: Times(lambda w, c: w * c, lambda r, c: torch.mul(r * c, 3)), True),
    "rows over numbers and columns": (lambda: Times(rows=lambda r, c: torch.div(r / 4, 2 + c).div(2.5)), True),
    "weights over a column": (lambda: Times(lambda w, c: w / (2 + c)), True),
    "rows over a matrix": (lambda: Times(rows=lambda r, c: r / (1 + r.detach() ** 2)), False),
    "rows rounded": (lambda: Times(rows=lambda r, c: torch.div(r, 4, rounding_mode="floor") + r), False),
    "rows times a column in place": (lambda: Times(rows=lambda r, c: r.mul_(c)), True),
    "rows times a row": (lambda: Times(rows=lambda r, c: r * c[0] * r.new_ones(1, r.shape[1])), False),
    "few nodes have rows": (lambda: Convolution(lambda r, at, n: scatter(r, at % 5, n)), True),
}


def arguments(tracked: bool = True) -> list[Tensor]:
    senders, receivers = torch.randint(0, NODES, (2, EDGES))
    floats = torch.randn(NODES, 10), torch.randn(EDGES, 4), torch.randn(EDGES, 6)
    x, y, lengths = (t.requires_grad_(tracked) for t in floats)
    return [x, senders, receivers, y, lengths]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_a_network_is_stock(case: str, training: bool, late: list[int]) -> None:
    make, waits = CASES[case]
    stock = make().train(training)
    made, given = convert(deepcopy(stock), program=False), arguments()
    check_derivatives(made, stock, given)
    assert late == waits * [EDGES]


@pytest.mark.parametrize("case", CASES)
def test_a_program_is_stock(case: str, late: list[int]) -> None:
    make, waits = CASES[case]
    stock, given = make().eval(), arguments(tracked=False)
    step = compile_step(convert(deepcopy(stock), program=False), *given)
    assert bool(late) == waits
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(step(*given), stock(*given), rtol=1e-10, atol=1e-10)
            given = [x[:70] if len(x) == EDGES else x for x in given]  # other sizes


def test_nodes_without_rows_have_no_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, summed = [], LateWeights.sum_by_node
    monkeypatch.setattr(LateWeights, "sum_by_node", lambda self, *given: seen.append(given[-1]) or summed(self, *given))
    network, given = convert(Convolution(by_index).eval(), program=False), arguments()
    for used, wanted in ((NODES, NODES), (9, NODES), (8, 8), (1, 1)):
        given[2] = torch.cat([torch.arange(used), torch.randint(0, used, (EDGES - used,))]) + NODES - used
        network(*given)
        assert seen.pop() == wanted
    given[2] = given[2] - NODES
    with pytest.raises((InputError, RuntimeError, IndexError)):
        network(*given)


def test_a_program_leaves_out_nodes_without_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, summed = [], LateWeights.sum_by_node
    monkeypatch.setattr(LateWeights, "sum_by_node", lambda self, *given: seen.append(given[-1]) or summed(self, *given))
    stock, given = Convolution(by_index).eval(), arguments(tracked=False)
    with torch.no_grad():
        for used in (5, NODES):  # of the example
            given[2] = torch.cat([torch.arange(used), torch.randint(0, used, (EDGES - used,))]) + NODES - used
            step = compile_step(convert(deepcopy(stock), program=False), *given)
            names = step._program.written.searches
            assert bool(seen)
            assert ("nodes with edges, 1" in names) == (used < NODES)
            for other in (5, 8, NODES):
                given[2] = torch.cat([torch.arange(other), torch.randint(0, other, (EDGES - other,))]) + NODES - other
                torch.testing.assert_close(step(*given), stock(*given), rtol=1e-10, atol=1e-10)
                assert step._program.run_tensors(Signature.split_call(given, {})[1]) is not None, "the network serves"


def test_what_is_not_worth_it_is_computed_by_row(late: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    stock, given = Convolution().eval(), arguments()
    made = convert(deepcopy(stock), program=False)
    for where, name, value in ((module, "WORTH_LATE", 10**9), (late_weights, "_FEWER", (1e9, 1e9))):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, value)
            torch.testing.assert_close(made(*given), stock(*given))
    assert not late


def test_the_report_says_so_and_restore_takes_it_back() -> None:
    network = convert(Convolution())
    (row,) = conversion_report(network).replaced
    assert row.paths == ("product",)
    assert row.now.endswith("summed by node before the last layer of its net, where that is less")
    assert type(network.net) is SequentialForWeights
    assert type(restore(network).net) is nn.Sequential
    (alone,) = conversion_report(
        convert(o3.FullyConnectedTensorProduct("4x0e", "0e", "4x0e", shared_weights=False))
    ).replaced
    assert "last layer" not in alone.now


def test_hooks_and_other_layers_see_weights(late: list[int]) -> None:
    network, given, seen = convert(Convolution().eval(), program=False), arguments(), []
    wanted = network(*given)
    hook = network.net[-1].register_forward_hook(lambda _m, _g, w: seen.append(type(w)))
    torch.testing.assert_close(network(*given), wanted)
    hook.remove()
    assert (seen, late) == ([Tensor], [EDGES])
    network.net[3] = nn.Sequential(network.net[3])
    torch.testing.assert_close(network(*given), wanted)
    assert late == [EDGES]


def test_scripts_and_graphs(late: list[int]) -> None:
    network, x = convert(Convolution(), program=False).eval(), torch.randn(EDGES, 6)
    assert torch.equal(torch.jit.script(network.net)(x), restore(deepcopy(network)).net(x))
    graph = torch.fx.symbolic_trace(network.net)
    assert torch.equal(graph(x), network.net(x) + 0)


@torch.jit.script
def squared(x: Tensor) -> Tensor:
    return x * x


class Used(Convolution):
    """A layer that does something with weights or rows, by a function."""

    def __init__(self, use: Callable[..., Tensor]) -> None:
        super().__init__()
        self.use = use

    def forward(self, x: Tensor, senders: Tensor, receivers: Tensor, y: Tensor, lengths: Tensor) -> Tensor:
        def product(w: Tensor) -> Tensor:
            return self.product(x[senders], y, w)

        def summed(rows: Tensor) -> Tensor:
            return scatter(rows, receivers, x.shape[0])

        return self.use(self.net, lengths, product, summed)


def without_gradients(net: Any, lengths: Tensor, product: Any, summed: Any) -> Tensor:
    with torch.no_grad():
        w = net(lengths)
    return summed(product(w))


def scaled_without_gradients(net: Any, lengths: Tensor, product: Any, summed: Any) -> Tensor:
    w = net(lengths)
    with torch.no_grad():
        w.mul_(lengths[:, :1].detach())
    return summed(product(w))


def of_a_checkpoint(net: Any, lengths: Tensor, product: Any, summed: Any) -> Tensor:
    return summed(product(checkpoint(net, lengths, use_reentrant=False).mul_(3.0)))


def in_a_checkpoint(net: Any, lengths: Tensor, product: Any, summed: Any) -> Tensor:
    w = net(lengths)
    return checkpoint(lambda w: summed(product(w)), w, use_reentrant=False) + w.pow(2).mean()


def read_by_a_script(net: Any, lengths: Tensor, product: Any, summed: Any) -> Tensor:
    w = net(lengths)
    return summed(product(w)) + squared(w).mean() + summed(squared(product(w)))


def written_and_given_to_a_function(net: Any, lengths: Tensor, product: Any, summed: Any) -> Tensor:
    w = net(lengths)
    w.mul_(3.0)
    return summed(Doubled.apply(product(Doubled.apply(w))))


def hooked_after_the_product(net: Any, lengths: Tensor, product: Any, summed: Any) -> Tensor:
    w = net(lengths)
    rows = product(w)
    if w.requires_grad:
        w.register_hook(lambda g: 3 * g)
    return summed(rows)


def written_after_the_product(net: Any, lengths: Tensor, product: Any, summed: Any) -> Tensor:
    w = net(lengths)
    rows = product(w)
    w.mul_(lengths[:, :1].detach())
    return summed(rows) + summed(product(w))


def by_name(net: Any, lengths: Tensor, product: Any, summed: Any) -> Tensor:
    rows, at = product(net(lengths)), torch.arange(EDGES) % NODES
    zeros = torch.zeros_like(input=rows)[:NODES]
    return torch.index_add(input=zeros, dim=0, index=at, source=rows) + zeros.scatter_add(
        dim=0, index=at[:, None].expand_as(other=rows), src=rows
    )


def in_another_shape(net: Any, lengths: Tensor, product: Any, summed: Any) -> Tensor:
    w = net(lengths)
    w.unsqueeze_(0)
    assert w.dim() == 3
    return summed(product(w.squeeze(0)))


USES = [
    without_gradients, scaled_without_gradients, of_a_checkpoint, in_a_checkpoint, read_by_a_script,
    written_and_given_to_a_function, hooked_after_the_product, by_name, in_another_shape,
]  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_whatever_is_done_with_weights_and_rows(use: Callable[..., Tensor]) -> None:
    stock = Used(use).eval()
    made, given = convert(deepcopy(stock), program=False), arguments()
    found, wanted = [], []
    for network, into in ((made, found), (stock, wanted)):
        out = network(*given)
        leaves = [*(x for x in given if x.requires_grad), *network.parameters()]
        slopes = torch.autograd.grad(out.cos().sum(), leaves, allow_unused=True)
        into += [out, *slopes]
    for a, b in zip(found, wanted, strict=True):
        assert (a is None) == (b is None)
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        torch.testing.assert_close(made(*given), stock(*given), rtol=1e-10, atol=1e-10)


def test_rows_have_the_weights_of_their_product() -> None:
    stock, given = Used(written_after_the_product).eval(), arguments(tracked=False)
    with torch.no_grad():
        torch.testing.assert_close(convert(deepcopy(stock), program=False)(*given), stock(*given))


def test_modes_and_tools_of_torch(late: list[int]) -> None:
    stock, given = Convolution().eval(), arguments(tracked=False)
    made = convert(deepcopy(stock), program=False)
    wanted = stock(*given)
    with torch.inference_mode():
        torch.testing.assert_close(made(*given), wanted)
    assert not late
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a trace keeps sizes
        traced = torch.jit.trace(made, tuple(given), check_trace=False)
        torch.testing.assert_close(traced(*given), wanted)
    torch.testing.assert_close(
        torch.func.vmap(made, in_dims=(0, None, None, None, None))(given[0][None], *given[1:])[0], wanted
    )
    assert torch.equal(made.net[:0](given[4]), given[4])
    seen: list[str] = []
    with nn.modules.module.register_module_forward_hook(lambda m, _g, _out: seen.append(type(m).__name__)):
        torch.testing.assert_close(made(*given), wanted)
    assert seen.count("Linear") == 2
    assert not late


def test_autocast_between(late: list[int]) -> None:
    torch.set_default_dtype(torch.float32)
    stock = Convolution().eval()
    made, (x, senders, receivers, y, lengths) = convert(deepcopy(stock), program=False), arguments(tracked=False)
    found = []
    for network in (made, stock):
        w = network.net(lengths)
        with torch.autocast("cpu", torch.bfloat16):
            found.append(scatter(network.product(x[senders], y, w).float(), receivers, NODES))
    torch.testing.assert_close(*found, rtol=5e-2, atol=5e-2)


# -- rows of products whose weights are given --------------------------------------------------------------------------


class Messages(nn.Module):
    """Gather, product and sum, as most networks of e3nn write them."""

    def __init__(self, use: Callable[[Tensor, Tensor], Tensor] = lambda rows, _c: rows, add: Sum = scatter) -> None:
        super().__init__()
        steps = [(a, b, n, "uvu", True) for n, (a, b) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1)))]
        ends = "4x0e+2x1o", "0e+1o", "4x0e+4x1o+2x1o+2x0e"
        self.product = o3.TensorProduct(*ends, steps, shared_weights=False, internal_weights=False)
        self.net = nn.Linear(6, self.product.weight_numel)
        self.use, self.add = use, add

    def forward(self, x: Tensor, senders: Tensor, receivers: Tensor, y: Tensor, lengths: Tensor) -> Tensor:
        rows = self.product(x[senders], y, self.net(lengths).tanh())
        return self.add(self.use(rows, lengths[:, :1].cos()), receivers, x.shape[0])


@pytest.fixture
def by_kernel(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Edges of each sum by the product's own kernel; whatever their number, it is worth it."""
    seen, sums = [], module._EdgeProduct.sum_by_node_in_kernel
    monkeypatch.setattr(module, "WORTH_SUMMING", (0, 0))
    monkeypatch.setattr(
        module._EdgeProduct,
        "sum_by_node_in_kernel",
        lambda self, w, *rest: seen.append(w.shape[0]) or sums(self, w, *rest),
    )
    return seen


ROWS = {
    "scatter_add_": (Messages, True),
    "index_add": (lambda: Messages(add=by_index), True),
    "mean": (lambda: Messages(add=mean), True),
    "few nodes": (lambda: Messages(add=lambda r, at, n: scatter(r, at % 3, n)), True),
    "attention": (lambda: Messages(lambda r, c: 2 * (c * r)), True),
    "in place": (lambda: Messages(lambda r, c: r.mul_(c)), True),
    "over a number": (lambda: Messages(lambda r, c: r / 4), True),
    "over a column": (lambda: Messages(lambda r, c: r / (2 + c)), True),
    "beneath a number": (lambda: Messages(lambda r, c: 4 / (r.abs() + 9)), False),
    "by a matrix": (lambda: Messages(add=by_matrix), False),
    "read": (lambda: Messages(lambda r, c: r.sin() + c), False),
}


@pytest.mark.parametrize("case", ROWS)
def test_sums_of_rows_are_stock(case: str, by_kernel: list[int]) -> None:
    make, summed = ROWS[case]
    stock = make()
    made, given = convert(deepcopy(stock), program=False), arguments()
    check_derivatives(made, stock, given)
    with torch.no_grad():
        torch.testing.assert_close(made(*given), stock(*given))
    assert by_kernel == summed * [EDGES, EDGES]


def test_sums_that_are_not_worth_it(by_kernel: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    made, given = convert(Messages(), program=False), arguments()
    numbers = EDGES * made.product.irreps_out.dim
    for least in (numbers, numbers + 1):
        monkeypatch.setattr(module, "WORTH_SUMMING", (least, least))
        made(*given)
    assert by_kernel == [EDGES]


def test_weights_that_are_worth_no_sum_before_them(by_kernel: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_weights, "_FEWER", (1e9, 1e9))
    stock = Convolution().eval()
    made, given = convert(deepcopy(stock), program=False), arguments()
    check_derivatives(made, stock, given)
    assert by_kernel == [EDGES]


def test_rows_that_are_read_are_postponed_seldom(by_kernel: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    seen, made = [], PostponedRows.make_postponed
    monkeypatch.setattr(PostponedRows, "make_postponed", lambda *given: seen.append(0) or made(*given))
    reader, given = convert(Messages(lambda r, c: r + c), program=False), arguments()
    for _ in range(60):
        reader(*given)
    assert len(seen) == 1
    for _ in range(70):
        reader(*given)
    assert len(seen) == 3
    reader.use = lambda r, _c: r
    for _ in range(64):
        reader(*given)
    assert 0 < len(by_kernel) < 64, "it finds out within 60 calls"


def test_rows_that_are_summed_and_read_are_computed_once(by_kernel: list[int]) -> None:
    def both(rows: Tensor, at: Tensor, nodes: Any) -> Tensor:
        return scatter(rows, at, nodes) + scatter(rows.sin(), at, nodes)

    stock, given = Messages(add=both), arguments()
    made = convert(deepcopy(stock), program=False)
    for _ in range(3):
        torch.testing.assert_close(made(*given), stock(*given))
    assert by_kernel == [EDGES], "the second call computes rows"


def test_errors_of_rows_come_at_once(by_kernel: list[int]) -> None:
    made, (x, senders, receivers, y, lengths) = convert(Messages(), program=False), arguments()
    for wrong in ((x, senders, receivers, y[:, :3], lengths), (x[:, :9], senders, receivers, y, lengths)):
        with pytest.raises(InputError, match="last dimension must be"):
            made(*wrong)
    with pytest.raises(InputError, match="edge_dst"):
        made(x, senders, receivers + NODES, y, lengths)
    rows = made.product(x[senders], y, w := torch.randn(EDGES, made.product.weight_numel))
    w.zero_()
    with pytest.raises(InputError, match="keep="):
        rows.sum()
    assert not by_kernel or by_kernel == [EDGES]


def test_a_checkpoint_around_rows_that_are_read(by_kernel: list[int]) -> None:
    read = Messages(lambda r, c: checkpoint(lambda r: r.sin() + c, r, use_reentrant=False))
    given = arguments()
    for stock in (Messages(lambda r, c: r.sin()), read):
        network = convert(deepcopy(stock), program=False)
        found, wanted = (
            torch.autograd.grad(checkpoint(n, *given, use_reentrant=False).sum(), [given[0], n.net.weight])
            for n in (network, stock)
        )
        torch.testing.assert_close(found, wanted)
    assert not by_kernel


def test_names_of_a_product_of_rows(by_kernel: list[int]) -> None:
    network, given = convert(Messages(), program=False), arguments()
    for use in (
        lambda r, c: torch.mul(input=r, other=c),
        lambda r, c: r.mul(other=c),
        lambda r, c: torch.mul(r.detach(), c.detach(), out=torch.empty(r.shape)),
    ):
        network.use = use
        stock = restore(deepcopy(network))
        torch.testing.assert_close(network(*given), stock(*given))
    assert len(by_kernel) == 2


def test_hooks_see_rows_or_are_refused(by_kernel: list[int]) -> None:
    seen: list[Any] = []
    network, given = convert(Messages(lambda r, c: seen.append(r) or r), program=False), arguments()
    out = network(*given)
    for hook in (lambda r: r.register_hook(print), lambda r: r.retain_grad()):
        with pytest.raises(InputError, match="keep="):
            hook(seen[-1])
    network.use = lambda r, c: seen.append(r) or (r.grad_fn.register_hook(lambda *_: seen.append("node")), r)[1]
    network(*given).sum().backward()
    assert seen[-1] == "node"
    network.use = lambda r, c: r
    network.product.register_forward_hook(lambda _m, _g, rows: seen.append(rows))
    out = network(*given)
    assert torch.autograd.grad(out.sum(), seen[-1])[0].shape == seen[-1].shape
    assert by_kernel == [EDGES]


def test_rows_that_are_first_read_in_inference_mode(by_kernel: list[int]) -> None:
    def use(rows: Tensor, column: Tensor) -> Tensor:
        with torch.inference_mode():
            rows.mean()
        return rows * column

    stock, given = Messages(use), arguments()
    found = convert(deepcopy(stock), program=False)(*given)
    torch.testing.assert_close(found, stock(*given))
    found.sum().backward()
