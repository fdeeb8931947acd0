"""Polynomials of one channel: their rows stand where the channels of one row would.

Vectors of a kernel run over channels, so a polynomial of one channel would fill one lane of each.  In the layout
``channel`` the numbers of many rows stand as those of many channels do, and a view makes the one the other.

Annotations here are objects, not strings: TorchScript reads them.
"""

from torch import Tensor

from tpgen.kernels.runtime.batched import run_polynomial


def run_rows(tensors: list[Tensor], shared: list[Tensor], dim: int, description: str, call: str) -> Tensor:
    """The output ``(..., dim)`` of a polynomial of one channel, without weights, in the layout ``channel`` throughout.

    ``tensors`` are ``(..., components)``, ``shared`` are ``(components,)`` and the operands without channels, behind
    them in the plan.  ``description`` is the plan's JSON text, ``call`` its `forward_call` as text.
    """
    given = [x.reshape(1, -1) for x in tensors] + [x.reshape(1, -1) for x in shared]
    found = run_polynomial(given, None, description, call)
    return found.reshape(list(tensors[0].shape[:-1]) + [dim])
