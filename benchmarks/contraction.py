"""MACE's symmetric contraction: tpgen beside an einsum for each degree, and mace-torch's own module where it is there.

    python -m benchmarks.contraction [--rows 64 512] [--elements 2 10] [--rounds 10] [--threads 0]

Correlation 3, 128 channels, 0e+1o+2e+3o to 0e+1o, float32.  Times of a forward pass, of forward and backward
(gradients of features and weights), and of a step of force training: energies, forces as their gradient, and the
gradient of a loss on the forces.  Medians of calls that take turns, in milliseconds.  mace-torch wants an environment
of its own, into which tpgen is installed beside it; results are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tpgen.base.clock import time_in_turns
from tpgen.nn.symmetric_contraction import SymmetricContraction
from tpgen.planner.generalized import generalized_couplings

ONE, OUT, CHANNELS, CORRELATION = "0e+1o+2e+3o", ("0e", "1o"), 128, 3
IRREPS_IN = "+".join(f"{CHANNELS}x{ir}" for ir in ONE.split("+"))
IRREPS_OUT = "+".join(f"{CHANNELS}x{ir}" for ir in OUT)
Layer = Callable[[Tensor, Tensor], Tensor]


class Einsum(nn.Module):
    """The formula as it stands: one einsum for each output irrep and degree, over dense couplings."""

    def __init__(self, twin: SymmetricContraction) -> None:
        super().__init__()
        self.contractions = twin.contractions
        for n, ir in enumerate(OUT):
            for nu in range(1, CORRELATION + 1):
                u = torch.from_numpy(generalized_couplings([ONE] * nu, ir))
                self.register_buffer(f"u{n}_{nu}", u.float())

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        parts = [self._part(n, x, y) for n in range(len(OUT))]
        return torch.cat([part.flatten(1) for part in parts], 1)

    def _part(self, n: int, x: Tensor, y: Tensor) -> Tensor:
        weights: Any = self.contractions[n]
        total: Any = 0
        for nu, w in zip(range(CORRELATION, 0, -1), (weights.weights_max, *weights.weights), strict=True):
            by_row = torch.einsum("ze,epc->zpc", y, w)
            value = torch.tensordot(by_row, getattr(self, f"u{n}_{nu}"), ([1], [nu + 1]))  # z c k i...
            for _ in range(nu):
                value = torch.einsum("zc...i,zci->zc...", value, x)
            total = total + value
        return total


def forward(layer: Layer, x: Tensor, y: Tensor) -> None:
    with torch.no_grad():
        layer(x, y)


def backward(layer: Layer, x: Tensor, y: Tensor) -> None:
    layer(x.clone().requires_grad_(), y).sum().backward()


def force_training(layer: Layer, x: Tensor, y: Tensor) -> None:
    x = x.clone().requires_grad_()
    (forces,) = torch.autograd.grad(layer(x, y).pow(2).sum(), x, create_graph=True)
    forces.pow(2).sum().backward()


TASKS = {"forward": forward, "fwd+bwd": backward, "force training": force_training}


def main() -> None:
    arguments = _arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    found = []
    for elements in arguments.elements:
        layers = _layers(elements, arguments.einsum)
        for rows in arguments.rows:
            x = torch.randn(rows, CHANNELS, 16)
            y = torch.nn.functional.one_hot(torch.randint(elements, (rows,)), elements).float()
            _compare(layers, x, y)
            for task, step in TASKS.items():
                calls = {name: partial(step, layer, x, y) for name, layer in layers.items()}
                turns = time_in_turns(calls, "cpu", rounds=arguments.rounds)
                seconds = {name: timing.median for name, timing in turns.items()}
                _print(elements, rows, task, seconds)
                found.append({"elements": elements, "rows": rows, "task": task, "seconds": seconds})
    if arguments.json:
        arguments.json.write_text(json.dumps(found))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--elements", type=int, nargs="+", default=[2, 10])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path, help="write the medians there, in seconds")
    parser.add_argument("--threads", type=int, default=0, help="0: as many as torch takes")
    parser.add_argument("--no-einsum", dest="einsum", action="store_false", help="without the einsum, which is slow")
    return parser.parse_args()


def _layers(elements: int, einsum: bool) -> dict[str, Layer]:
    ours = SymmetricContraction(IRREPS_IN, IRREPS_OUT, CORRELATION, num_elements=elements)
    layers: dict[str, Layer] = {"tpgen": ours}
    if einsum:
        layers["einsum"] = Einsum(ours)
    if find_spec("mace"):
        from e3nn import o3
        from mace.modules.symmetric_contraction import SymmetricContraction as Theirs

        theirs = Theirs(o3.Irreps(IRREPS_IN), o3.Irreps(IRREPS_OUT), CORRELATION, num_elements=elements)
        ours.load_state_dict(theirs.state_dict())
        layers["mace-torch"] = theirs
    return layers


def _compare(layers: dict[str, Layer], x: Tensor, y: Tensor) -> None:
    with torch.no_grad():
        results = {name: layer(x, y) for name, layer in layers.items()}
    for name, value in results.items():
        torch.testing.assert_close(value, results["tpgen"], rtol=1e-3, atol=1e-3, msg=f"{name} differs from tpgen")


def _print(elements: int, rows: int, task: str, seconds: dict[str, float]) -> None:
    ours = seconds["tpgen"]
    times = "".join(f"  {name} {1e3 * s:9.3f} ms ({s / ours:5.1f} x)" for name, s in seconds.items())
    print(f"{elements:3d} elements {rows:5d} rows  {task:15s}{times}", flush=True)


if __name__ == "__main__":
    main()
