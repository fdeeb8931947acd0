"""MACE's models, of every block and of random irreps, after whatever happens to a network, beside stock ones."""

from __future__ import annotations

import pytest
from e3nn import o3
from torch import nn

from tests.clients.lives import check_lives
from tests.clients.test_mace import BLOCKS

from benchmarks.networks import mace  # isort: skip  (after tpgen, which lets torch load the constants of e3nn 0.4.4)

OPTIONS = {
    "block": BLOCKS,
    "first": BLOCKS,
    "hidden": ("1x0e", "4x0e", "3x0e+3x1o", "2x0e+2x1o+2x2e", "5x0e+5x1o"),
    "correlation": (1, 2, 3),
    "max_ell": (1, 2, 3),
    "num_interactions": (1, 2, 3),
    "num_bessel": (1, 8),
    "radial_MLP": ([8], [5, 7], [16, 16, 16]),
    "radial_type": ("bessel", "gaussian", "chebyshev"),
    "MLP_irreps": (o3.Irreps("1x0e"), o3.Irreps("6x0e")),
    "gate": (nn.functional.silu, nn.functional.tanh, None),
    "pair_repulsion": (False, False, True),
    "distance_transform": ("None", "None", "Agnesi", "Soft"),
    "apply_cutoff": (True, True, False),
    "use_reduced_cg": (True, False),
    "use_so3": (False, False, True),
    "use_agnostic_product": (False, False, True),
    "use_last_readout_only": (False, False, True),
    "use_edge_irreps_first": (False, True),
    "edge_irreps": (None, None, o3.Irreps("3x0e+3x1o"), o3.Irreps("2x0e")),
    "keep_last_layer_irreps": (False, True),
}


@pytest.mark.filterwarnings("ignore")
def test_a_converted_model_is_the_stock_one() -> None:
    check_lives("MACE", mace, OPTIONS, ("energy", "forces", "stress"), ("torch.compile",))
