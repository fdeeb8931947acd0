"""CUDA graphs that record: a sort for all layers of each, and nothing that outlives it."""

from __future__ import annotations

import gc
import sys
import weakref
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.cuda.fakes import STREAMS, FakeDriver
from tests.kernels.plans import operands
from tpgen.base import _torch
from tpgen.form.reference import reference_product
from tpgen.kernels.cuda import driver, orders
from tpgen.kernels.cuda.product_kernel import check_and_sort_edges
from tpgen.kernels.rows import DESTINATIONS, SOURCES, RowIndex
from tpgen.kernels.runtime.ops import describe, kernel_conv
from tpgen.nn import edges as module
from tpgen.nn.edges import EdgeOrder
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise

PLAN = channelwise("4x0e+4x1o", "0e+1o", "4x0e+4x1o", shared_weights=False)
WIDE = channelwise("64x0e+64x1o", "0e+1o+2e+3o", "64x0e+64x1o+64x2e+64x3o", shared_weights=False)
NODES = 5
MAKE, MAKE_BOTH = orders.sort_by_owner, orders.sort_by_both_ends  # however a test counts them


def count_sorts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of owners of all sorts, those of both ends together where one sort is by both."""
    made = list[int]()
    monkeypatch.setattr(orders, "sort_by_owner", lambda index, owners: made.append(owners) or MAKE(index, owners))
    monkeypatch.setattr(orders, "sort_by_both_ends", lambda s, d, *n: made.append(sum(n)) or MAKE_BOTH(s, d, *n))
    return made


@pytest.fixture
def sorts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of owners of all sorts."""
    return count_sorts(monkeypatch)


class Network:
    """Three layers of convolutions on one ``edge_index``, of which each takes rows anew, and their definition."""

    def __init__(self, plan: Plan = PLAN, edges: int = 12) -> None:
        given = operands(plan, edges)
        self.plan, self.text = plan, describe(plan)
        self.x, self.y, self.w = given["x1"][:NODES].clone().requires_grad_(), given["x2"], given["w"]
        self.edge_index = torch.randint(NODES, (2, edges), generator=torch.Generator().manual_seed(0))
        self.ends: Any = None  # in the place of rows of that

    def layer(self, x: Tensor) -> Tensor:
        return kernel_conv(x, self.y, self.w, *(self.ends or self.edge_index), NODES, self.text)

    def definition(self, x: Tensor) -> Tensor:
        rows = reference_product(self.plan, x[self.edge_index[0]], self.y, self.w)
        return rows.new_zeros(NODES, rows.shape[1]).index_add(0, self.edge_index[1], rows)

    def step(self, layer: Any) -> tuple[Tensor, Tensor]:
        out, width = self.x, self.x.shape[1]
        for _ in range(3):
            out = layer(out)[:, :width].sin()
        return out.detach(), torch.autograd.grad(out.square().sum(), self.x)[0]

    def run(self) -> None:
        """A step, whose values and gradients are right."""
        for found, wanted in zip(self.step(self.layer), self.step(self.definition), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("plan", [PLAN, WIDE], ids=["by sender", "by receiver"])
def test_a_cuda_graph_sorts_both_ends_at_once(plan: Plan, gpu: FakeDriver, sorts: list[int]) -> None:
    """For three layers, forward and backward; each graph anew, and nothing of outside."""
    network = Network(plan)
    for gpu.capture, made in ((0, 1), (1, 2), (2, 3), (0, 3)):
        network.run()
        assert sorts == [2 * NODES] * made
    # sources are written side by side
    assert sorted(bool(source.placement.scattered) for source in gpu.sources) == [False, plan is WIDE]


def test_edges_in_the_order_of_receivers_are_sorted_by_sender_alone(
    native_gpu: FakeDriver, sorts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Python's launch and by that in C++; of an `EdgeOrder`, inside a CUDA graph as outside."""
    monkeypatch.setattr(module, "_GPU", "cpu")
    monkeypatch.setattr(module, "captured_graph_number", lambda device: 0)
    network = Network(edges=400)
    edges = EdgeOrder.of(*network.edge_index, NODES)
    assert sorts == [NODES]
    network.ends, network.edge_index = (edges.senders, edges.receivers), torch.stack([edges.senders, edges.receivers])
    for native_gpu.capture, made in ((0, 1), (0, 1), (1, 2), (1, 2)):
        network.run()
        assert len(sorts) == made


def test_a_write_in_a_cuda_graph_is_sorted_anew(gpu: FakeDriver, sorts: list[int]) -> None:
    network, gpu.capture = Network(), 1
    with pytest.raises(Exception, match="cannot be part of a CUDA graph"):
        network.run()
    for gpu.capture in (0, 1):
        network.run()
    made = len(sorts)
    network.edge_index[1] = network.edge_index[1].flip(0)
    network.run()
    assert len(sorts) == made + 1  # rows of one tensor are written to together


def test_what_is_known_in_a_graph_is_known_there_alone(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay may find other edges in the same tensors, and an order of a graph has memory of the graph's."""
    src, dst = torch.tensor([0, 1, 1, 0]), torch.tensor([2, 0, 2, 1])
    found = list[Tensor]()
    for gpu.capture in (0, 1, 1, 2, 0):
        monkeypatch.setattr(orders, "compute_in_range", None if gpu.capture else lambda i, n: True)  # which would wait
        fault, rows = check_and_sort_edges("out", [RowIndex(SOURCES, src, 2), RowIndex(DESTINATIONS, dst, 3)], 0)
        assert not fault
        assert rows is not None
        assert rows.order is not None
        assert rows.order.tolist() == [1, 3, 0, 2]
        found.append(rows.order)
    places = [x.data_ptr() for x in found]
    assert places[1] == places[2]
    assert places[0] == places[4]
    assert len(set(places)) == 3


def test_an_ended_graph_is_forgotten(gpu: FakeDriver) -> None:
    index = torch.tensor([1, 0, 1])
    for _ in range(2):
        for capture in (7, 8):
            gone = weakref.ref(orders.sort_unless_known(index, 2, capture).order)
            assert orders.recall_order(index, 2, capture)
        orders.sort_unless_known(index, 2)
        assert gone() is None


# -- the memory of torch.compile(mode="reduce-overhead") ---------------------------------------------------------------


class Pool:
    """Memory of a call: Inductor asks behind it that nothing in there is left but the results, and so do we."""

    def __init__(self) -> None:
        self._before = self._alive()

    def left(self, results: tuple[Tensor, ...]) -> int:
        """Storages that were made meanwhile, live on and are no results."""
        return len(self._alive() - self._before - {x.untyped_storage().data_ptr() for x in results})

    def _alive(self) -> set[int]:
        gc.collect()
        return {x.untyped_storage().data_ptr() for x in gc.get_objects() if type(x) in (Tensor, torch.nn.Parameter)}


@pytest.fixture
def lent(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A process in which Inductor has CUDA graphs, and the stream that it warms up and records on."""
    stream = SimpleNamespace(cuda_stream=STREAMS[0])
    trees = lambda device, create_if_none_exists: SimpleNamespace(stream=stream)  # noqa: E731
    monkeypatch.setitem(sys.modules, driver._TREES, ModuleType("trees"))
    monkeypatch.setattr(_torch, "graph_trees", trees, raising=False)
    monkeypatch.setattr(orders, "_is_in_graph_pool", lambda index: driver.is_cudagraph_tree_active(0))
    monkeypatch.setattr(driver, "stream_of", gpu.streams.__getitem__)
    return stream


@pytest.mark.parametrize("capture", [0, 3], ids=["warming up", "recording"])
def test_nothing_stays_in_memory_that_is_lent(capture: int, gpu: FakeDriver, lent: SimpleNamespace) -> None:
    """Of a step, in a warm-up and in a recording; on any other stream the orders are kept."""
    network = Network()
    network.run()  # kernels are loaded, and orders kept outside
    network.edge_index[0, 0] += 0
    gpu.capture = capture
    pool = Pool()
    assert pool.left(network.step(network.layer)) == 0
    lent.cuda_stream = 1
    assert pool.left(network.step(network.layer)) == 1  # two orders, side by side


def test_without_cuda_graphs_of_inductors_nothing_is_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "stream_of", lambda device: 5)
    monkeypatch.delitem(sys.modules, driver._TREES, raising=False)
    monkeypatch.setattr(_torch, "graph_trees", None, raising=False)
    assert not driver.is_cudagraph_tree_active(0)
    monkeypatch.setitem(sys.modules, driver._TREES, ModuleType("trees"))
    assert not driver.is_cudagraph_tree_active(0)
    monkeypatch.setattr(_torch, "graph_trees", lambda device, create_if_none_exists: None, raising=False)
    assert not driver.is_cudagraph_tree_active(0)


# -- what the driver says ----------------------------------------------------------------------------------------------


class Recording:
    """A driver whose streams are recorded by graphs of these numbers, or were."""

    states = {7: (1, 0), 8: (0, 0), 9: (2, 4)}  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        return lambda *_: 0

    def cuStreamGetCaptureInfo_v2(self, stream: Any, status: Any, number: Any, *rest: Any) -> int:
        assert rest == (None, None, None)
        status._obj.value, number._obj.value = self.states[stream.value]
        return 0


def test_a_capture_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the first of a process, and one that an error has ended; the default stream is not asked."""
    fake = driver.Driver(Recording())
    monkeypatch.setattr(driver, "need_driver", lambda: fake)
    for stream, number in {7: 1, 8: 0, 9: 5, 0: 0}.items():
        monkeypatch.setattr(driver, "stream_of", lambda device, stream=stream: stream)
        assert driver.captured_graph_number(0) == number
