"""Convolutions on a CUDA device: orders of edges are found once, edges out of range refused."""

from __future__ import annotations

import weakref

import pytest
import torch

from tests.kernels.cuda.fakes import FakeDriver
from tests.kernels.cuda.test_captures import WIDE, count_sorts
from tests.kernels.plans import operands
from tpgen.base.errors import InputError
from tpgen.form.reference import reference_product
from tpgen.kernels.cuda import orders
from tpgen.kernels.cuda.product_kernel import check_and_sort_edges
from tpgen.kernels.rows import BEYOND, DESTINATIONS, SOURCES, RowIndex
from tpgen.kernels.runtime.ops import describe, kernel_conv
from tpgen.planner.presets import channelwise, fully_connected
from tpgen.planner.product import make_plan

PLAN = channelwise("20x0e+3x1o", "0e+1o", "0e+1o", shared_weights=False)


def edges_of(src: torch.Tensor, dst: torch.Tensor) -> list[RowIndex]:
    """Edges from two nodes to three."""
    return [RowIndex(SOURCES, src, 2), RowIndex(DESTINATIONS, dst, 3)]


def test_a_convolution_sorts_its_edges_once(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_ = count_sorts(monkeypatch)
    given = operands(PLAN, 6)
    x1, x2, w = given["x1"][:4].clone().requires_grad_(), given["x2"], given["w"]
    src, dst = torch.tensor([0, 3, 3, 1, 0, 2]), torch.tensor([2, 1, 2, 0, 0, 4])
    text = describe(PLAN)
    found = kernel_conv(x1, x2, w, src, dst, 5, text)
    wanted = torch.zeros(5, PLAN.irreps_out.dim, dtype=x1.dtype)
    wanted = wanted.index_add(0, dst, reference_product(PLAN, x1[src], x2, w))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    cotangent = torch.randn_like(found)
    one, other = (torch.autograd.grad(y, x1, cotangent)[0] for y in (found, wanted))
    torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    kernel_conv(x1.detach(), x2, w, src, dst, 5, text)
    assert sorted_ == [9]  # by dst forwards, by src backwards, at once, and then known
    dst[0] = 3
    kernel_conv(x1.detach(), x2, w, src, dst, 5, text)
    assert sorted_ == [9, 5]


@pytest.mark.parametrize("shared", [False, True], ids=["weights of edges", "shared weights"])
def test_nodes_of_very_many_edges_lie_across_runs(shared: bool, gpu: FakeDriver) -> None:
    """At a receiver and at a sender, whose parts a second launch adds; the bits are the same each time."""
    plan, edges, nodes = channelwise("3x0e+2x1o", "0e+1o", "0e+1o", shared_weights=shared), 400, 40
    given, text = operands(plan, edges), describe(plan)
    x1, x2, w = given["x1"][:nodes].clone().requires_grad_(), given["x2"].requires_grad_(), given["w"].requires_grad_()
    src, dst = torch.randint(nodes, (2, edges), generator=torch.Generator().manual_seed(0))
    src[::2], dst[1::2] = 7, 39  # the last node is long as well
    found = kernel_conv(x1, x2, w, src, dst, nodes, text)
    wanted = torch.zeros_like(found).index_add(0, dst, reference_product(plan, x1[src], x2, w))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    cotangent = torch.randn_like(found)
    one, other = (torch.autograd.grad(y, (x1, x2, w), cotangent) for y in (found, wanted))
    torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    assert gpu.calls.count("cuLaunchKernel") == 2 + 2 + shared
    assert torch.equal(kernel_conv(x1, x2, w, src, dst, nodes, text), found)


def test_a_step_of_several_senders_sums_over_channels_for_each(gpu: FakeDriver) -> None:
    """Where copies are those of x2, the gradient of x1 is a sum over them: of the edges of one sender at a time."""
    paths = [(0, 0, 0, "uvv", False), (0, 1, 1, "uvv", False)]
    plan, edges, nodes = make_plan("2x1o", "5x0e+5x1o", "5x1o+5x1e", paths), 30, 6
    given, text = operands(plan, edges), describe(plan)
    x1, x2 = given["x1"][:nodes].clone().requires_grad_(), given["x2"].requires_grad_()
    src, dst = torch.randint(nodes, (2, edges), generator=torch.Generator().manual_seed(0))
    found = kernel_conv(x1, x2, given["w"], src, dst, nodes, text)
    wanted = torch.zeros_like(found).index_add(0, dst, reference_product(plan, x1[src], x2, given["w"]))
    cotangent = torch.randn_like(found)
    one, other = (torch.autograd.grad(y, (x1, x2), cotangent) for y in (found, wanted))
    torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    (backward,) = [source.placement for source in gpu.sources if source.placement.owner == "x1"]
    assert backward.rows > 1


def test_a_backward_pass_by_receiver_adds_up_gradients_of_senders(gpu: FakeDriver) -> None:
    """Of long rows, by a launch that follows; of a sender without an edge zeros, and of no edge at all."""
    plan, nodes = WIDE, 3
    given, text = operands(plan, 7), describe(plan)
    x1, x2, w = given["x1"][:4].clone().requires_grad_(), given["x2"].requires_grad_(), given["w"].requires_grad_()
    src, dst = torch.tensor([0, 3, 3, 1, 0, 3, 0]), torch.tensor([2, 0, 2, 0, 0, 2, 2])
    found = kernel_conv(x1, x2, w, src, dst, nodes, text)
    wanted = torch.zeros_like(found).index_add(0, dst, reference_product(plan, x1[src], x2, w))
    cotangent = torch.randn_like(found)
    one, other = (torch.autograd.grad(y, (x1, x2, w), cotangent) for y in (found, wanted))
    torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    backward = gpu.sources[-1].placement
    assert (backward.held, backward.scattered) == ("out", ("x1",))
    none = kernel_conv(x1, x2[:0], w[:0], src[:0], dst[:0], nodes, text)
    assert not torch.autograd.grad(none, x1, cotangent)[0].any()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_layers_that_take_rows_of_one_edge_index_share_what_is_known(
    dtype: torch.dtype, gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As MACE and NequIP do: each layer takes ``edge_index[0]`` and ``edge_index[1]`` anew."""
    asked = list[str]()
    for name in ("sort_by_owner", "sort_by_both_ends", "compute_in_range"):
        find = getattr(orders, name)
        monkeypatch.setattr(orders, name, lambda *given, name=name, find=find: asked.append(name) or find(*given))
    given, text = operands(PLAN, 6), describe(PLAN)
    edge_index = torch.tensor([[0, 3, 3, 1, 0, 2], [2, 1, 2, 0, 0, 3]], dtype=dtype)

    def layer(x1: torch.Tensor) -> torch.Tensor:
        return kernel_conv(x1, given["x2"], given["w"], edge_index[0], edge_index[1], 4, text)

    def definition(x1: torch.Tensor) -> torch.Tensor:
        found = reference_product(PLAN, x1[edge_index[0]], given["x2"], given["w"])
        return found.new_zeros(4, found.shape[1]).index_add(0, edge_index[1], found)

    x1 = given["x1"][:4].clone().requires_grad_()
    for _ in range(3):
        found, wanted = layer(x1), definition(x1)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
        pairs = zip(*(torch.autograd.grad(y.sin().sum(), x1) for y in (found, wanted)), strict=True)
        for one, other in pairs:
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    assert asked == ["sort_by_both_ends"]  # both ends, each once, and together; their order says that both are in range
    edge_index[1] = edge_index[1].flip(0)
    torch.testing.assert_close(layer(x1), definition(x1), rtol=1e-12, atol=1e-12)
    assert asked == ["sort_by_both_ends"] * 2


def test_bfloat16_is_summed_over_edges_as_it_stands(gpu: FakeDriver) -> None:
    """A kernel for a GPU adds in float32 whatever the operands are, where one for a CPU gets copies of them."""
    plan = fully_connected("3x0e+2x1o", "0e+1o", "4x1o", shared_weights=False)
    text, nodes = describe(plan), 3
    given = {name: x.bfloat16() for name, x in operands(plan, 40).items()}
    src, dst = torch.randint(nodes, (2, 40), generator=torch.Generator().manual_seed(0))
    x1 = given["x1"][:nodes].clone()
    found = kernel_conv(x1, given["x2"], given["w"], src, dst, nodes, text)
    wide = [x.double() for x in (x1[src], given["x2"], given["w"])]
    wanted = torch.zeros(nodes, found.shape[1], dtype=torch.float64).index_add(0, dst, reference_product(plan, *wide))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), wanted, rtol=2**-8, atol=1e-3)
    assert [source.placement.schedule.target.dtype for source in gpu.sources] == ["bfloat16"]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_one_sort_by_both_ends_makes_the_orders_of_two(dtype: torch.dtype) -> None:
    """Of other numbers of owners at each end, of no edge; what points nowhere is left to no owner of either end."""
    generator = torch.Generator().manual_seed(0)
    for edges, sources, nodes in ((0, 3, 2), (1, 1, 1), (300, 40, 7), (300, 1, 200)):
        src, dst = (torch.randint(n, (edges,), generator=generator).to(dtype) for n in (sources, nodes))
        found = orders.split_orders(orders.sort_by_both_ends(src, dst, sources, nodes), sources, nodes)
        wanted = orders.sort_by_owner(dst, nodes), orders.sort_by_owner(src, sources)
        assert all(map(torch.equal, (x.packed for x in found), (x.packed for x in wanted)))
        src[::5], dst[::3], dst[1::3] = 10**6, 10**6, -7
        found = orders.split_orders(orders.sort_by_both_ends(src, dst, sources, nodes), sources, nodes)
        for order, index, owners in zip(found, (dst, src), (nodes, sources), strict=True):
            assert sorted(order.order.tolist()) == list(range(edges))
            for o in range(owners):
                rows = order.order[order.first[o] : order.first[o + 1]]
                assert torch.equal(rows, (index == o).nonzero().flatten())


def test_an_order_is_known_to_the_stream_that_made_it(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    streams, sorted_ = [1, 1, 2, 1, 2], list[int]()
    monkeypatch.setattr(orders, "sort_by_owner", lambda i, n, f=orders.sort_by_owner: sorted_.append(n) or f(i, n))
    monkeypatch.setattr(orders, "_stream_of_index", lambda index: streams.pop(0))
    dst = torch.tensor([1, 0, 1])
    first, again, other, *_ = (orders.sort_unless_known(dst, 2) for _ in range(5))
    assert first.order is again.order
    assert first.order is not other.order
    assert sorted_ == [2, 2]


def test_of_a_tensor_in_slices_the_last_parts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, long = orders.IndexFactCache[int](), torch.zeros(40, dtype=torch.int64)
    asked = list[int]()
    for start in (*range(20), 19, 0):
        assert memory.get_or_compute(
            long[start : start + 2], 5, lambda i, n: asked.append(i.storage_offset()) or len(asked)
        )
    assert asked == [*range(20), 0]
    assert [len(parts.known) for parts in memory._facts_by_capture[0].values()] == [orders._PARTS]
    assert memory.get_or_compute(long[0:2], 6, lambda i, n: -1) == -1  # other rows
    assert memory.get_or_compute(long[0:4:2], 5, lambda i, n: -2) == -2  # another part that begins there
    del long
    assert not len(memory._facts_by_capture[0])


def test_int32_is_widened_once(gpu: FakeDriver) -> None:
    """For each tensor, until it is written to, and for each CUDA graph; int64 is taken as it is."""
    edge_index = torch.tensor([[0, 1, 1], [1, 0, 2]], dtype=torch.int32)

    def gathered() -> list[torch.Tensor]:
        found = check_and_sort_edges("out", edges_of(*edge_index), 0)[1]
        assert found is not None
        assert [found.src.tolist(), found.dst.tolist()] == edge_index.tolist()
        assert found.src.dtype == found.dst.dtype == torch.int64
        return [found.src, found.dst]

    first = gathered()
    assert all(one is other for one, other in zip(first, gathered(), strict=True))
    edge_index[0, 0] = 1
    anew = gathered()
    assert not any(one is other for one, other in zip(first, anew, strict=True))
    gpu.capture = 1
    captured = gathered()
    assert not any(one is other for one, other in zip(anew, captured, strict=True))
    assert all(one is other for one, other in zip(captured, gathered(), strict=True))
    edge_index = edge_index.long()
    assert [x.data_ptr() for x in gathered()] == [row.data_ptr() for row in edge_index]


def test_an_index_of_int64_is_not_kept_alive() -> None:
    for dtype in (torch.int64, torch.int32):
        index = torch.zeros(5, dtype=dtype)
        gone = weakref.ref(index)
        orders.widen_index(index)
        del index
        assert gone() is None


@pytest.mark.parametrize("written", [False, True])
def test_whether_edges_are_in_range_is_asked_once(
    written: bool, gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()
    monkeypatch.setattr(orders, "compute_in_range", lambda i, n, f=orders.compute_in_range: asked.append(n) or f(i, n))
    src, dst = torch.tensor([0, 1, 1]), torch.tensor([1, 0, 2])
    with torch.no_grad():
        for _ in range(3):
            assert check_and_sort_edges("out", edges_of(src, dst), 0)[0] == 0
            if written:
                src[0] = 1
    assert asked == ([2, 3, 2, 2] if written else [2, 3])


def test_nothing_is_kept_of_what_counts_no_writes(gpu: FakeDriver) -> None:
    with torch.inference_mode():
        src, dst = torch.tensor([0, 1, 1]), torch.tensor([1, 0, 2])
        for wanted in (0, BEYOND + 1):
            assert check_and_sort_edges("out", edges_of(src, dst), 0)[0] == wanted
            dst[0] = 3


@pytest.mark.parametrize("grad", [False, True], ids=["asked of each end", "by their order"])
@pytest.mark.parametrize("beyond", [[0, 2], [-1, 0]], ids=["above", "below"])
@pytest.mark.parametrize("name, place", [("edge_src", 0), ("edge_dst", 1)])
def test_edges_that_point_nowhere_are_refused(
    name: str, place: int, beyond: list[int], grad: bool, gpu: FakeDriver
) -> None:
    given = operands(PLAN, 2)
    edges = [torch.tensor([0, 1]), torch.tensor([1, 0])]
    edges[place] = torch.tensor(beyond)
    got = f"{name} holds an index out of range: indices run from 0 to 1, .*, got {min(beyond)} to {max(beyond)}"
    with pytest.raises(InputError, match=got):
        kernel_conv(given["x1"].requires_grad_(grad), given["x2"], given["w"], *edges, 2, describe(PLAN))
    assert "cuLaunchKernel" not in gpu.calls
    right = [torch.tensor([0, 1]), torch.tensor([1, 0])]
    assert kernel_conv(given["x1"], given["x2"], given["w"], *right, 2, describe(PLAN)).isfinite().all()
