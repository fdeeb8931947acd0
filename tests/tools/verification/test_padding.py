"""What is read as padded molecules, and what is not."""

from __future__ import annotations

import torch

from tests.tools.verification.padding import molecules
from tpgen.tools.verification.padding import detect_padded_molecules


def test_what_is_read_as_padded_molecules() -> None:
    species, x = molecules()
    found = detect_padded_molecules({"species": species, "x": x})
    assert found is not None
    assert found.rows["x"].shape == (12, 3)
    assert found.rows["batch"].tolist() == [0] * 5 + [1] * 3 + [2] * 4
    assert detect_padded_molecules({"x": x}) is None  # nothing says which are atoms
    assert detect_padded_molecules({"species": species, "x": x, "positions": x[0]}) is None  # neighbours in rows
    masks = {"real": species >= 0, "kept": (species >= 0).flip(0)}
    assert detect_padded_molecules({"species": species, "x": x, **masks}) is None  # of which one may be another
    assert detect_padded_molecules({"species": species, "x": x, "batch": species[0]}) is None
    flags = torch.tensor([[True, False, True, True, True]] * 3)  # of aromatic atoms, say
    assert detect_padded_molecules({"species": species, "x": x, "flags": flags}) is None
    hydrogen = detect_padded_molecules({"species": torch.tensor([[1, 2, 0, 0]] * 2), "x": torch.ones(2, 4, 3)})
    assert hydrogen is not None
    assert len(hydrogen.rows["x"]) == 8  # the species 0 is one as others are
    assert detect_padded_molecules({"cell": torch.eye(3)[None], "z": torch.arange(3)}) is None
