"""Subjects of inspection: a module, or a plan with options; either becomes a `Request` whose strategy is decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from typing_extensions import Unpack

from tpgen.compiler.config import DirectionOptions
from tpgen.errors import TpgenError
from tpgen.inspection.stages.calls import request_for
from tpgen.inspection.stages.request import Request
from tpgen.nn.planned import PlannedModule
from tpgen.planner.plan import Plan

Subject = nn.Module | Plan


def plan_in(subject: Any) -> Plan | None:
    """The plan of a module, or what is given where it is one; None for what has none."""
    found = subject if isinstance(subject, Plan) else getattr(subject, "plan", None)
    return found if isinstance(found, Plan) else None


def request_of(subject: Subject, **options: Unpack[DirectionOptions]) -> Request:
    """The request that stands for a product, a linear layer, a polynomial or a plan; ``auto`` is decided in it.

    >>> from tpgen.planner.presets import channelwise
    >>> request_of(channelwise("8x1o", "1o", "0e"), strategy="einsum").strategy
    'einsum'

    Raises `TpgenError` for anything else, for an option that is none, and for a device that is not there.
    """
    _check_options(options)
    plan = plan_in(subject)
    if plan is None:
        raise refused("give a tpgen TensorProduct, a Linear, a polynomial, or the plan of one", subject)
    own = subject.asked() if isinstance(subject, PlannedModule) else {}
    request = request_for(plan, **{**own, **options})
    return replace(request, strategy=request.choice.strategy)


def refused(rule: str, subject: object) -> TpgenError:
    """The error that says what is taken, and what to do about what is not."""
    return TpgenError(f"{rule}, not {type(subject).__name__}; {_way_out(subject)}")


_SHOWN = 4  # products of a network that an error names


def _check_options(options: Mapping[str, object]) -> None:
    if not isinstance(options.get("dtype", torch.float32), torch.dtype):
        raise TpgenError(f"dtype is a torch.dtype like torch.float32, got {options['dtype']!r}")
    try:
        torch.empty(0, device=options.get("device", "cpu"))  # type: ignore[call-overload]
    except (RuntimeError, AssertionError, TypeError) as error:
        raise TpgenError(f"device {options['device']!r} cannot be used here: {str(error).splitlines()[0]}") from None


def _way_out(subject: object) -> str:
    """Say what to give in the place of something that is no product."""
    if isinstance(subject, str):
        return f"a named product is tpgen.planner.problems.find_problem({subject!r}).plan"
    modules = subject.named_modules() if isinstance(subject, nn.Module) else ()
    held = [path for path, module in modules if path and plan_in(module)]
    if held:
        more = ", …" if len(held) > _SHOWN else ""
        return (
            f"it holds {len(held)} product{'s' * (len(held) > 1)} ({', '.join(held[:_SHOWN])}{more}): give one, as in "
            f"network.get_submodule({held[0]!r}); explain_network of tpgen.inspection explains all"
        )
    return "tpgen.convert makes products of e3nn's"
