"""Nets of edges that run once for each pair: the same energies, forces, stress and derivatives of these as without."""

from __future__ import annotations

import gc
import io
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from tests.machine import needs_compiler
from tpgen.networks.conversion.operations import pairs
from tpgen.networks.conversion.operations.pairs import (
    convolve_edges_or_pairs,
    copy_edge_pair_marks,
    get_marked_pairs,
    gradients_count_in_pairs,
    limit_convolutions_to_local_rows,
    mark_edge_pairs,
    run_once_per_pair,
)
from tpgen.nn.conv import TensorProductConv
from tpgen.planner.presets import channelwise

pytestmark = needs_compiler
CUTOFF = 1.5


@pytest.fixture(autouse=True)
def _all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "WORTH_PAIRS", 1)
    monkeypatch.setattr(pairs, "SHARE", 2**20)


class Graph:
    """Atoms in a cell of unit vectors, and all their neighbours, images too."""

    def __init__(self, positions: Tensor, size: float) -> None:
        self.positions, self.cell = positions.double(), size * torch.eye(3, dtype=torch.float64)
        steps = torch.tensor(list(product(range(-2, 3), repeat=3)), dtype=torch.float64)
        vectors = self.positions[None, :, None] - self.positions[:, None, None] + steps @ self.cell
        near = (vectors.norm(dim=-1) < CUTOFF) & (vectors.norm(dim=-1) > 0)
        found = torch.nonzero(near)
        self.edges, self.shifts = found[:, :2].T.contiguous(), steps[found[:, 2]]
        self.factors = torch.ones(self.edges.shape[1], 1, dtype=torch.float64)

    def taking(self, rows: Tensor) -> Graph:
        self.edges, self.shifts, self.factors = self.edges[:, rows], self.shifts[rows], self.factors[rows]
        return self


def grid(n: int, noise: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    points = torch.tensor(list(product(range(n), repeat=3)), dtype=torch.float64)
    return points + noise * torch.randn(len(points), 3, generator=generator, dtype=torch.float64)


def shuffled(graph: Graph, part: float = 1.0) -> Graph:
    generator = torch.Generator().manual_seed(1)
    order = torch.randperm(graph.edges.shape[1], generator=generator)
    return graph.taking(order[: int(part * len(order))])


def asymmetric(graph: Graph) -> Graph:
    """Functions of edges to the first atoms differ from those back."""
    graph.factors = 1 + 0.3 * (graph.edges[1] < 4).double().unsqueeze(1)
    return graph


GRAPHS = {
    "one atom and its images": lambda: Graph(grid(1), 1.0),
    "a perfect crystal": lambda: Graph(grid(2), 2.0),
    "a perfect crystal, strained": lambda: Graph(grid(2) * torch.tensor([1.0, 1.05, 1.1]), 2.0),
    "shaken": lambda: Graph(grid(2, 0.1), 2.0),
    "unsorted": lambda: shuffled(Graph(grid(2, 0.1), 2.0)),
    "edges missing": lambda: shuffled(Graph(grid(2), 2.0), 0.7),
    "edges twice": lambda: (g := Graph(grid(1), 1.0)).taking(torch.arange(g.edges.shape[1]).repeat(2)),
    "an atom alone": lambda: Graph(torch.cat([grid(2, 0.1), torch.full((1, 3), 5.0)]), 20.0),
    "no edges": lambda: Graph(3 * grid(2), 6.0),
    "both ways differ": lambda: asymmetric(Graph(grid(2, 0.1), 2.0)),
}


class Potential(nn.Module):
    """Convolutions with weights from lengths, and an energy."""

    layers = 1

    def __init__(self, convolves: bool = True, strategy: str = "grouped") -> None:
        super().__init__()
        torch.manual_seed(0)
        plan = channelwise("4x0e", "0e+1o", "0e+1o")
        self.conv = TensorProductConv.from_plan(plan, strategy=strategy).double()
        self.net = nn.Sequential(nn.Linear(3, 5), nn.SiLU(), nn.Linear(5, self.conv.weight_numel)).double()
        self.convolves, self.seen = convolves, []
        self.net.register_forward_hook(lambda _net, given, _out: self.seen.append(len(given[0])))

    def forward(self, graph: Graph, positions: Tensor, strain: Tensor) -> Tensor:
        moved, cell = positions + positions @ strain, graph.cell + graph.cell @ strain
        src, dst = graph.edges
        vectors = moved[dst] - moved[src] + graph.shifts @ cell
        lengths = vectors.norm(dim=1, keepdim=True)
        x = torch.sin(lengths * torch.arange(1, 4)) * graph.factors
        mark_edge_pairs(x, graph.edges, graph.shifts)
        y = torch.cat([torch.ones_like(lengths), vectors / lengths], dim=1)
        nodes = torch.arange(4.0 * len(positions), dtype=torch.float64).reshape(-1, 4).cos()
        for _ in range(self.layers):
            src, dst = graph.edges
            weights = run_once_per_pair(self.net, x, self.convolves)
            found = convolve_edges_or_pairs(self.conv, nodes, y, weights, src, dst)
            nodes = found[:, :4].sin()
        return found.square().sum()


def derivatives(model: Potential, graph: Graph) -> list[Tensor]:
    """Energy, forces, stress, and the gradients of all by positions and parameters."""
    positions = graph.positions.clone().requires_grad_()
    strain = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    energy = model(graph, positions, strain)
    wanted = [positions, strain, *model.net.parameters()]
    first = torch.autograd.grad(energy, wanted, create_graph=True, materialize_grads=True)
    loss = sum((g * torch.cos(torch.arange(g.numel())).reshape(g.shape)).sum() for g in first)
    second = torch.autograd.grad(loss, wanted, materialize_grads=True) if loss.requires_grad else ()
    return [energy, *first, *second]


def without(model: Potential, graph: Graph) -> list[Tensor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "WORTH_PAIRS", 2**40)
        return derivatives(model, graph)


@pytest.mark.parametrize("convolves", [True, False], ids=["convolved", "spread"])
@pytest.mark.parametrize("name", GRAPHS)
def test_derivatives_of_both_orders_are_those_without_pairs(name: str, convolves: bool) -> None:
    graph, model = GRAPHS[name](), Potential(convolves)
    wanted = without(model, graph)
    model.seen.clear()
    for found, expected in zip(derivatives(model, graph), wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    edges = graph.edges.shape[1]
    rows = {"edges missing": model.seen[0], "both ways differ": model.seen[0]}.get(name, edges // 2)
    assert model.seen[0] == rows
    assert model.seen[0] < edges or not edges


@pytest.mark.parametrize("convolves", [True, False], ids=["convolved", "spread"])
@pytest.mark.parametrize("name", ["shaken", "edges missing", "both ways differ"])
def test_layers_share_means_and_the_order_of_edges(name: str, convolves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, model, made = GRAPHS[name](), Potential(convolves), []
    model.layers = 3
    wanted = without(model, graph)
    for function in ("_compute_mean_rows_of_pairs", "_permute_to_pair_order"):
        run = getattr(pairs, function)
        monkeypatch.setattr(pairs, function, lambda *given, f=function, run=run: made.append(f) or run(*given))
    for found, expected in zip(derivatives(model, graph), wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert made == (
        ["_compute_mean_rows_of_pairs", "_permute_to_pair_order"] if convolves else ["_compute_mean_rows_of_pairs"]
    )


def test_what_is_shared_is_of_tensors_as_they_are_and_keeps_none_alive() -> None:
    x, edges, shifts = rows_of_edges()
    mark_edge_pairs(x, edges, shifts)
    found = get_marked_pairs(x)
    first = pairs._average_over_pairs(x, found)
    assert pairs._average_over_pairs(x, found) is first
    x.mul_(2)
    assert torch.equal(pairs._average_over_pairs(x, found), 2 * first)
    leaf = x.clone().requires_grad_()
    assert pairs._average_over_pairs(leaf, found) is not pairs._average_over_pairs(leaf, found)
    with torch.no_grad():
        assert not pairs._average_over_pairs(leaf, found).requires_grad
    made = 3 * leaf
    with torch.no_grad():
        assert not pairs._average_over_pairs(made, found).requires_grad
    assert pairs._average_over_pairs(made, found).requires_grad
    before = len(pairs._means)
    del made, leaf, x
    gc.collect()
    assert len(pairs._means) == before - 3


def test_edges_that_are_written_to_are_put_in_order_anew() -> None:
    _, edges, shifts = rows_of_edges()
    x, y = torch.ones(len(shifts), 3, dtype=torch.float64), torch.randn(len(shifts), 4, dtype=torch.float64)
    mark_edge_pairs(x, edges, shifts)
    model, nodes = Potential(), torch.randn(int(edges.max()) + 1, 4, dtype=torch.float64)
    for change in (torch.clone, torch.Tensor.contiguous, lambda given: given.flip(0), lambda given: given.zero_()):
        edges = change(edges)
        weights = run_once_per_pair(model.net, x, convolves=True)
        found, whole = (convolve_edges_or_pairs(model.conv, nodes, y, w, *edges) for w in (weights, model.net(x)))
        torch.testing.assert_close(found, whole)


@pytest.mark.parametrize(("reverses", "marked"), [(1, True), (0.4, True), (0.1, False)])
def test_few_pairs_are_not_worth_it(reverses: float, marked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "SHARE", 4)
    x, edges, shifts = rows_of_edges()
    forth = torch.nonzero(edges[0] < edges[1]).flatten()
    back = torch.nonzero(edges[0] > edges[1]).flatten()
    rows = torch.cat([forth, back[: int(reverses * len(back))]])
    mark_edge_pairs(x := x[rows], edges[:, rows], shifts[rows])
    assert (get_marked_pairs(x) is not None) == marked


def test_kernels_take_rows_of_pairs() -> None:
    graph, model = GRAPHS["shaken"](), Potential(strategy="kernel")
    for found, expected in zip(derivatives(model, graph), without(model, graph), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("convolves", [True, False], ids=["convolved", "spread"])
def test_hessians_of_a_crystal_row_by_row_and_all_at_once(convolves: bool) -> None:
    """Lengths are equal all over a perfect crystal: only their derivatives tell which edges are a pair."""
    graph, model = GRAPHS["a perfect crystal"](), Potential(convolves)
    strain = torch.zeros(3, 3, dtype=torch.float64)

    def hessian(vectorize: bool) -> Tensor:
        energy = lambda x: model(graph, x, strain)  # noqa: E731
        return torch.autograd.functional.hessian(energy, graph.positions, vectorize=vectorize)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "WORTH_PAIRS", 2**40)
        wanted = hessian(False)
    for vectorize in (False, True):
        torch.testing.assert_close(hessian(vectorize), wanted, rtol=1e-10, atol=1e-10)


def rows_of_edges() -> tuple[Tensor, Tensor, Tensor]:
    graph = GRAPHS["shaken"]()
    return torch.ones(graph.edges.shape[1], 2, dtype=torch.float64), graph.edges, graph.shifts


def test_edges_that_count_in_pairs_are_negatives_but_for_rounding() -> None:
    graph = GRAPHS["shaken"]()
    src, dst = edges = graph.edges
    vectors = (graph.positions[dst] + graph.shifts @ graph.cell) - graph.positions[src]  # rounded, as LAMMPS has them
    x = vectors.norm(dim=1, keepdim=True)
    mark_edge_pairs(x, edges, vectors)
    exact = get_marked_pairs(x)
    assert exact is None or exact.pairs < len(x) // 2
    with limit_convolutions_to_local_rows(len(graph.positions), in_pairs=True):
        mark_edge_pairs(x, edges, vectors)
        assert get_marked_pairs(x).pairs == len(x) // 2
        one_way = x * (1 + 0.3 * (src < 4).double().unsqueeze(1))
        mark_edge_pairs(one_way, edges, vectors)
        found = get_marked_pairs(one_way)
        assert torch.equal(one_way[found.first[: found.pairs]], one_way[found.second])
    assert not gradients_count_in_pairs()


def test_forward_derivatives() -> None:
    x, edges, shifts = rows_of_edges()
    net = nn.Linear(2, 3).double()

    def run(x: Tensor) -> Tensor:
        made = 1.0 * x
        mark_edge_pairs(made, edges, shifts)
        return run_once_per_pair(net, made)

    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        tangent = torch.autograd.forward_ad.unpack_dual(run(dual)).tangent
    torch.testing.assert_close(tangent, net.weight.sum(1).expand(len(x), -1))


def test_a_mark_is_on_one_tensor_as_it_was() -> None:
    x, edges, shifts = rows_of_edges()
    mark_edge_pairs(x, edges, shifts)
    assert get_marked_pairs(x) is not None
    assert get_marked_pairs(x * 1.0) is None
    copy_edge_pair_marks(x, made := 2 * x)
    assert get_marked_pairs(made) is not None
    x.add_(1)
    assert get_marked_pairs(x) is None


@pytest.mark.parametrize("convolves", [True, False], ids=["convolved", "spread"])
def test_inference_mode_has_pairs_too(convolves: bool) -> None:
    graph, model = GRAPHS["shaken"](), Potential(convolves)
    strain = torch.zeros(3, 3, dtype=torch.float64)
    with torch.inference_mode():
        found = model(graph, graph.positions, strain)
    assert model.seen == [graph.edges.shape[1] // 2]
    torch.testing.assert_close(found, model(graph, graph.positions, strain), rtol=1e-12, atol=1e-12)


def test_a_mark_goes_into_no_file_and_keeps_no_tensor_alive() -> None:
    x, edges, shifts = rows_of_edges()
    mark_edge_pairs(x, edges, shifts)
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=True), x)
    before = len(pairs._marks)
    del x
    assert len(pairs._marks) == before - 1


def test_what_is_traced_or_transformed_is_not_marked() -> None:
    x, edges, shifts = rows_of_edges()

    def run(x: Tensor) -> Tensor:
        made = 1.0 * x
        mark_edge_pairs(made, edges, shifts)
        assert get_marked_pairs(made) is None
        return made

    torch.func.vmap(run)(x[None])
    torch.func.grad(lambda x: run(x).sum())(x)
    torch.jit.trace(run, x, check_trace=False)
    torch.compile(run, backend="eager", fullgraph=True)(x)


@pytest.mark.parametrize("change", ["half", "shape of rows", "shape of vectors", "shape of edges", "few"])
def test_what_does_not_fit_is_not_marked(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, edges, shifts = rows_of_edges()
    if change == "few":
        monkeypatch.setattr(pairs, "WORTH_PAIRS", len(x) + 1)
    x = {"half": x.half(), "shape of rows": x[:, 0]}.get(change, x)
    shifts = shifts[:, :2] if change == "shape of vectors" else shifts
    mark_edge_pairs(x, edges[:, :-1] if change == "shape of edges" else edges, shifts)
    assert get_marked_pairs(x) is None
