"""Tensors that are values, not memory: a module makes them again wherever its own tensors are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import Self


class Constants(nn.Module):
    """A module that keeps the exact values of its constants, beside the tensors that hold them.

    Each time that tensors may have been moved, emptied or replaced (`to`, `to_empty`, `load_state_dict`), it makes its
    constants anew: in full precision, and where and in the dtype that it is.  So no state need hold them.
    """

    __jit_ignored_attributes__ = ("_exact",)  # name -> exact values; means nothing to TorchScript

    def _hold(self, exact: Mapping[str, np.ndarray], persistent: bool = False) -> Self:
        """Take constants, in the buffers of their names where these are there already."""
        self.__dict__["_exact"] = {**self.__dict__.get("_exact", {}), **exact}
        for name, values in exact.items():
            there = self._buffers.get(name)
            held = rounded(values, torch.empty(0)) if there is None else there
            self.register_buffer(name, held, persistent=persistent)
        return self

    def _anchor(self) -> Tensor | None:
        """A tensor that says where the module is, and in which dtype; None where its constants alone do."""
        return next((p for p in self.parameters() if p.is_floating_point()), None)

    def _settle(self, anchor: Tensor | None) -> None:
        # make the constants anew: at an anchor, or each where it is
        exact: dict[str, np.ndarray] = self.__dict__.get("_exact", {})
        for name, values in exact.items():
            held = self._buffers[name]
            assert held is not None
            self._buffers[name] = rounded(values, held if anchor is None else anchor)

    def _apply(self, fn: Callable, recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self._settle(None)
        return self

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._settle(self._anchor())


def rounded(values: np.ndarray, like: Tensor) -> Tensor:
    """Exact values where another tensor is, in its dtype; whole numbers stay whole.

    >>> rounded(np.array([1.0, 3.0]) / 3, torch.empty(0, dtype=torch.float64))[0].item()
    0.3333333333333333
    """
    tensor = torch.tensor(values, device="cpu")
    return tensor.to(like.device, like.dtype if tensor.is_floating_point() else tensor.dtype)
