"""What is inspected: a module, or a plan with options; either becomes a `Request` whose strategy is decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TypeVar

import torch
from torch import nn
from typing_extensions import Unpack

from tpgen.compiler.autotune import choose_strategy
from tpgen.compiler.config import DirectionOptions
from tpgen.errors import TpgenError, unknown
from tpgen.inspection.stages.dump import FormRequest, Request
from tpgen.nn.linear import Linear
from tpgen.nn.polynomial_module import PolynomialModule
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.linear import LinearPlan
from tpgen.planner.plan import Plan
from tpgen.planner.polynomial_plan import PolynomialPlan

Subject = TensorProduct | Plan
LinearSubject = Linear | LinearPlan
AnySubject = Subject | LinearSubject


def request_of(subject: Subject, **options: Unpack[DirectionOptions]) -> Request:
    """The request that stands for a product; ``auto`` is decided in it.

    >>> from tpgen.planner.presets import channelwise
    >>> request_of(channelwise("8x1o", "1o", "0e"), strategy="einsum").strategy
    'einsum'

    Raises `TpgenError` for what is neither, for an option that is none, and for a device that is not there.
    """
    _check_options(options)
    if isinstance(subject, TensorProduct):
        return decided(Request(subject.plan, **{**_brought(subject), **options}))  # type: ignore[arg-type]
    if isinstance(subject, Plan):
        return decided(Request(subject, **options))
    raise refused("give a tpgen TensorProduct, a Linear, or the plan of one", subject)


def any_request(subject: AnySubject, **options: Unpack[DirectionOptions]) -> FormRequest:
    """The request of a product, a linear layer, or the plan of either."""
    if isinstance(subject, Linear | LinearPlan):
        return linear_request(subject, **options)
    return request_of(subject, **options)


def linear_request(subject: LinearSubject, **options: Unpack[DirectionOptions]) -> FormRequest:
    """The same for a linear layer or its plan."""
    _check_options(options)
    own = {} if isinstance(subject, LinearPlan) else _brought(subject)
    plan = subject if isinstance(subject, LinearPlan) else subject.plan
    return decided(FormRequest(plan, **{**own, **options}))  # type: ignore[arg-type]


def _brought(module: TensorProduct | Linear) -> dict[str, object]:
    """The options that a module brings."""
    like = module.output_mask
    return {
        "layout": module.layout,
        "strategy": module.choice.strategy,
        "backend": module.backend,
        "dtype": like.dtype,
        "device": str(like.device),
    }


def refused(rule: str, subject: object) -> TpgenError:
    """The error that says what is taken, and what to do about what is not."""
    return TpgenError(f"{rule}, not {type(subject).__name__}; {_way_out(subject)}")


_OPTIONS = tuple(field.name for field in fields(Request) if field.name != "plan")
_SHOWN = 4  # products of a network that an error names


def _check_options(options: Mapping[str, object]) -> None:
    for name in options:
        if name not in _OPTIONS:
            raise TpgenError(unknown("option", name, _OPTIONS))
    if not isinstance(options.get("dtype", torch.float32), torch.dtype):
        raise TpgenError(f"dtype is a torch.dtype like torch.float32, got {options['dtype']!r}")
    try:
        torch.empty(0, device=options.get("device", "cpu"))  # type: ignore[call-overload]
    except (RuntimeError, AssertionError, TypeError) as error:
        raise TpgenError(f"device {options['device']!r} cannot be used here: {str(error).splitlines()[0]}") from None


def _way_out(subject: object) -> str:
    """What to give in the place of something that is no product."""
    if isinstance(subject, Linear | LinearPlan):
        plan = "it" if isinstance(subject, LinearPlan) else "its attribute plan"
        return (
            f"of a linear layer print {plan}; tpgen.explain says what each path costs, dump_stage of "
            "tpgen.inspection.stages.dump has its stages, and tpgen.verify checks it"
        )
    if isinstance(subject, PolynomialModule | PolynomialPlan):
        return "tpgen.explain, dump_stage of tpgen.inspection.stages.dump and tpgen.verify take a polynomial"
    if isinstance(subject, str):
        return f"a named product is tpgen.planner.problems.find_problem({subject!r}).plan"
    held = _products_in(subject)
    if held:
        more = ", …" if len(held) > _SHOWN else ""
        return (
            f"it holds {len(held)} product{'s' * (len(held) > 1)} ({', '.join(held[:_SHOWN])}{more}): give one, as in "
            f"network.get_submodule({held[0]!r}); explain_network of tpgen.inspection explains all"
        )
    return "tpgen.convert makes products of e3nn's"


def _products_in(subject: object) -> list[str]:
    if not isinstance(subject, nn.Module):
        return []
    return [path for path, module in subject.named_modules() if path and isinstance(module, TensorProduct)]


AnyRequest = TypeVar("AnyRequest", bound=FormRequest)


def decided(request: AnyRequest) -> AnyRequest:
    """The same request with its strategy by name."""
    return replace(request, strategy=choose_strategy(request.computed, request).strategy)
