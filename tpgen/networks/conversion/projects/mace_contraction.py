"""MACE's symmetric contraction and change of layout, by polynomial kernels."""

# Annotations are objects here, not strings: TorchScript reads them.

import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Optional

import torch
from e3nn.o3 import Irrep, Irreps
from e3nn.util.jit import compile_mode
from torch import Tensor, nn

from tpgen.base._torch import assert_async
from tpgen.base.errors import PlanError, TpgenError
from tpgen.kernels.runtime.batched import run_polynomial
from tpgen.kernels.runtime.native.one_hot import find_one_hot_columns
from tpgen.kernels.runtime.targets import why_kernel_unsupported
from tpgen.networks.conversion.notices import (
    can_gpu_program_kernels_take,
    can_kernels_take,
    can_kernels_take_or_warn,
    warn_of_slow_path,
)
from tpgen.networks.conversion.obstacles import (
    HOOKED,
    allows_kernels,
    has_hooks,
    is_hooked_or_patched,
    make_plan_or_kept_module,
    make_polynomial_attributes,
    why_patched,
)
from tpgen.networks.conversion.swap import ClassSwap, KeptModule, SwapOrKept, name_class_with_package
from tpgen.networks.recording import recorded_program
from tpgen.nn.plain_tensors import is_plain_tensor, is_traced
from tpgen.nn.symmetric_contraction import (
    SymmetricContraction,
    average_over_input_permutations,
    find_path_signs,
    fit_coupling_basis,
    make_couplings,
)
from tpgen.planner.plan import OUT, Operand, Plan
from tpgen.planner.polynomial_plan import PolynomialTerm, make_polynomial_plan
from tpgen.planner.read import read_plan

_KIND = "SymmetricContraction"
_NOW = "tpgen polynomial, kernel (weights by element, each monomial once)"
_TRACKED = (
    "symmetric contractions run MACE's own code: node_attrs need a gradient, as MACE's models of dipoles ask for, and "
    "kernels that choose weights by element give none"
)
_OWN = "MACE's own code (the loaded couplings are none of tpgen's)"


@compile_mode("script")
class MaceContraction(nn.Module):
    """MACE's symmetric contraction of features ``(nodes, channels, components)`` and one-hot elements.

    MACE's code runs for other elements, without kernels, with hooks, for foreign couplings.
    """

    _tpgen_plan: str
    _tpgen_call: str
    _tpgen_signs: list[list[float]]  # of the paths of each weight, highest degree first; empty where there is no path
    _tpgen_bases: list[list[list[int]]]  # each path as a sum of tpgen's; empty where they are the same

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Symmetric contraction of ``x``, by one polynomial kernel for one-hot elements ``y``."""
        called = len(self._tpgen_signs) == 0
        if not torch.jit.is_scripting():
            called = called or any(map(_has_hooked_contraction_steps, self.contractions))  # type: ignore[arg-type]
        elements = None if called or not _can_kernels_take(x) else _find_one_hot_columns(y)
        if elements is None:
            return torch.cat([contraction(x, y) for contraction in self.contractions], dim=-1)  # type: ignore[union-attr]
        tensors, n = [x], 0
        for contraction in self.contractions:  # type: ignore[union-attr]
            weights = [contraction.weights_max]
            for weight in contraction.weights:
                weights.append(weight)
            for weight in weights:
                signs = self._tpgen_signs[n]
                if len(signs) > 0:
                    tensors.append(
                        _multiply_weights_by_path_signs(
                            _change_weight_basis_of_paths(weight, self._tpgen_bases[n]), signs
                        )
                    )
                n += 1
        return run_polynomial(tensors, elements, self._tpgen_plan, self._tpgen_call)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load, and read signs of weights from loaded couplings."""
        try:
            self._tpgen_signs, self._tpgen_bases = _read_path_signs_and_bases(
                self, read_plan(self._tpgen_plan), state_dict, prefix
            )
        except TpgenError as error:
            self._tpgen_signs = []
            warnings.warn(f"{prefix[:-1]} is computed by MACE's own code from now on: {error}", stacklevel=2)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _can_kernels_take(x: Tensor) -> bool:
    # on a GPU in programs alone, which know the elements of rows
    if not torch.jit.is_scripting():  # noqa: SIM102 (TorchScript leaves the inner question out)
        if can_gpu_program_kernels_take(x):
            return True
    return can_kernels_take_or_warn(x, "symmetric contractions run MACE's own code")


def _has_hooked_contraction_steps(contraction: Any) -> bool:
    # as somebody hooked it or one of its steps since
    steps = contraction._modules.values()
    return is_hooked_or_patched(contraction) or any(
        has_hooks(s) or any(map(has_hooks, s._modules.values())) for s in steps
    )


def _multiply_weights_by_path_signs(weight: Tensor, signs: list[float]) -> Tensor:
    if min(signs) > 0:
        return weight
    return weight * torch.tensor(signs, dtype=weight.dtype, device=weight.device).unsqueeze(-1)


def _change_weight_basis_of_paths(weight: Tensor, basis: list[list[int]]) -> Tensor:
    if len(basis) == 0:
        return weight
    return torch.einsum("epc,pq->eqc", weight, _decode_fixed_point_basis(basis).to(weight))


def _decode_fixed_point_basis(basis: list[list[int]]) -> Tensor:
    # TorchScript rounds a list of floats to float32, and keeps whole numbers
    return torch.tensor(basis).double() * 2.0**-48


def _describe_contraction_backend(symmetric_contraction: Any, swap_attributes: Mapping[str, Any]) -> str:
    like = symmetric_contraction.contractions[0].weights_max
    if not swap_attributes["_tpgen_signs"]:
        return _OWN
    return _NOW if can_kernels_take(like) else f"MACE's own code (kernels take no {like.dtype} on {like.device})"


def _find_one_hot_columns(y: Tensor) -> Optional[Tensor]:  # noqa: UP045
    # column of each row's one; None if rows are not one-hot or need a gradient
    if not torch.jit.is_scripting():
        program = recorded_program()
        # each call of the program looks for one-hot rows
        groups = None if program is None else program.groups(y, on_gpu=True)
        if program is not None and (is_traced(y) or (y.is_cuda and program.traced)):
            return None if groups is None or y.requires_grad else groups.species
    if y.requires_grad:
        if not torch.jit.is_scripting():  # noqa: SIM102 (as below)
            if not torch.compiler.is_compiling():
                warn_of_slow_path(_TRACKED)
        return None
    if not torch.jit.is_scripting():  # noqa: SIM102 (TorchScript leaves the inner question out)
        if not torch.compiler.is_compiling() and is_plain_tensor(y):
            return find_one_hot_columns(y)
    one_hot = (y.amax(dim=1) == 1).all() & (y.count_nonzero() == y.size(0))
    if not torch.jit.is_scripting():  # noqa: SIM102 (as above)
        if torch.compiler.is_compiling() or is_traced(y):  # neither chooses by values: both ask for them at each run
            assert_async(one_hot, "a compiled MACE takes one-hot node_attrs alone: run it as it is, in Python")
            return y.argmax(dim=1)
    return y.argmax(dim=1) if bool(one_hot) else None


def find_contraction_swap(module: Any, options: Mapping[str, Any]) -> SwapOrKept:
    """`ClassSwap` that converts MACE's symmetric contraction, or `KeptModule`."""
    if why := _why_contraction_unconvertible(module) or _why_couplings_unreadable(module):
        return KeptModule(module, why)
    signs: list[list[float]] = []
    bases: list[list[list[int]]] = []

    def make_plan_and_read_couplings() -> Plan:
        plan = _plan_contraction(module)
        found = _read_path_signs_and_bases(module, plan)
        signs.extend(found[0])
        bases.extend(found[1])
        return plan

    plan = make_plan_or_kept_module(module, options, make_plan_and_read_couplings, module.contractions[0].weights_max)
    if isinstance(plan, KeptModule):
        return plan
    extra = {**make_polynomial_attributes(plan), "_tpgen_signs": signs, "_tpgen_bases": bases}
    return ClassSwap(
        module,
        MaceContraction,
        _describe_contraction_backend,
        extra,
        partial(_write_exact_couplings, module, signs, bases),
        covers=("contractions",),
    )


def _why_contraction_unconvertible(symmetric_contraction: Any) -> str | None:
    why = why_patched(symmetric_contraction)
    for child in symmetric_contraction.contractions:
        if why is None and not _is_mace_class(child, "Contraction"):
            why = f"of a child that is a {name_class_with_package(type(child))}, whose own code a swap would skip"
        why = why or why_patched(child) or next((HOOKED for m in child.modules() if has_hooks(m)), None)
    return why


def _why_couplings_unreadable(symmetric_contraction: Any) -> str | None:
    held = [
        symmetric_contraction.get_buffer(name)
        for _, _, name in _list_output_degree_and_coupling_name(symmetric_contraction)
    ]
    if any(u.is_meta for u in held):
        return "on the device meta, where its couplings have no numbers: give it memory and weights, then convert it"
    for u in held:
        if u.dtype in (torch.float16, torch.bfloat16):
            return f"of rounded couplings: convert it in float32, then .to({u.dtype})"
    return None


def _plan_contraction(symmetric_contraction: Any) -> Plan:
    outputs = zip(symmetric_contraction.irreps_out, symmetric_contraction.contractions, strict=True)
    degrees = {str(mul_ir.ir): contraction.correlation for mul_ir, contraction in outputs}
    elements = symmetric_contraction.contractions[0].weights_max.shape[0]
    return SymmetricContraction(
        symmetric_contraction.irreps_in,
        symmetric_contraction.irreps_out,
        degrees,
        num_elements=elements,
        internal_weights=False,
        strategy="einsum",
    ).plan


def _list_output_degree_and_coupling_name(symmetric_contraction: Any) -> Iterator[tuple[int, int, str]]:
    # output, degree and name of the couplings of each weight
    for n, contraction in enumerate(symmetric_contraction.contractions):
        for degree in range(contraction.correlation, 0, -1):
            yield n, degree, f"contractions.{n}.U_matrix_{degree}"


def _read_path_signs_and_bases(
    symmetric_contraction: Any, plan: Plan, state_dict: Mapping[str, Any] | None = None, prefix: str = ""
) -> tuple[list[list[float]], list[list[list[int]]]]:
    # of the paths of each weight, from couplings of a state_dict where it has them
    names, signs, bases = {operand.name for operand in plan.weights}, [], []
    for n, degree, name in _list_output_degree_and_coupling_name(symmetric_contraction):
        theirs = (state_dict or {}).get(prefix + name, symmetric_contraction.get_buffer(name))
        of = name, theirs, symmetric_contraction.irreps_in, symmetric_contraction.irreps_out[n].ir, degree
        sign, basis = _find_path_signs_or_basis(*of) if f"w{n}_{degree}" in names else ([], [])
        signs.append(sign)
        bases.append(basis)
    return signs, bases


def _find_path_signs_or_basis(
    name: str, couplings: Tensor, irreps_in: Irreps, output: Irrep, degree: int
) -> tuple[list[float], list[list[int]]]:
    # each path is one of tpgen's, but for its sign, or a sum, where cuequivariance made them
    try:
        return find_path_signs(name, couplings, irreps_in, output, degree).tolist(), []
    except PlanError:
        basis = fit_coupling_basis(name, couplings, irreps_in, output, degree)
        if not 2.0**-12 < (size := float(basis.abs().max())) < 2.0**14:  # what whole numbers hold to 11 digits
            raise PlanError(
                f"{name}: couplings are {size:.0e} times tpgen's: scale them, and the weights back"
            ) from None
        return [1.0] * basis.shape[1], (basis * 2.0**48).round().long().tolist()


def _write_exact_couplings(symmetric_contraction: Any, signs: list[list[float]], bases: list[list[list[int]]]) -> None:
    # those of a model built in float32 are rounded
    for (n, degree, name), sign, basis in zip(
        _list_output_degree_and_coupling_name(symmetric_contraction), signs, bases, strict=True
    ):
        if sign:
            ours = make_couplings(symmetric_contraction.irreps_in, symmetric_contraction.irreps_out[n].ir, degree)
            paths = torch.tensor(sign, dtype=torch.float64)
            if basis:
                ours, paths = average_over_input_permutations(ours), _decode_fixed_point_basis(basis).T
            held = symmetric_contraction.get_buffer(name)
            held.copy_((ours @ paths if basis else ours * paths).view_as(held))


def is_mace_contraction(module: nn.Module) -> bool:
    return _is_mace_class(module, _KIND)


def _is_mace_class(module: nn.Module, name: str) -> bool:
    return type(module).__module__.startswith("mace.") and type(module).__name__ == name


# -- the layout of its features ----------------------------------------------------------------------------------------

_NOW_RESHAPE = "tpgen polynomial, kernel (float32 and float64 on the CPU, slices elsewhere)"


@compile_mode("script")
class MaceReshape(nn.Module):
    """MACE's change of layout from e3nn's rows to ``(rows, copies, components)``."""

    dims: list[int]
    _tpgen_plan: str
    _tpgen_call: str
    _tpgen_copies: int
    _tpgen_dim: int  # of all components

    def forward(self, tensor: Tensor) -> Tensor:
        """Reshape ``(rows, dim)`` to ``(rows, copies, components)``."""
        shape = [tensor.size(0), self._tpgen_copies, self._tpgen_dim]
        if tensor.is_cpu and tensor.dtype in (torch.float32, torch.float64):
            return run_polynomial([tensor], None, self._tpgen_plan, self._tpgen_call).view(shape)
        parts = tensor.split([self._tpgen_copies * dim for dim in self.dims], dim=1)
        return torch.cat([part.reshape(shape[:2] + [-1]) for part in parts], dim=-1)


def _make_layout_plan(irreps: Irreps) -> Plan:
    """Linear polynomial that copies layout ``mul_ir`` to ``channel``.

    >>> _make_layout_plan(Irreps("0e + 1o")).out.dim
    4
    """
    copied = tuple(((k, k), 1.0) for k in range(irreps.dim))
    operands = [Operand("x", irreps, "mul_ir"), Operand(OUT, irreps, "channel")]
    return make_polynomial_plan(operands, [PolynomialTerm(("x",), table=(copied,))])


def is_mace_reshape(module: nn.Module) -> bool:
    """Whether a module is MACE's change of layout, with equal multiplicities."""
    return (
        _is_mace_class(module, "reshape_irreps")
        and getattr(module, "cueq_config", None) is None
        and len(module.muls) > 1  # type: ignore[arg-type]
        and len(set(module.muls)) == 1  # type: ignore[arg-type]
    )


def find_reshape_swap(module: Any, options: dict[str, Any]) -> SwapOrKept | None:
    """`ClassSwap` that converts MACE's `reshape_irreps`, or `KeptModule`; None without a kernel."""
    plan = _make_layout_plan(Irreps([(1, ir) for _, ir in module.irreps]))
    if not allows_kernels(options) or why_kernel_unsupported(plan):
        return None
    if why := why_patched(module):
        return KeptModule(module, why)
    extra = {**make_polynomial_attributes(plan), "_tpgen_copies": module.muls[0], "_tpgen_dim": plan.out.dim}
    return ClassSwap(module, MaceReshape, _NOW_RESHAPE, extra)
