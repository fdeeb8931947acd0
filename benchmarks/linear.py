"""Linear layers of MACE and NequIP: tpgen beside e3nn's scripted `Linear` and the bare matrix products.

    python -m benchmarks.linear [--rows 1000 20000] [--seconds 2] [--threads 1]

Times of one forward pass, and of one forward and backward pass with gradients of features and weights, in
milliseconds: medians of calls that take turns.  *mm* multiplies contiguous matrices ``(rows * (2 l + 1), copies)`` with
`torch.mm`, once for each irrep and what is differentiated: the arithmetic alone, nothing brought into order.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from e3nn import o3
from e3nn.util.jit import script
from torch import Tensor

from tpgen.nn.linear import Linear

ALL = "64x0e+64x0o+64x1e+64x1o+64x2e+64x2o"
SHAPES = {
    "mace 128x0e+128x1o": ("128x0e+128x1o", "128x0e+128x1o"),
    "mace element skip": ("89x0e", "128x0e"),  # 89 one-hot scalars
    "nequip 64x(0..2 e,o)": (ALL, ALL),
}
Step = Callable[[], object]


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    print(f"{'layer':22s} {'dtype':8s} {'rows':>6s} {'pass':9s}" + "".join(f"{n:>9s}" for n in ("e3nn", "mm", "tpgen")))
    for name, ends in SHAPES.items():
        for dtype in (torch.float32, torch.float64):
            for rows in arguments.rows:
                for task, steps in tasks(ends, dtype, rows):
                    e3nn, mm, tpgen = medians(steps, arguments.seconds)
                    head = f"{name:22s} {str(dtype)[6:]:8s} {rows:6d} {task:9s}"
                    times = "".join(f"{1e3 * t:9.3f}" for t in (e3nn, mm, tpgen))
                    print(f"{head}{times}   {e3nn / tpgen:5.2f} x e3nn, {tpgen / mm:5.2f} x mm", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 20000])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each line")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def tasks(ends: tuple[str, str], dtype: torch.dtype, rows: int) -> Iterator[tuple[str, list[Step]]]:
    """Of each pass: e3nn's, the bare products, ours."""
    theirs = o3.Linear(*ends).to(dtype)
    ours = Linear(*ends).to(dtype)
    ours.load_state_dict(theirs.state_dict())
    x = _features(ends[0], dtype, rows)
    g = torch.randn(rows, theirs.irreps_out.dim, dtype=dtype)
    scripted, products = script(theirs), _BareProducts(ours, x)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-4)
    yield "forward", [_without_grad(scripted, x), products.forward, _without_grad(ours, x)]
    steps = [_with_grad(scripted, theirs.weight, x, g), products.both, _with_grad(ours, ours.weight, x, g)]
    yield "fwd+bwd", steps


def _features(irreps: str, dtype: torch.dtype, rows: int) -> Tensor:
    if irreps == "89x0e":
        return torch.nn.functional.one_hot(torch.randint(89, (rows,)), 89).to(dtype)
    return torch.randn(rows, o3.Irreps(irreps).dim, dtype=dtype)


def _without_grad(module: torch.nn.Module, x: Tensor) -> Step:
    def step() -> Tensor:
        with torch.no_grad():
            return module(x)

    return step


def _with_grad(module: torch.nn.Module, weight: Tensor, x: Tensor, g: Tensor) -> Step:
    x = x.clone().requires_grad_()
    return lambda: torch.autograd.grad(module(x), (x, weight), g)


class _BareProducts:
    """The matrix products of a layer on contiguous operands and into results that are there."""

    def __init__(self, layer: Linear, x: Tensor) -> None:
        sizes = [(x.shape[0] * p.in1.ir.dim, *p.weight.shape) for p in layer.plan.paths if p.weight]
        self.x = [x.new_zeros(m, k).normal_() for m, k, _ in sizes]
        self.w = [x.new_zeros(k, n).normal_() for _, k, n in sizes]
        self.out = [x.new_zeros(m, n).normal_() for m, _, n in sizes]
        self.dx, self.dw = [torch.empty_like(t) for t in self.x], [torch.empty_like(t) for t in self.w]

    def forward(self) -> None:
        for x, w, out in zip(self.x, self.w, self.out, strict=True):
            torch.mm(x, w, out=out)

    def both(self) -> None:
        self.forward()
        for x, w, g, dx, dw in zip(self.x, self.w, self.out, self.dx, self.dw, strict=True):
            torch.mm(g, w.t(), out=dx)
            torch.mm(x.t(), g, out=dw)


def medians(steps: Sequence[Step], seconds: float) -> list[float]:
    times: list[list[float]] = [[] for _ in steps]
    for step in (*steps, *steps):  # compiled and warm
        step()
    until = time.perf_counter() + seconds
    while len(times[0]) < 5 or time.perf_counter() < until:
        for step, taken in zip(steps, times, strict=True):
            start = time.perf_counter()
            step()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in times]


if __name__ == "__main__":
    main()
