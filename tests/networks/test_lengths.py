"""Programs of networks that ask for the `len` of a tensor hold for other sizes."""

from __future__ import annotations

import builtins

import pytest
import torch
from torch import Tensor, nn

import tpgen
from tests.networks.interpreted import interpreted  # noqa: F401  a fixture


class Summed(nn.Module):
    """Sums over edges, as people write them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        ends = [edges[0], edges[1]]
        messages = self.linear(x)[ends[0]] * len(ends)
        return x.new_zeros(len(x), messages.shape[1]).index_add(0, ends[1], messages) / len(edges[0])


def given(atoms: int, edges: int) -> tuple[Tensor, Tensor]:
    return torch.randn(atoms, 3), torch.randint(atoms, (2, edges))


def test_a_program_holds_for_any_length(interpreted: list[int]) -> None:  # noqa: F811
    network = Summed()
    step = tpgen.compile_step(network, *given(5, 9))
    with torch.no_grad():
        for sizes in ((7, 11), (4, 3), (5, 9)):
            data = given(*sizes)
            torch.testing.assert_close(step(*data), network(*data))
            assert step._program.run_tensors(list(data)) is not None, "the network serves"
    assert "len" not in globals()
    assert len is builtins.len


def test_a_number_has_no_length_as_before() -> None:
    class Wrong(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * len(x.sum())

    with pytest.raises(tpgen.TpgenError, match="len\\(\\) of a 0-d tensor"):
        tpgen.compile_step(Wrong(), torch.ones(3))
