"""Polynomials of one channel: their rows stand where the channels of one row would.

Vectors of a kernel run over channels, so a polynomial of one channel would fill one lane of each.  In the layout
``channel`` the numbers of many rows stand as those of many channels do, and a view makes the one the other.

Annotations here are objects, not strings: TorchScript reads them.
"""

from typing import Optional

import torch
from torch import Tensor

from tpgen.kernels.runtime.ops import kernel_polynomial


def run_polynomial(tensors: list[Tensor], index: Optional[Tensor], description: str, call: str) -> Tensor:  # noqa: UP045
    """`kernel_polynomial` of tensors of one dtype; scripted and compiled programs hold the operator itself."""
    if not torch.jit.is_scripting():  # noqa: SIM102 (TorchScript leaves the inner question out)
        if not torch.compiler.is_compiling():
            return kernel_polynomial(tensors, index, description, call)
    return torch.ops.tpgen.form(tensors, None, None, description, call, index)[0]


def run_rows(tensors: list[Tensor], shared: list[Tensor], dim: int, description: str, call: str) -> Tensor:
    """The output ``(..., dim)`` of a polynomial of one channel, without weights, in the layout ``channel`` throughout.

    ``tensors`` are ``(..., components)``, ``shared`` are ``(components,)`` and the operands without channels, behind
    them in the plan.  ``description`` is the plan's JSON text, ``call`` its `forward_call` as text.
    """
    given = [x.reshape(1, -1) for x in tensors] + [x.reshape(1, -1) for x in shared]
    found = run_polynomial(given, None, description, call)
    return found.reshape(list(tensors[0].shape[:-1]) + [dim])
