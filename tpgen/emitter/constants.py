"""Modules whose constants stay exact in any dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import Self


class Constants(nn.Module):
    """Module whose buffers are rounded anew from exact constants after `to`, `to_empty` and `load_state_dict`."""

    __jit_ignored_attributes__ = ("_exact",)  # name -> exact values; means nothing to TorchScript

    def _register_exact_constants(self, exact: Mapping[str, np.ndarray], persistent: bool = False) -> Self:
        self.__dict__["_exact"] = {**self.__dict__.get("_exact", {}), **exact}
        for name, values in exact.items():
            there = self._buffers.get(name)
            held = make_tensor_like(values, torch.empty(0)) if there is None else there
            self.register_buffer(name, held, persistent=persistent)
        return self

    def _find_reference_of_dtype_and_device(self) -> Tensor | None:
        return next((p for p in self.parameters() if p.is_floating_point()), None)

    def _adapt_constants_to_dtype_and_device(self, reference: Tensor | None) -> None:
        # round exact constants to a reference's dtype and device (None: own)
        exact: dict[str, np.ndarray] = self.__dict__.get("_exact", {})
        for name, values in exact.items():
            held = self._buffers[name]
            assert held is not None
            self._buffers[name] = make_tensor_like(values, held if reference is None else reference)

    def _apply(self, fn: Callable, recurse: bool = True) -> Self:
        # apply, then round the exact constants anew
        super()._apply(fn, recurse)
        self._adapt_constants_to_dtype_and_device(None)
        return self

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._adapt_constants_to_dtype_and_device(self._find_reference_of_dtype_and_device())


def make_tensor_like(values: np.ndarray, like: Tensor) -> Tensor:
    """Exact values with device and dtype of ``like``; integers stay integers.

    >>> make_tensor_like(np.array([1.0, 3.0]) / 3, torch.empty(0, dtype=torch.float64))[0].item()
    0.3333333333333333
    """
    tensor = torch.tensor(values, device="cpu")
    return tensor.to(like.device, like.dtype if tensor.is_floating_point() else tensor.dtype)
