"""Reasons to keep a module."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from tpgen.base.errors import TpgenError
from tpgen.kernels.runtime.polynomials import forward_call
from tpgen.kernels.runtime.targets import why_kernel_unsupported
from tpgen.networks.conversion.swap import KeptModule, name_class_with_package
from tpgen.planner.plan import Plan

_PROGRAMS = ("_compiled_main_left_right", "_compiled_main", "sph_func")  # e3nn's, that converted modules do not call
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# what a subclass may define that computes as its base does
_CONSTRUCTION = {"__init__", *vars(type("Empty", (), {"__annotations__": {}})), "__parameters__", "__orig_bases__"}
_CONSTRUCTION |= {"__repr__", "__str__", "extra_repr"}
HOOKED = "of hooks inside it, which would no longer run: hook the module itself"


def why_module_unconvertible(
    module: nn.Module, known_classes: Mapping[type[nn.Module], Any], unused_child: str
) -> str | None:
    """Why a module of known classes cannot be converted, or None; swaps never call ``unused_child``."""
    if parametrize.is_parametrized(module):
        names = ", ".join(name for name, _ in module.parametrizations.named_children())  # type: ignore[union-attr]
        return f"{names} parametrised: convert first, then parametrise"
    base = find_stock_class(module, known_classes)
    if own := list_overriding_names(module, base):
        code = f"whose own code a swap would skip ({', '.join(own)})"
        return f"a subclass of {name_class_with_package(base)}, {code}: build it on tpgen's {base.__name__}"
    if why := why_patched(module):
        return why
    if has_hooks(getattr(module, unused_child, None)):
        return f"hooks on {unused_child}, which would no longer run: move them to the module itself"
    return None


def list_overriding_names(module: nn.Module, base: type[nn.Module]) -> list[str]:
    """Names that a module's class adds to ``base`` and that may change results."""
    lineage = type(module).__mro__
    defined = [(name, made) for cls in lineage[: lineage.index(base)] for name, made in vars(cls).items()]
    return sorted(
        {
            name
            for name, made in defined
            if name not in _CONSTRUCTION and not _is_call_that_only_forwards(name, made, base)
        }
    )


class _ForwardingCallExamples(nn.Module):
    """Calls that only forward arguments to a base class."""

    def call_with_one(self, x: Any) -> Any:
        return super().__call__(x)

    def call_with_two(self, x: Any, y: Any) -> Any:
        return super().__call__(x, y)

    def call_with_three(self, x: Any, y: Any, z: Any) -> Any:
        return super().__call__(x, y, z)

    def call_with_all(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


_FLAGS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE


def _get_bytecode_and_signature(function: Any) -> tuple:
    code = function.__code__
    flags = code.co_flags & _FLAGS  # others are those of a file
    return code.co_code, code.co_names, code.co_argcount, code.co_kwonlyargcount, flags, function.__defaults__


_FORWARDING = [
    _get_bytecode_and_signature(f) for f in vars(_ForwardingCallExamples).values() if isinstance(f, FunctionType)
]


def _is_call_that_only_forwards(name: str, attribute: Any, base: type[nn.Module]) -> bool:
    if (
        name != "__call__"
        or not isinstance(attribute, FunctionType)
        or _get_bytecode_and_signature(attribute) not in _FORWARDING
    ):
        return False
    own, stock = attribute.__code__, base.forward.__code__  # callers may name arguments
    return own.co_argcount == 1 or own.co_varnames[: own.co_argcount] == stock.co_varnames[: own.co_argcount]


def find_stock_class(module: nn.Module, known_classes: Iterable[type[nn.Module]]) -> type[nn.Module]:
    """The nearest of ``known_classes`` among a module's bases."""
    return next(cls for cls in type(module).__mro__ if cls in known_classes)


def why_patched(module: nn.Module) -> str | None:
    """Reason if the instance has its own ``forward``, else None."""
    return (
        "its forward is replaced on the instance: put it back before converting" if "forward" in vars(module) else None
    )


def why_not_fused(network: nn.Module, block: nn.Module, product_name: str) -> str | None:
    """Why gather, product ``product_name`` and sum of a block cannot be one call, or None."""
    product = block.get_submodule(product_name)
    if has_hooks(product):
        return f"hooks on {product_name}, which see edges: its product alone is converted; convert first, then hook"
    if count_places_in_network(network, product) > 1:
        return f"of a {product_name} that stands in several places: its product alone is converted"
    return why_patched(block)


def copy_method_under_name(method: Any, name: str) -> Any:
    """Copy a method under another name: TorchScript has no ``super()``."""
    copy = FunctionType(method.__code__, method.__globals__, name, method.__defaults__)
    copy.__annotations__ = method.__annotations__
    return copy


def has_hooks(module: Any) -> bool:
    return any(map(getattr(module, "__dict__", {}).get, _HOOKS))  # asked at every call of a net, of each of its layers


def describe_idle_hooks(module: nn.Module) -> str:
    """Text on hooks that a converted module never calls; empty without any."""
    names = [name for name in _PROGRAMS if has_hooks(vars(module).get("_modules", {}).get(name))]
    return f"; hooks on {', '.join(names)} do not run: hook the module itself" if names else ""


def is_hooked_or_patched(module: Any) -> bool:
    return has_hooks(module) or "forward" in module.__dict__


def count_places_in_network(network: nn.Module, module: nn.Module) -> int:
    return sum(child is module for holder in network.modules() for child in holder._modules.values())


def allows_kernels(options: Mapping[str, Any]) -> bool:
    return options.get("strategy", "auto") in ("auto", "kernel")


def make_plan_or_kept_module(
    module: nn.Module, options: Mapping[str, Any], make_plan: Callable[[], Plan], like: Tensor | None = None
) -> Plan | KeptModule:
    """Plan of ``make_plan()``, or `KeptModule` without a kernel for dtype and device of ``like``."""
    if not allows_kernels(options):
        return KeptModule(module, f"for kernels alone, and strategy={options['strategy']!r} was asked for")
    try:
        plan = make_plan()
    except TpgenError as error:
        return KeptModule(module, f"tpgen cannot plan it: {error}")
    dtype, device = (torch.float32, "cpu") if like is None else (like.dtype, like.device)
    why = why_kernel_unsupported(plan, dtype=dtype, device=device)
    return KeptModule(module, f"without a kernel: {why}") if why else plan


def make_polynomial_attributes(plan: Plan) -> dict[str, str]:
    """Attributes of modules that run a polynomial: plan and call as text."""
    return {"_tpgen_plan": plan.to_json(), "_tpgen_call": str(forward_call(plan))}
