"""Small networks of e3nn's modules, to be converted, and what tests ask of them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from types import MappingProxyType
from typing import Any

import torch
from e3nn import o3
from e3nn.util.jit import compile as script
from torch import Tensor, nn

from tpgen.networks.conversion.convert import conversion_report, convert, restore
from tpgen.networks.conversion.report import Conversion

GRAPHS = {"strategy": "grouped"}
VECTORS = ("2x1o", "1o", "2x1e")


def attributes(network: nn.Module) -> dict[str, set[str]]:
    """Everything that modules hold, by name."""
    return {
        name: {*m.__dict__, *m._modules, *m._buffers, *m._parameters, type(m).__name__}
        for name, m in network.named_modules()
        if "_compiled" not in name  # e3nn's own programs
    }


class Mixed(nn.Module):
    """One product of each class, one of them under two names, weights internal, of each row, and none."""

    def __init__(self) -> None:
        super().__init__()
        self.full = o3.FullTensorProduct("2x0e+1o", "0e+1o")
        irreps = self.full.irreps_out.simplify()
        self.connected = o3.FullyConnectedTensorProduct(irreps, "0e+1o", "3x0e+2x1o")
        self.again = self.connected
        chosen = [(0, 1, 0, "uvu", True), (1, 0, 1, "uvu", True), (1, 1, 1, "uvu", False)]
        self.rest = nn.ModuleList(
            [
                o3.TensorProduct("3x0e+2x1o", "0e+1o", "3x1o+2x1o", [chosen[0], chosen[1]], shared_weights=False),
                o3.ElementwiseTensorProduct("3x1o+2x1o", "5x0e"),
                o3.TensorSquare("5x1o", "2x0e+2e"),
            ]
        )

    def forward(self, x: Tensor, y: Tensor, w: Tensor) -> dict[str, Tensor]:
        z = self.rest[0](self.connected(self.full(x, y), y), y, w)
        z = self.rest[1](z, z.new_ones(len(z), 5))
        return {"squares": self.rest[2](z), "vectors": z}


def mixed_inputs(rows: int = 4, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(rows, dim, dtype=dtype) for dim in (5, 4, 5))  # type: ignore[return-value]


class Scaled(o3.FullyConnectedTensorProduct):
    """A subclass with a forward and a parameter of its own."""

    def __init__(self, *irreps: str) -> None:
        super().__init__(*irreps)
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, x: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        return self.scale * super().forward(x, y, weight)


class Layer(nn.Module):
    """A product and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.product = o3.FullyConnectedTensorProduct("2x1o", "1o", "2x1e+0e")
        self.linear = o3.Linear("2x1e+0e", "3x1e+0e")

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.linear(self.product(x, y))


def pickled(network: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(network))


def scripted(network: nn.Module) -> nn.Module:
    return script(deepcopy(network))


def check_conversion(
    make: Callable[[], nn.Module],
    inputs: Sequence[Any],
    cls: type[nn.Module] | None = None,
    copies: Sequence[Callable[[nn.Module], nn.Module]] = (deepcopy, pickled, scripted),
    limit: float = 1e-12,
    close: Mapping[str, float] = MappingProxyType({}),
    **options: Any,
) -> Conversion:
    """A converted network is the stock one in all but its classes; returns the report, with its proof.

    Values and derivatives, parameters, names, checkpoints both ways, ``copies``; and once it is restored, everything.
    """
    network, stock = make(), make()
    before, keys, parameters = attributes(network), list(network.state_dict()), dict(network.named_parameters())
    wanted = network(*inputs)
    report = conversion_report(convert(network, **options), prove=inputs)
    assert report.proof is not None
    assert all(d.relative < limit for d in report.proof.differences), report.proof
    assert cls is None or type(network) is cls
    assert list(network.state_dict()) == keys
    assert all(network.get_parameter(name) is p for name, p in parameters.items())
    assert list(dict(network.named_parameters())) == list(parameters)
    stock.load_state_dict(network.state_dict(), strict=True)
    network.load_state_dict(stock.state_dict(), strict=True)
    for copy in (lambda network: network, *copies):
        torch.testing.assert_close(copy(network)(*inputs), wanted, **close)
    torch.testing.assert_close(stock(*inputs), wanted, rtol=0, atol=0)
    copied = deepcopy(network)
    assert attributes(copied) != before
    for restored in (restore(copied), restore(network)):
        assert attributes(restored) == before
        torch.testing.assert_close(restored(*inputs), wanted, rtol=0, atol=0)
    return report


def derivatives(out: Tensor, given: Sequence[Tensor]) -> list[Tensor]:
    """The result, and first and second derivatives by what has a gradient; zeros where it has none."""
    moving = [x for x in given if x.requires_grad]
    first = torch.autograd.grad(out.cos().sum(), moving, create_graph=True, materialize_grads=True)
    total = torch.stack([g.sin().sum() for g in first]).sum()
    second = torch.autograd.grad(total, moving, materialize_grads=True) if total.requires_grad else ()
    return [out, *first, *second]


def check_derivatives(network: nn.Module, stock: nn.Module, given: Sequence[Tensor], limit: float = 1e-10) -> None:
    """Two networks have the same results, and derivatives of both orders by arguments and parameters."""
    found = []
    for each in (network, stock):
        torch.manual_seed(0)  # of dropout
        found.append(derivatives(each(*given), [*given, *each.parameters()]))
    torch.testing.assert_close(*found, rtol=limit, atol=limit)
