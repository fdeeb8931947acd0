"""Write the files: the JSON text of plans, and modules with a call and its result."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch

import tpgen
from tpgen.planner.harmonics import make_harmonics_plan
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.presets import channelwise

HERE = Path(__file__).parent


def plans() -> dict[str, str]:
    """JSON text by name."""
    polynomial = tpgen.Polynomial(
        {"x": "4x0e+4x1o", "y": "1o"},
        "4x0e+4x1o",
        [("x", "x", "y"), (("x", "y"), {(0, 1 + i, i): 1.0 for i in range(3)})],
        strategy="einsum",
    )
    found = {
        "product": tpgen.make_plan(
            "4x0e+4x1o", "0e+1o", "4x1o", [(0, 1, 0, "uvu", True), (1, 0, 0, "uvu", True, 4.0)], in1_var=[1.0, 0.5]
        ),
        "linear": make_linear_plan("4x0e+2x1o", "3x0e+2x1o", biases=True, f_in=2, f_out=3),
        "polynomial": polynomial.plan,
        "harmonics": make_harmonics_plan("1o", [0, 1, 2], "norm"),
    }
    return {name: plan.to_json() for name, plan in found.items()}


def modules() -> dict[str, tuple[torch.nn.Module, tuple]]:
    """Modules with the operands of a call, by name."""
    plan = channelwise("4x0e+4x1o", "0e+1o", "0e+1o")
    conv = tpgen.TensorProductConv.from_plan(plan, strategy="grouped")
    src, dst = torch.tensor([0, 1, 2, 2]), torch.tensor([1, 0, 0, 2])
    edges = torch.randn(3, 16), torch.randn(4, 4), torch.randn(4, conv.weight_numel), src, dst
    polynomial = tpgen.Polynomial({"x": "4x0e+4x1o", "y": "0e+1o"}, "4x0e", [("x", "x"), ("y",)], strategy="einsum")
    contraction = tpgen.SymmetricContraction("4x0e+4x1o", "4x0e+4x1o", 2, num_elements=2, strategy="einsum")
    return {
        "TensorProduct": (
            tpgen.TensorProduct(
                "4x1o", "1o", "4x0e+4x1e", [(0, 0, 0, "uvu", True), (0, 0, 1, "uvu", True)], strategy="grouped"
            ),
            (torch.randn(3, 12), torch.randn(3, 3)),
        ),
        "TensorProductConv": (conv, edges),
        "Linear": (tpgen.Linear("4x0e+2x1o", "3x0e+2x1o", biases=True, strategy="grouped"), (torch.randn(3, 10),)),
        "Channels": (tpgen.Linear("2x0e+1o", "3x0e+1o", f_in=2, f_out=3, strategy="grouped"), (torch.randn(3, 2, 5),)),
        "Polynomial": (polynomial, (torch.randn(3, 16), torch.randn(3, 4))),
        "SymmetricContraction": (contraction, (torch.randn(3, 4, 4), torch.tensor([0, 1, 1]))),
    }


if __name__ == "__main__":
    torch.manual_seed(0)
    for name, text in plans().items():
        (HERE / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    for name, (module, operands) in modules().items():
        with torch.no_grad():
            found = module(*operands)
        torch.save({"module": module, "operands": operands, "result": found}, HERE / f"{name}.pt")
        (HERE / f"{name}.pickle").write_bytes(pickle.dumps(module))
