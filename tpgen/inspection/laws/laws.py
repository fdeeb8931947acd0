"""The laws of an equivariant bilinear product: each says which pairs of tensors must be equal.

A law is a function ``subject -> {part: (got, expected)}``; where there is nothing to compare, a text says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from e3nn import o3
from e3nn.o3 import Irreps
from torch import Tensor

from tpgen._e3nn import default_dtype
from tpgen.form.reference import reference_product
from tpgen.form.sampling import random_operands
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan import Plan

Pair = tuple[Tensor, Tensor]
Outcomes = Mapping[str, Pair | str]
Operands = dict[str, Tensor]  # "x1", "x2", and "w" where there are weights

NO_WEIGHTS = "the product has no weights"
MAX_RIGHT = 2**23  # entries of a result of `right` that is compared
# e3nn raises NotImplementedError for `right` of these; tpgen's is compared with its forward all the same.
E3NN_LACKS_RIGHT = ("uvu<v", "u<vw")


@dataclass(frozen=True)
class Subject:
    """A product with operands: tensors in float64 on the CPU, of values that its dtype can hold.

    `forward` and `right` run the product in its own dtype, and return float64 again, so laws are written in float64.
    """

    product: TensorProduct
    operands: Operands
    others: Operands  # a second draw, where a law needs two
    cotangent: Tensor

    @property
    def plan(self) -> Plan:
        return self.product.plan

    def forward(self, x1: Tensor, x2: Tensor, w: Tensor | None = None) -> Tensor:
        return self.product(*self._own(x1, x2), *self._own(w)).to("cpu", torch.float64)

    def right(self, x2: Tensor, w: Tensor | None = None) -> Tensor:
        return self.product.right(*self._own(x2), *self._own(w)).to("cpu", torch.float64)

    def reference(self, x1: Tensor, x2: Tensor, w: Tensor | None = None) -> Tensor:
        return reference_product(self.plan, x1, x2, w, self.product.layout)

    def _own(self, *tensors: Tensor | None) -> list[Tensor]:
        mask = self.product.output_mask
        return [t.to(mask.device, mask.dtype) for t in tensors if t is not None]


@dataclass(frozen=True)
class Law:
    """``slack`` times the dtype's tolerance is allowed: 1 for one product, more where a law adds roundings."""

    compare: Callable[[Subject], Outcomes]
    slack: float = 1.0


def sample(product: TensorProduct, rows: int) -> Subject:
    """Random operands for a product, the same at every call."""
    plan, generator = product.plan, torch.Generator().manual_seed(0)

    def draw(*names: str) -> Operands:
        found = random_operands(plan, rows, names, generator=generator, dtype=product.output_mask.dtype)
        return {name: x.double() for name, x in found.items()}

    given = ("x1", "x2", "w") if plan.weight_numel else ("x1", "x2")
    return Subject(product, draw(*given), draw(*given), draw("out")["out"])


def _definition(subject: Subject) -> Outcomes:
    return {"": (subject.forward(**subject.operands), subject.reference(**subject.operands))}


# --- e3nn ---------------------------------------------------------------------------------------------------------


def _e3nn(subject: Subject) -> Outcomes:
    plan, layouts = subject.plan, subject.product.layout
    theirs = {
        "x1": change_layout(subject.operands["x1"], plan.irreps_in1, layouts[0], "mul_ir"),
        "x2": change_layout(subject.operands["x2"], plan.irreps_in2, layouts[1], "mul_ir"),
    }
    weight = [subject.operands["w"]] if "w" in subject.operands else []
    with default_dtype(torch.float64):
        product = e3nn_product(plan)
        expected = product(theirs["x1"], theirs["x2"], *weight)
    got = change_layout(subject.forward(**subject.operands), plan.irreps_out, layouts[2], "mul_ir")
    return {"": (got, expected)}


def _e3nn_right(subject: Subject) -> Outcomes:
    subject = _narrow(subject)
    plan, layouts = subject.plan, subject.product.layout
    lacking = [mode for mode in E3NN_LACKS_RIGHT if any(i.connection_mode == mode for i in plan.instructions)]
    if lacking:
        return {"": f"e3nn has no right for mode {' and '.join(map(repr, lacking))}"}
    x2, weight = subject.operands["x2"], [subject.operands["w"]] if "w" in subject.operands else []
    with default_dtype(torch.float64):
        product = e3nn_product(plan, compile_right=True)
        expected = product.right(change_layout(x2, plan.irreps_in2, layouts[1], "mul_ir"), *weight)
    got = change_layout(subject.right(x2, *weight), plan.irreps_out, layouts[2], "mul_ir")
    got = change_layout(got.transpose(1, 2), plan.irreps_in1, layouts[0], "mul_ir").transpose(1, 2)
    return {"": (got, expected)}


def e3nn_product(plan: Plan, compile_right: bool = False) -> o3.TensorProduct:
    """e3nn's product of a plan, in the default dtype."""
    return o3.TensorProduct(
        plan.irreps_in1,
        plan.irreps_in2,
        plan.irreps_out,
        [tuple(instruction[:6]) for instruction in plan.instructions],
        in1_var=plan.in1_var,
        in2_var=plan.in2_var,
        out_var=plan.out_var,
        irrep_normalization=plan.irrep_normalization,
        path_normalization=plan.path_normalization,
        shared_weights=plan.shared_weights,
        internal_weights=False,
        compile_right=compile_right,
    )


# --- structure ----------------------------------------------------------------------------------------------------


def _right(subject: Subject) -> Outcomes:
    subject = _narrow(subject)
    x1, *others = subject.operands.values()
    return {"": (torch.einsum("zi,zik->zk", x1, subject.right(*others)), subject.forward(**subject.operands))}


def _narrow(subject: Subject) -> Subject:
    """As many of the rows as `right` has room for: its result is a matrix for each row, which can be large."""
    plan = subject.plan
    rows = max(1, MAX_RIGHT // max(1, plan.irreps_in1.dim * plan.irreps_out.dim))
    cut = {name: x if name == "w" and plan.shared_weights else x[:rows] for name, x in subject.operands.items()}
    return replace(subject, operands=cut)


def _equivariant(subject: Subject) -> Outcomes:
    generator = torch.Generator().manual_seed(1)
    rotations = [_orthogonal(generator, 1.0) for _ in range(2)]
    improper = [-torch.eye(3, dtype=torch.float64), _orthogonal(generator, -1.0)]
    return {"rotations": _transformed(subject, rotations), "parity": _transformed(subject, improper)}


def _transformed(subject: Subject, matrices: list[Tensor]) -> Pair:
    """The product of transformed inputs, and the transformed product, for every matrix."""
    plan, (layout1, layout2, layout3) = subject.plan, subject.product.layout
    straight = subject.forward(**subject.operands)
    got, expected = [], []
    for matrix in matrices:
        turned = {
            **subject.operands,
            "x1": transform(subject.operands["x1"], plan.irreps_in1, layout1, matrix),
            "x2": transform(subject.operands["x2"], plan.irreps_in2, layout2, matrix),
        }
        got.append(subject.forward(**turned))
        expected.append(transform(straight, plan.irreps_out, layout3, matrix))
    return torch.cat(got), torch.cat(expected)


def _linear(subject: Subject) -> Outcomes:
    outcomes: dict[str, Pair | str] = {}
    for name, x in subject.operands.items():
        other = subject.others[name]
        # paths without weights are a constant to the weights, which only a mean with weights of sum 1 keeps
        affine = name == "w" and not all(i.has_weight for i in subject.plan.instructions)
        a, b = (0.7, 0.3) if affine else (0.7, -1.3)
        mixed = subject.forward(**{**subject.operands, name: a * x + b * other})
        apart = [subject.forward(**{**subject.operands, name: t}) for t in (x, other)]
        outcomes[name] = (mixed, a * apart[0] + b * apart[1])
    return _with_weights(outcomes)


# --- derivatives --------------------------------------------------------------------------------------------------


def _gradients(subject: Subject) -> Outcomes:
    names = list(subject.operands)
    got, expected = (_first_order(function, subject, names)[1] for function in (subject.forward, subject.reference))
    return _with_weights(dict(zip(names, zip(got, expected, strict=True), strict=True)))


def _second_order(subject: Subject) -> Outcomes:
    """Gradients of a contraction of the gradients, as a force loss has them: the operands' and the cotangent's."""
    names = [*subject.operands, "cotangent"]
    got, expected = (_second(function, subject, names) for function in (subject.forward, subject.reference))
    return _with_weights(dict(zip(names, zip(got, expected, strict=True), strict=True)))


def _first_order(
    function: Callable[..., Tensor], subject: Subject, names: list[str], create_graph: bool = False
) -> tuple[Operands, tuple[Tensor, ...]]:
    leaves = {
        name: x.clone().requires_grad_() for name, x in {**subject.operands, "cotangent": subject.cotangent}.items()
    }
    out = function(**{name: leaves[name] for name in subject.operands})
    loss = (leaves["cotangent"] * out).sum() + _nothing(leaves)
    wanted = [leaves[name] for name in names if name != "cotangent"]
    return leaves, torch.autograd.grad(loss, wanted, create_graph=create_graph, materialize_grads=True)


def _second(function: Callable[..., Tensor], subject: Subject, names: list[str]) -> tuple[Tensor, ...]:
    leaves, gradients = _first_order(function, subject, names, create_graph=True)
    probes = subject.others.values()
    loss = sum(((g * v).sum() for g, v in zip(gradients, probes, strict=True)), _nothing(leaves))
    return torch.autograd.grad(loss, [leaves[name] for name in names], materialize_grads=True)


def _nothing(leaves: Operands) -> Tensor:
    """Zero that depends on every leaf: a product without paths depends on none of its inputs."""
    return torch.stack([0.0 * leaf.sum() for leaf in leaves.values()]).sum()


def _with_weights(outcomes: dict[str, Pair | str]) -> Outcomes:
    return outcomes if "w" in outcomes else {**outcomes, "w": NO_WEIGHTS}


# --- tensors of irreps --------------------------------------------------------------------------------------------


def transform(x: Tensor, irreps: Irreps, layout: str, matrix: Tensor) -> Tensor:
    """Rotate or reflect ``x (z, irreps)``, segment by segment: the whole matrix would be large."""
    with default_dtype(torch.float64):  # in which e3nn keeps the generators of its Wigner matrices
        return _by_segment(x, irreps, layout, layout, matrix)


def change_layout(x: Tensor, irreps: Irreps, layout: str, to: str) -> Tensor:
    """The same tensor with its last axis in another layout.

    >>> change_layout(torch.arange(6.0), Irreps("2x1o"), "mul_ir", "ir_mul")
    tensor([0., 3., 1., 4., 2., 5.])
    """
    return _by_segment(x, irreps, layout, to, None)


def _by_segment(x: Tensor, irreps: Irreps, layout: str, to: str, matrix: Tensor | None) -> Tensor:
    pieces = []
    for (mul, ir), where in zip(irreps, irreps.slices(), strict=True):
        shape, transposed = ((mul, ir.dim), False) if layout == "mul_ir" else ((ir.dim, mul), True)
        piece = x[..., where].reshape(*x.shape[:-1], *shape)
        piece = piece.transpose(-1, -2) if transposed else piece
        if matrix is not None:
            piece = piece @ ir.D_from_matrix(matrix).T
        piece = piece if to == "mul_ir" else piece.transpose(-1, -2)
        pieces.append(piece.flatten(-2))
    return torch.cat(pieces, dim=-1) if pieces else x


def _orthogonal(generator: torch.Generator, determinant: float) -> Tensor:
    """A random orthogonal matrix with that determinant, 1 or -1."""
    q, _ = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64))
    return q * (determinant * torch.linalg.det(q).sign())


LAWS: dict[str, Law] = {
    "definition": Law(_definition),
    "e3nn": Law(_e3nn),
    "e3nn right": Law(_e3nn_right),
    "right = forward": Law(_right, slack=2),
    "equivariant": Law(_equivariant, slack=5),
    "linear": Law(_linear, slack=5),
    "gradient": Law(_gradients, slack=2),
    "second order": Law(_second_order, slack=5),
}
