"""The network of the tour: equivariant, the same from either library's products, and able to learn."""

import pytest
import torch
from e3nn import o3

from tpgen.base._e3nn import default_dtype
from tpgen.nn.products import FullyConnectedTensorProduct
from tpgen.tools.demo.tetris import (
    POINTS,
    SHAPES,
    Tetris,
    TrainingRun,
    find_neighbours,
    make_labels,
    shapes,
    train,
)


@pytest.fixture(autouse=True)
def in_float64():
    with default_dtype(torch.float64):
        yield


def test_neighbours_are_of_one_shape_and_never_the_point_itself() -> None:
    edges = find_neighbours(shapes(torch.Generator().manual_seed(0)))
    assert torch.equal(edges.source // POINTS, edges.target // POINTS)
    assert not (edges.source == edges.target).any()
    assert edges.vector.norm(dim=1).max() < 1.5
    square = edges.source // POINTS == list(SHAPES).index("square")
    assert int(square.sum()) == 12, "every point of a square is near the other three"


def test_the_chiral_pair_differs_in_an_odd_scalar_alone() -> None:
    assert torch.equal(make_labels()[0], -make_labels()[1])
    assert len({tuple(row.tolist()) for row in make_labels()}) == len(SHAPES)


def test_the_network_is_invariant_and_knows_mirror_images() -> None:
    model = Tetris(FullyConnectedTensorProduct, layers=1, mul=2)
    points = shapes(torch.Generator().manual_seed(1))
    out, turned, mirrored = (model(points @ m.T) for m in (torch.eye(3), o3.rand_matrix(), -torch.eye(3)))
    sign = torch.tensor([-1.0] + [1.0] * 6)
    assert torch.allclose(turned, out, atol=1e-11)
    assert torch.allclose(mirrored, out * sign, atol=1e-11)


def test_both_libraries_train_alike() -> None:
    torch.manual_seed(0)
    theirs = Tetris(o3.FullyConnectedTensorProduct, layers=1, mul=2)
    ours = Tetris(FullyConnectedTensorProduct, layers=1, mul=2)
    ours.load_state_dict(theirs.state_dict())
    seen: list[int] = []
    runs = train(theirs, 4), train(ours, 4, watch=seen.append)
    assert runs[1].losses == pytest.approx(runs[0].losses, rel=1e-11)
    assert runs[1].accuracies == runs[0].accuracies
    assert seen == [0, 1, 2, 3]


def test_the_loss_falls() -> None:
    torch.manual_seed(0)
    losses = train(Tetris(FullyConnectedTensorProduct, layers=1, mul=4), 12).losses
    assert losses[-1] < 0.5 * losses[0]


def test_solved_is_from_where_it_stays_solved() -> None:
    assert TrainingRun((1.0,) * 4, (0.5, 1.0, 0.9, 1.0), (1.0,) * 4).solved_step == 3
    assert TrainingRun((1.0,) * 2, (1.0, 0.9), (1.0,) * 2).solved_step is None
