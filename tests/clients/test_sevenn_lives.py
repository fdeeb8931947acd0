"""SevenNet's models after whatever happens to a network, beside stock ones."""

from __future__ import annotations

import pytest

from benchmarks.networks import sevenn
from tests.clients.lives import check_lives

OPTIONS = {
    "hidden": ("2x0e", "4x0e+2x1e", "3x0e+2x1e+1x2e", "8x0e+4x1e+2x2e", "4x0e+2x0o+2x1o+1x1e"),
    "layers": (2, 3),
    "is_parity": (False, False, True),
    "self_connection_type": ("linear", "nequip"),
    "use_bias_in_linear": (False, True),
    "readout_as_fcn": (False, False, True),
    "act_radial": ("silu", "tanh", "ssp"),
    "weight_nn_hidden_neurons": ([8], [16, 16]),
    "_normalize_sph": (True, False),
    "train_denominator": (False, True),
    "train_shift_scale": (False, True),
}


@pytest.mark.filterwarnings("ignore")
def test_a_converted_model_is_the_stock_one() -> None:
    outputs = ("inferred_total_energy", "inferred_force", "inferred_stress")
    check_lives("SevenNet", sevenn, OPTIONS, outputs, ("torch.compile",))
