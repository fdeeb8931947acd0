"""Gradients of a network's results, for callers who differentiate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, compress, repeat
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tpgen.base._torch import is_functorch_wrapped_tensor, is_legacy_batchedtensor
from tpgen.kernels.runtime.registration import find_used_gradients
from tpgen.networks.bypass import bypassing_programs
from tpgen.networks.outcome import outcome_of
from tpgen.networks.results import flatten, memory_address
from tpgen.networks.signature import ParameterSlots, Signature
from tpgen.networks.step_program import Program
from tpgen.networks.step_trace import Evaluate


@dataclass(frozen=True)
class GradientRequest:
    """An outcome's leaves with cotangents, and places of the sources whose gradients are wanted.

    Sources are the network's parameters and buffers, then a call's tensors.
    """

    given: frozenset[int]
    wanted: frozenset[int]

    @staticmethod
    def of(given: Iterable[int], wanted: Iterable[int]) -> GradientRequest:
        """Collect leaves and sources."""
        return GradientRequest(frozenset(given), frozenset(wanted))

    def __or__(self, other: GradientRequest) -> GradientRequest:
        return GradientRequest(self.given | other.given, self.wanted | other.wanted)


# one pass; or a pass that records a graph, and a pass through this graph, which has cotangents of gradients, too
Requests = tuple[GradientRequest, ...]


@dataclass(frozen=True)
class BackwardPass:
    """A backward pass through a call's outcome."""

    request: GradientRequest
    possible: frozenset[int]  # sources that require gradients
    again: bool  # records a graph of gradients
    is_plain: bool  # what programs serve
    is_observed: bool = False  # by hooks of a leaf
    behind: frozenset[int] | None = None  # leaves that the request's are computed from: a pass reaches them, too


Recompute = Callable[[BackwardPass], Sequence[Tensor | None]]


def with_pass(requests: Requests, found: BackwardPass) -> Requests:
    """Extend requests to another pass."""
    if found.again:  # the pass through its graph may ask for anything
        first = found.request | requests[0] if requests else found.request
        outer = GradientRequest(found.request.given, found.possible)
        return first, outer | requests[1] if len(requests) > 1 else outer
    if len(requests) > 1:
        return requests[0], requests[1] | GradientRequest(found.request.given, frozenset())
    return (found.request | requests[0] if requests else found.request,)


def sources_of(network: nn.Module, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the sources of requests."""
    return [*ParameterSlots(network, gradients=True).tensors(), *tensors]


def with_gradients(network: nn.Module, requests: Requests) -> Evaluate:
    """Return a function from cotangents and the network's arguments to outcome and gradients."""

    def evaluate(cotangents: Sequence[Sequence[Tensor]], *args: Any, **options: Any) -> tuple[Any, ...]:
        outcome, _, gradients = _differentiate(network, requests, args, options, cotangents)
        return outcome, *gradients

    return evaluate


def example_cotangents(
    network: nn.Module, requests: Requests, signature: Signature, tensors: Sequence[Tensor]
) -> list[list[Tensor]]:
    """Return cotangents of an example's sizes."""
    args, options = signature.arguments([x.detach().requires_grad_(x.requires_grad) for x in tensors])
    with ParameterSlots(network, gradients=True).restored():
        return _differentiate(network, requests, args, options)[1]


def _differentiate(
    network: nn.Module, requests: Requests, args: tuple, options: dict[str, Any], cotangents: Any = None
) -> tuple[tuple, list[list[Tensor]], list[list[Tensor | None]]]:
    # outcome, cotangents (by default the results) and gradients of each pass
    _, tensors = Signature.of(args, options)
    slopes, found = [], list[Any]()
    with torch.enable_grad(), bypassing_programs():
        outcome = outcome_of(network, args, options)[1]
        leaves, sources = flatten(outcome)[0], sources_of(network, tensors)
        for n, request in enumerate(requests):
            results = [leaves[k] for k in sorted(request.given)] + [x for x in chain(*found[-1:]) if x is not None]
            slopes.append([x.detach() for x in results] if cotangents is None else cotangents[n])
            wanted = [sources[k] for k in sorted(request.wanted)]
            asked, again = [x for x in wanted if x.requires_grad], n + 1 < len(requests)
            made = iter(torch.autograd.grad(results, asked, slopes[-1], create_graph=again, allow_unused=True))
            found.append([next(made) if x.requires_grad else None for x in wanted])
    return outcome, slopes, found


def is_served(cotangents: Iterable[Tensor]) -> bool:
    """Whether programs take cotangents: none of vmap, none that are differentiated."""
    asks = torch.is_grad_enabled()
    return not any(
        is_functorch_wrapped_tensor(x) or is_legacy_batchedtensor(x) or (asks and x.requires_grad) for x in cotangents
    )


@dataclass(frozen=True)
class ServedCall:
    """A call that a program has served."""

    program: Program
    requests: Requests  # that the program serves
    led: tuple[int, ...]  # the outcome's leaves that have a graph
    places: tuple[int, ...]  # of the sources that require gradients
    recompute: Recompute  # these leaves, by the network

    def covers(self, stage: int, again: bool, given: Iterable[int], edges: Sequence[tuple[Any, int]]) -> bool:
        """Whether programs serve the running pass; ``edges`` of autograd's graph lead to sources."""
        if stage + again >= len(self.requests) or not self.requests[stage].given.issuperset(given):
            return False
        wanted = self.requests[stage].wanted
        return not any(find_used_gradients(repeat(True), compress(edges, (n not in wanted for n in self.places))))

    def gradients(
        self, stage: int, known: dict[int, Tensor], slopes: Sequence[Tensor | None], like: Sequence[Any]
    ) -> tuple[dict[int, Tensor], dict[int, Tensor]] | None:
        """Return gradients by place, and tensors for the next stage by number; None if the program fails.

        None among cotangents ``slopes`` is zero, of shape and dtype ``like``.
        """
        programs = self.program.gradients
        assert programs is not None
        numbers, of = programs.cotangents[stage], programs.written.stages[stage]
        filled = (
            torch.zeros(shape, dtype=dtype) if x is None else x for x, (shape, dtype) in zip(slopes, like, strict=True)
        )
        more = dict(zip(numbers, filled, strict=True))
        made = programs.run(stage, known | more)
        if made is None:
            return None
        given = {n for n, x in zip(numbers, slopes, strict=True) if x is not None}
        rows = zip(self.stage_places(stage), made, of.depends, strict=False)
        found = {n: x for n, x, depends in rows if not (depends and given.isdisjoint(depends))}  # zeros depend on none
        return _apart(found, (known | more).values()), more | dict(zip(of.saves, made[len(of.places) :], strict=True))

    def stage_places(self, stage: int) -> list[int]:
        """Places of a stage's gradients."""
        programs, wanted = self.program.gradients, sorted(self.requests[stage].wanted)
        assert programs is not None
        return [wanted[n] for n in programs.written.stages[stage].places]


def _apart(found: dict[int, Tensor], others: Iterable[Tensor]) -> dict[int, Tensor]:
    # gradients in memory of their own, since optimisers write into gradients of leaves
    taken = set(map(memory_address, others))
    for n, x in found.items():
        found[n] = x.clone() if memory_address(x) in taken else x
        taken.add(memory_address(x))
    return found


class _InnerPass(NamedTuple):
    known: dict[int, Tensor]  # for the next stage
    cotangents: tuple[Tensor | None, ...]


def attach_graph(
    call: ServedCall, known: dict[int, Tensor], made: Sequence[Tensor], sources: Sequence[Tensor]
) -> list[Tensor]:
    """Make results ``made`` differentiable to any order by ``sources``; stages read ``known``."""
    with torch.enable_grad():
        return list(_Results.apply(call, list(made), known, *sources))[:-1]


class _Results(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, call: ServedCall, made: list[Tensor], known: dict[int, Tensor], *sources: Tensor
    ) -> tuple[Tensor, ...]:
        # the last result leads gradients of gradients here
        ctx.set_materialize_grads(False)
        link = torch.zeros(())
        ctx.save_for_backward(link, *sources, *known.values())
        ctx.call, ctx.numbers, ctx.inner = call, list(known), {}
        ctx.like = {n: (x.shape, x.dtype) for n, x in zip(call.led, made, strict=True)}
        return *made, link

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple:
        call, inner = ctx.call, ctx.inner.pop(get_ident(), [])
        link, *saved = ctx.saved_tensors
        sources = dict(zip(call.places, saved, strict=False))
        known = dict(zip(ctx.numbers, saved[len(sources) :], strict=True))
        given = {n: g for n, g in zip(call.led, cotangents, strict=False) if g is not None}
        found: Any = _gradients_by_programs(ctx, given, inner, sources, known, link)
        if found is None:
            found = _gradients_by_network(ctx, given, inner, sources)
        return None, None, None, *(found.get(n) for n in call.places)


def _gradients_by_programs(
    ctx: Any,
    given: dict[int, Tensor],
    inner: list[_InnerPass],
    sources: dict[int, Tensor],
    known: dict[int, Tensor],
    link: Tensor,
) -> dict[int, Tensor] | None:
    call, again, stage = ctx.call, torch.is_grad_enabled(), len(inner)
    if not is_served(given.values()) or not call.covers(stage, again, given, ctx.next_functions):
        return None
    leaves = sorted(call.requests[stage].given)
    if again and len(given) < len(leaves):
        return None
    slopes, like = [given.get(n) for n in leaves], [ctx.like[n] for n in leaves]
    for one in inner:
        known, slopes = known | one.known, [*slopes, *one.cotangents]
        like += [(sources[n].shape, sources[n].dtype) for n in call.stage_places(0)]
    with torch.no_grad():
        made = call.gradients(stage, known, slopes, like)
    if made is None or not again:
        return made and made[0]
    found, kept = made
    return dict(zip(found, _Gradients.apply(ctx.inner, kept, link, *found.values()), strict=True))


def _gradients_by_network(
    ctx: Any, given: dict[int, Tensor], inner: list[_InnerPass], sources: dict[int, Tensor]
) -> dict[int, Tensor | None]:
    call, again = ctx.call, torch.is_grad_enabled()
    wanted = compress(call.places, find_used_gradients(repeat(True), ctx.next_functions))
    request, plain = GradientRequest.of(given, wanted), not inner and is_served(given.values())
    with torch.enable_grad():
        computed = call.recompute(BackwardPass(request, frozenset(sources), again, plain))
        leaves = dict(zip(call.led, computed, strict=True))
        pairs = [(leaves[n], g) for n, g in given.items()]
        for one in inner:
            first = [leaves[n] for n in sorted(call.requests[0].given)]
            slopes = [one.known[n] for n in call.program.gradients.cotangents[0]]
            places = [sources[n] for n in call.stage_places(0)]
            gradients = torch.autograd.grad(first, places, slopes, create_graph=True, allow_unused=True)
            pairs += [(x, g) for x, g in zip(gradients, one.cotangents, strict=True) if g is not None]
    pairs = [(x, g) for x, g in pairs if x is not None and x.requires_grad]
    if not pairs:
        return {}
    results, given_slopes = zip(*pairs, strict=True)
    found = torch.autograd.grad(results, list(sources.values()), given_slopes, create_graph=again, allow_unused=True)
    return dict(zip(sources, found, strict=True))


class _Gradients(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inner: dict[int, list[_InnerPass]], known: dict[int, Tensor], _link: Tensor, *found: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*known.values())
        ctx.inner, ctx.numbers = inner, list(known)
        return found

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple:
        # the results' node runs next
        known = dict(zip(ctx.numbers, ctx.saved_tensors, strict=True))
        ctx.inner.setdefault(get_ident(), []).append(_InnerPass(known, cotangents))
        return (None,) * (3 + len(cotangents))
