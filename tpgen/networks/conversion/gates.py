"""Swap of e3nn's `Gate`: one kernel."""

# Annotations are objects here, not strings: TorchScript reads them.

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from e3nn import o3
from e3nn.math import normalize2mom
from e3nn.nn import Activation, Gate
from e3nn.nn._gate import _Sortcut
from e3nn.util.jit import compile_mode
from torch import Tensor, nn

from tpgen.functions.gate import GateTable, gate, make_gate_table
from tpgen.kernels.build.compiler import find_compiler, why_no_compiler
from tpgen.networks.conversion.obstacles import (
    HOOKED,
    allows_kernels,
    copy_method_under_name,
    has_hooks,
    is_hooked_or_patched,
    why_patched,
)
from tpgen.networks.conversion.products import ConvertedElementwiseTensorProduct, make_couplings_exact
from tpgen.networks.conversion.swap import ClassSwap, KeptModule, SwapOrKept, get_swap_mark, name_class_with_package

# what it calls, and will not call: a part that is another has a code of its own
_PARTS: dict[str, tuple[type[nn.Module], ...]] = {
    "sc": (_Sortcut,),
    "act_scalars": (Activation,),
    "act_gates": (Activation,),
    "mul": (o3.ElementwiseTensorProduct, ConvertedElementwiseTensorProduct),
}
_NAMES = {  # in a table, of the functions that e3nn's users give
    nn.functional.silu: "silu",
    torch.tanh: "tanh",
    nn.functional.tanh: "tanh",
    torch.sigmoid: "sigmoid",
    nn.functional.sigmoid: "sigmoid",
    torch.abs: "abs",
    torch.relu: "relu",
    nn.functional.relu: "relu",
}
_BY_ID = {id(function): name for function, name in _NAMES.items()}  # not all that is callable can be looked up
_MODULES = {nn.SiLU: "silu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid", nn.ReLU: "relu"}

_OTHER = "another"  # a function that no table has: torch computes it, and the kernel takes its values as they are
_NameAndScale = tuple[
    str, float
]  # its name in a table, and what it is multiplied by; no name where it has hooks, or another class
_RowPiece = tuple[int, tuple[str, int] | None]  # numbers of a row, and the part and place of a function of no table
NamesAndScales = tuple[tuple[_NameAndScale, ...], tuple[_NameAndScale, ...]]  # of scalars, and of gates


@compile_mode("script")
class ConvertedGate(Gate):
    """An `e3nn.nn.Gate`, computed by tpgen; scripted, or with hooked or replaced parts, e3nn's code runs."""

    stock = copy_method_under_name(Gate.forward, "stock")

    @torch.compiler.assume_constant_result  # Dynamo takes no scripted module into its hands, not even to look at it
    def _has_hooks_on_cut_programs(self) -> bool:
        # whether something is hooked to the programs of e3nn that cut the features; scripted ones take no hooks
        return any(map(has_hooks, self.sc._modules["cut"]._modules.values()))

    def forward(self, features: Tensor) -> Tensor:
        """Gate ``features`` as e3nn, by one kernel; scripted or changed parts run e3nn's code."""
        if not torch.jit.is_scripting():  # noqa: SIM102 (TorchScript leaves the inner question out)
            if not _have_parts_changed_since_conversion(self):
                return gate(self._tpgen_table, _apply_activations_without_gating(self, features), self._tpgen_kernels)
        return self.stock(features)


def find_gate_swap(module: nn.Module, options: Mapping[str, Any]) -> SwapOrKept | None:
    """`ClassSwap` that converts e3nn's `Gate`, or `KeptModule`; None for other modules."""
    if type(module) is not Gate:
        return None
    if why := _why_gate_unconvertible(module):
        return KeptModule(module, why)
    functions = _list_activation_names_and_scales(module)
    extra = {
        "_tpgen_pieces": _list_piece_sizes_and_torch_activations(module, functions),
        "_tpgen_table": _make_gate_table_from_module(module, functions),
        "_tpgen_functions": functions,
        "_tpgen_kernels": allows_kernels(options),
    }
    product = module.get_submodule("mul")
    exact = None if get_swap_mark(product) else partial(make_couplings_exact, product)
    return ClassSwap(module, ConvertedGate, _describe_gate_backend, extra, exact, covers=tuple(_PARTS))


def _describe_gate_backend(module: nn.Module, swap_attributes: Mapping[str, Any]) -> str:
    # name what computes a gate, for the report: a kernel where one is allowed and can be built, else why not
    if get_swap_mark(module) is not None and _have_parts_changed_since_conversion(module):
        return "e3nn's own code, as a part was changed since"
    mask: Any = module.get_submodule("mul").output_mask
    if not swap_attributes["_tpgen_kernels"]:
        return "torch operations, fewer than e3nn's"
    if not mask.is_cpu or mask.dtype not in (torch.float32, torch.float64):
        return "torch operations, fewer than e3nn's (kernels of gates compute in float32 and float64 on a CPU)"
    if not find_compiler():
        return f"torch operations, fewer than e3nn's (kernels need a C++ compiler, and {why_no_compiler()})"
    return "tpgen kernel (activations and product in one)"


def _why_gate_unconvertible(gate: Any) -> str | None:
    for name, kinds in _PARTS.items():
        part = getattr(gate, name, None)
        if type(part) not in kinds:
            return f"of a part {name} that is a {name_class_with_package(type(part))}, not e3nn's"
    acts = [*filter(None, gate.act_scalars.acts), *filter(None, gate.act_gates.acts)]
    for act in acts:
        if type(act) is not normalize2mom:
            return f"of an activation that is a {name_class_with_package(type(act))}, not e3nn's normalize2mom"
    parts = (gate, gate.sc, gate.sc.cut, gate.act_scalars, gate.act_gates, gate.mul, *acts)
    hooked = any(has_hooks(part) for part in gate.modules() if part is not gate)
    return next(filter(None, map(why_patched, parts)), HOOKED if hooked else None)


def _have_parts_changed_since_conversion(gate: Any) -> bool:
    # whether the parts must be called: something was added to one of them, or put in its place, after the swap
    parts = gate._modules
    if any(type(parts.get(name)) not in kinds or is_hooked_or_patched(parts[name]) for name, kinds in _PARTS.items()):
        return True
    if is_hooked_or_patched(parts["sc"]._modules["cut"]) or gate._has_hooks_on_cut_programs():
        return True
    return _list_activation_names_and_scales(gate) != gate._tpgen_functions


def _list_activation_names_and_scales(gate: Any) -> NamesAndScales:
    # name and scale of each activation of a gate: those of scalars, then those of gates
    parts = gate._modules
    scalars, gates = (
        tuple(map(_get_activation_name_and_scale, parts[n]._modules["acts"])) for n in ("act_scalars", "act_gates")
    )
    return scalars, gates


def _get_activation_name_and_scale(activation: Any) -> _NameAndScale:
    if activation is None:
        return "identity", 1.0
    if type(activation) is not normalize2mom or is_hooked_or_patched(activation):
        return "", 0.0
    return _find_kernel_name_of_activation(activation.f), 1.0 if activation._is_id else activation.cst


def _find_kernel_name_of_activation(activation: Any) -> str:
    # of a function in a table: a module that writes into its input, or has hooks, is another function
    if type(activation) not in _MODULES:
        return _BY_ID.get(id(activation), _OTHER)
    return (
        _OTHER
        if is_hooked_or_patched(activation) or getattr(activation, "inplace", False)
        else _MODULES[type(activation)]
    )


def _list_piece_sizes_and_torch_activations(gate: Any, activations: NamesAndScales) -> tuple[_RowPiece, ...]:
    # cut a row at the begin and end of functions that no table has; empty without such functions
    ranges: dict[int, tuple[int, tuple[str, int]]] = {}
    scalars, gates, _ = (
        list(_list_irrep_copy_offsets_and_widths(gate.sc.cut, chosen)) for chosen in gate.sc.cut.instructions
    )
    for part, copies, each in zip(("act_scalars", "act_gates"), (scalars, gates), activations, strict=True):
        begin = 0
        for number, ((mul, _), (name, _)) in enumerate(zip(getattr(gate, part).irreps_in, each, strict=True)):
            if name == _OTHER and mul:
                ranges[copies[begin][0]] = mul, (part, number)  # e3nn keeps an irrep's copies together
            begin += mul
    found: list[_RowPiece] = []
    at = 0
    for begin, (mul, owner) in sorted(ranges.items()):
        found += [(begin - at, None), (mul, owner)]
        at = begin + mul
    return (*found, (gate.irreps_in.dim - at, None)) if found else ()


def _apply_activations_without_gating(gate: Any, features: Tensor) -> Tensor:
    # rows with the values of functions that no table has, some of which write to their input
    pieces = gate._tpgen_pieces
    if not pieces or features.dim() == 0 or features.shape[-1] != gate._tpgen_table.dim_in:
        return features
    parts = features.split([size for size, _ in pieces], -1)
    acts = [owner and gate._modules[owner[0]]._modules["acts"][owner[1]].f for _, owner in pieces]
    return torch.cat([act(x.clone()) if act else x for act, x in zip(acts, parts, strict=True)], -1)


def _make_gate_table_from_module(gate: Any, activations: NamesAndScales) -> GateTable:
    # A gate's table: e3nn sorts its input by irreps, so what belongs together stands in many places
    scalars, gates, gated = (
        _list_irrep_copy_offsets_and_widths(gate.sc.cut, chosen) for chosen in gate.sc.cut.instructions
    )
    by_scalar, by_gate = (
        [
            _replace_torch_activation_by_identity(f)
            for (mul, _), f in zip(activation.irreps_in, each, strict=True)
            for _ in range(mul)
        ]
        for activation, each in zip((gate.act_scalars, gate.act_gates), activations, strict=True)
    )
    return make_gate_table(
        [(*f, place, 0, 0) for f, (place, _) in zip(by_scalar, scalars, strict=True)]
        + [(*f, place, *copy) for f, (place, _), copy in zip(by_gate, gates, gated, strict=True)]
    )


def _replace_torch_activation_by_identity(activation: _NameAndScale) -> _NameAndScale:
    return ("identity", activation[1]) if activation[0] == _OTHER else activation


def _list_irrep_copy_offsets_and_widths(
    extract_module: Any, segment_indices: tuple[int, ...]
) -> Iterator[tuple[int, int]]:
    # yield the offset of each copy of the chosen irreps in the input of an `Extract`, and its dimension
    for n in segment_indices:
        mul, ir = extract_module.irreps_in[n]
        begin = extract_module.irreps_in[:n].dim
        yield from ((begin + u * ir.dim, ir.dim) for u in range(mul))
