"""A layer of a message-passing network: features of neighbours times the direction of the edge, summed at each node.

The layer is one convolution of tpgen, so no message is ever stored.  It is trained to give a target that turns with its
input, and turned at the end to see that it does.
"""

import torch
from e3nn import o3

import tpgen


class Layer(torch.nn.Module):
    """Gather, product and sum as one convolution, with weights made from the length of each edge."""

    def __init__(self, irreps: str, sh: str) -> None:
        super().__init__()
        self.sh = o3.Irreps(sh)
        self.conv = tpgen.TensorProductConv.from_plan(tpgen.channelwise(irreps, sh, irreps))
        self.radial = torch.nn.Sequential(
            torch.nn.Linear(1, 16), torch.nn.SiLU(), torch.nn.Linear(16, self.conv.weight_numel)
        )
        self.mix = tpgen.Linear(self.conv.irreps_out, irreps)

    def forward(self, x, positions, edges):
        source, target = edges
        vectors = positions[target] - positions[source]
        attributes = o3.spherical_harmonics(self.sh, vectors, normalize=True, normalization="component")
        weights = self.radial(vectors.norm(dim=1, keepdim=True))
        return self.mix(self.conv(x, attributes, weights, source, target, num_nodes=len(positions)))


def main() -> None:
    torch.manual_seed(0)
    irreps = o3.Irreps("8x0e + 8x1o")
    positions, x = torch.randn(20, 3), irreps.randn(20, -1)
    edges = (torch.cdist(positions, positions) < 1.5).fill_diagonal_(False).nonzero().T
    layer, target = Layer(str(irreps), "0e + 1o + 2e"), irreps.randn(20, -1)

    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    for _ in range(20):
        loss = (layer(x, positions, edges) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss after 20 steps: {loss.item():.2f}")

    rotation = o3.rand_matrix()
    turn = irreps.D_from_matrix(rotation)
    turned = layer(x @ turn.T, positions @ rotation.T, edges)
    error = (turned - layer(x, positions, edges) @ turn.T).abs().max().item()
    print(f"turns with its input: {error < 1e-4}")


if __name__ == "__main__":
    main()
