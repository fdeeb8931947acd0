"""A network of e3nn's modules made to compute with tpgen by one line: proven in float64, and taken back."""

import torch
from e3nn import o3

import tpgen


class Network(torch.nn.Module):
    """Features times the direction they look in, mixed: e3nn alone."""

    def __init__(self) -> None:
        super().__init__()
        self.product = o3.FullyConnectedTensorProduct("8x0e + 8x1o", "0e + 1o", "8x0e + 8x1o")
        self.linear = o3.Linear("8x0e + 8x1o", "1x0e")

    def forward(self, x, directions):
        return self.linear(self.product(x, o3.spherical_harmonics("0e + 1o", directions, normalize=True)))


def main() -> None:
    torch.manual_seed(0)
    network, inputs = Network(), [torch.randn(50, 32), torch.randn(50, 3)]
    before = network(*inputs)
    parameters = {name: value.clone() for name, value in network.state_dict().items()}

    tpgen.convert(network, prove=inputs, report=print)
    print("same result:", torch.allclose(network(*inputs), before, atol=1e-5))
    print("same parameters:", all(torch.equal(value, parameters[n]) for n, value in network.state_dict().items()))

    tpgen.restore(network)
    print("restored:", type(network.product) is o3.FullyConnectedTensorProduct)


if __name__ == "__main__":
    main()
