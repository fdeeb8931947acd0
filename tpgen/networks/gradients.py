"""Gradients of a network's results, for callers who differentiate."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, compress, repeat
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn

from tpgen.base._torch import current_pass, is_functorch_wrapped_tensor, is_legacy_batchedtensor, pytree
from tpgen.base.errors import InputError
from tpgen.base.locks import cached_property
from tpgen.kernels.runtime.registration import find_used_gradients
from tpgen.networks.bypass import bypassing_programs
from tpgen.networks.outcome import LeavesWithGraphs, outcome_of, sources_of
from tpgen.networks.results import flatten, memory_address
from tpgen.networks.signature import ParameterSlots, Signature
from tpgen.networks.step_program import Program
from tpgen.networks.step_trace import Evaluate
from tpgen.nn.plain_tensors import count_writes


@dataclass(frozen=True)
class GradientRequest:
    """An outcome's leaves with cotangents, and places of the sources whose gradients are wanted.

    Sources are the network's parameters and buffers, then a call's tensors.
    """

    given: frozenset[int]
    wanted: frozenset[int]

    @staticmethod
    def from_numbers(given: Iterable[int], wanted: Iterable[int]) -> GradientRequest:
        """Request of numbered leaves ``given`` and sources ``wanted``."""
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


# an outcome's leaves by the network, and the sources that these are computed from
Recompute = Callable[["ServedCall", BackwardPass], tuple[Sequence[Any], Sequence[Tensor]]]


def add_pass_to_requests(requests: Requests, found: BackwardPass) -> Requests:
    """Extend requests to another pass."""
    if found.again:  # the pass through its graph may ask for anything
        first = found.request | requests[0] if requests else found.request
        outer = GradientRequest(found.request.given, found.possible)
        return first, outer | requests[1] if len(requests) > 1 else outer
    if len(requests) > 1:
        return requests[0], requests[1] | GradientRequest(found.request.given, frozenset())
    return (found.request | requests[0] if requests else found.request,)


def with_gradients(network: nn.Module, requests: Requests) -> Evaluate:
    """Function from cotangents and the network's arguments to outcome and gradients."""

    def call_and_differentiate(cotangents: Sequence[Sequence[Tensor]], *args: Any, **options: Any) -> tuple[Any, ...]:
        outcome, _, gradients = _call_and_serve_gradient_requests(network, requests, args, options, cotangents)
        return outcome, *gradients

    return call_and_differentiate


def example_cotangents(
    network: nn.Module, requests: Requests, signature: Signature, tensors: Sequence[Tensor]
) -> list[list[Tensor]]:
    """Cotangents of an example's sizes."""
    args, options = signature.arguments([x.detach().requires_grad_(x.requires_grad) for x in tensors])
    with ParameterSlots(network, gradients=True).restored():
        return _call_and_serve_gradient_requests(network, requests, args, options)[1]


def _call_and_serve_gradient_requests(
    network: nn.Module, requests: Requests, args: tuple, options: dict[str, Any], cotangents: Any = None
) -> tuple[tuple, list[list[Tensor]], list[list[Tensor | None]]]:
    # outcome, cotangents (by default the results) and gradients of each pass
    _, tensors = Signature.split_call(args, options)
    slopes, found = [], list[Any]()
    with torch.enable_grad(), bypassing_programs():
        outcome = outcome_of(network, args, options)[1]
        leaves = flatten(outcome)[0]
        sources = sources_of(network, tensors, leaves)
        for n, request in enumerate(requests):
            results = [leaves[k] for k in sorted(request.given)] + [x for x in chain(*found[-1:]) if x is not None]
            slopes.append([x.detach() for x in results] if cotangents is None else cotangents[n])
            wanted = [sources[k] for k in sorted(request.wanted)]
            asked, again = [x for x in wanted if x.requires_grad], n + 1 < len(requests)
            with _without_tensor_hooks(asked):
                made = iter(torch.autograd.grad(results, asked, slopes[-1], create_graph=again, allow_unused=True))
            found.append([next(made) if x.requires_grad else None for x in wanted])
    return outcome, slopes, found


@contextmanager
def _without_tensor_hooks(leaves: Sequence[Tensor]) -> Iterator[None]:
    # which run in the caller's pass alone
    tables = [(x._backward_hooks, dict(x._backward_hooks)) for x in leaves if x._backward_hooks]
    for now, _ in tables:
        now.clear()
    try:
        yield
    finally:
        for now, was in tables:
            now.update(was)


def is_served(cotangents: Iterable[Tensor]) -> bool:
    """Whether programs take cotangents: none of vmap, none that are differentiated."""
    asks = torch.is_grad_enabled()
    return not any(
        is_functorch_wrapped_tensor(x) or is_legacy_batchedtensor(x) or (asks and x.requires_grad) for x in cotangents
    )


@dataclass(frozen=True, eq=False)
class ServedCall:
    """A call that a program has served."""

    program: Program
    requests: Requests  # that the program serves
    graphs: LeavesWithGraphs
    sources: list[Tensor]
    before: dict[int, Tensor]  # buffers, before the call has updated these
    generator: Tensor | None  # state of torch's generator before a call that draws
    recompute: Recompute
    _versions: list[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_versions", list(map(count_writes, self.sources)))

    @cached_property
    def places(self) -> list[int]:
        """Places of sources that require gradients."""
        return [n for n, x in enumerate(self.sources) if x.requires_grad and n in self.graphs.used]

    def is_unchanged(self, sources: Sequence[Tensor]) -> bool:
        """Whether sources have the values that the call found."""
        known = zip(self.sources, sources, self._versions, strict=False)
        return all(x is y and (count_writes(x) == v or n in self.before) for n, (x, y, v) in enumerate(known))

    def covers(self, stage: int, again: bool, given: Iterable[int], edges: Sequence[tuple[Any, int]]) -> bool:
        """Whether programs serve the running pass; ``edges`` of autograd's graph lead to sources."""
        if stage + again >= len(self.requests) or not self.requests[stage].given.issuperset(given):
            return False
        wanted = self.requests[stage].wanted
        return not any(find_used_gradients(repeat(True), compress(edges, (n not in wanted for n in self.places))))

    def gradients(
        self, stage: int, known: dict[int, Tensor], slopes: Sequence[Tensor | None], like: Sequence[Any]
    ) -> tuple[dict[int, Tensor], dict[int, Tensor]] | None:
        """Gradients by place, and tensors for the next stage by number; None if the program fails.

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
        kept = more | dict(zip(of.saves, made[len(of.places) :], strict=True))
        return apart(found, (known | kept).values()), kept

    def stage_places(self, stage: int) -> list[int]:
        """Places of a stage's gradients."""
        programs, wanted = self.program.gradients, sorted(self.requests[stage].wanted)
        assert programs is not None
        return [wanted[n] for n in programs.written.stages[stage].places]


def apart(found: dict[int, Tensor], others: Iterable[Tensor]) -> dict[int, Tensor]:
    """Copy tensors that share memory with others."""
    taken = set(map(memory_address, others))
    for n, x in found.items():
        found[n] = x.clone() if memory_address(x) in taken else x
        taken.add(memory_address(x))
    return found


_PASSES = torch.autograd.grad.__code__, torch.autograd.backward.__code__


class _InnerPass(NamedTuple):
    known: dict[int, Tensor]  # for the next stage
    cotangents: tuple[Tensor | None, ...]


def differentiated_by() -> list[Tensor]:
    """Computed tensors by which the running pass differentiates."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code not in _PASSES:
        frame = frame.f_back
    asked = () if frame is None else pytree.tree_leaves(frame.f_locals["inputs"])
    return [x for x in asked if isinstance(x, Tensor) and x.grad_fn is not None]


def attach_graph(call: ServedCall, known: dict[int, Tensor], made: dict[int, Tensor]) -> list[Tensor]:
    """Make results ``made`` differentiable to any order by the call's sources; stages read ``known``."""
    own, sources = apart(made, known.values()), [call.sources[n] for n in call.places]
    with torch.enable_grad():
        *found, _ = _ResultsOfServedCall.apply(call, list(own.values()), known, *sources)
    within = {n: ref(x) for n, x in zip(made, found, strict=True) if n in call.graphs.within}
    found[0].grad_fn.within = within
    return found


class _CallHolder(Tensor):
    """An empty tensor that holds a call."""

    call: ServedCall


class _ResultsOfServedCall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, call: ServedCall, made: list[Tensor], known: dict[int, Tensor], *_sources: Tensor
    ) -> tuple[Tensor, ...]:
        # the last result leads gradients of gradients here; the call is freed with what is saved
        ctx.set_materialize_grads(False)
        link, holder = torch.zeros(()), _CallHolder()
        holder.call = call
        ctx.save_for_backward(link, holder, *known.values())
        ctx.numbers, ctx.inner = list(known), {}
        ctx.like = {n: (x.shape, x.dtype) for n, x in zip(call.graphs.led, made, strict=True)}
        return *made, link

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple:
        inner = ctx.inner.pop(current_pass(), [])
        link, holder, *saved = ctx.saved_tensors
        call = holder.call
        known = dict(zip(ctx.numbers, saved, strict=True))
        given = {n: g for n, g in zip(call.graphs.led, cotangents, strict=False) if g is not None}
        _refuse_gradients_by_inner_results(ctx, given)
        found: Any = _gradients_by_programs(ctx, call, given, inner, known, link)
        if found is None:
            found = _gradients_by_network(ctx, call, given, inner)
        return None, None, None, *(found.get(n) for n in call.places)


def _refuse_gradients_by_inner_results(ctx: Any, given: dict[int, Tensor]) -> None:
    results = {n: x for n, of in ctx.within.items() if (x := of()) is not None and x.grad_fn is ctx}
    asked = [id(x) for x in differentiated_by()] if results else ()
    for n, x in results.items():
        if given.keys() - {n} and (x.retains_grad or x._backward_hooks or id(x) in asked):
            raise InputError(
                "a gradient by a result that other results are computed from is none of a program: "
                "convert the network with program=False"
            )


def _gradients_by_programs(
    ctx: Any,
    call: ServedCall,
    given: dict[int, Tensor],
    inner: list[_InnerPass],
    known: dict[int, Tensor],
    link: Tensor,
) -> dict[int, Tensor] | None:
    again, stage = torch.is_grad_enabled(), len(inner)
    inside = (x for one in inner for x in one.cotangents if x is not None)
    if not is_served(chain(given.values(), inside)) or not call.covers(stage, again, given, ctx.next_functions):
        return None
    leaves = sorted(call.requests[stage].given)
    if again and len(given) < len(leaves):
        return None
    slopes, like = [given.get(n) for n in leaves], [ctx.like[n] for n in leaves]
    for one in inner:
        known, slopes = known | one.known, [*slopes, *one.cotangents]
        like += [(call.sources[n].shape, call.sources[n].dtype) for n in call.stage_places(0)]
    with torch.no_grad():
        made = call.gradients(stage, known, slopes, like)
    if made is None or not again:
        return made and made[0]
    found, kept = made
    return dict(zip(found, _GradientsOfServedCall.apply(ctx.inner, kept, list(found.values()), link), strict=True))


def _gradients_by_network(
    ctx: Any, call: ServedCall, given: dict[int, Tensor], inner: list[_InnerPass]
) -> dict[int, Tensor | None]:
    again, asking, programs = torch.is_grad_enabled(), call.graphs.asking, call.program.gradients
    wanted = compress(call.places, find_used_gradients(repeat(True), ctx.next_functions))
    request, plain = GradientRequest.from_numbers(given, wanted), not inner and is_served(given.values())
    with torch.enable_grad():
        leaves, known = call.recompute(call, BackwardPass(request, frozenset(call.places), again, plain))
        known = [*known, *(leaves[n] for n in asking)]
        sources = {n: known[n] for n in call.places}
        pairs: list[Any] = [(leaves[n], g) for n, g in given.items()]
        for one in inner:
            first = [leaves[n] for n in sorted(call.requests[0].given)]
            assert programs is not None
            slopes = [one.known[n] for n in programs.cotangents[0]]
            within = {n: sources[n] for n in call.stage_places(0)}
            outer = dict(zip(within, one.cotangents, strict=True))
            pairs += [(x, outer[n]) for n, x in _differentiate_by_sources(first, slopes, within, True).items()]
    pairs = [(x, g) for x, g in pairs if x is not None and x.requires_grad and g is not None]
    if not pairs:
        return {}
    results, cotangents = zip(*pairs, strict=True)
    return _differentiate_by_sources(results, cotangents, sources, again)


def _differentiate_by_sources(
    results: Sequence[Tensor], slopes: Sequence[Tensor], sources: dict[int, Tensor], again: bool
) -> dict[int, Tensor | None]:
    # of a tensor in several places, in one of these; of none that has been frozen since
    places = list({id(x): n for n, x in sources.items() if x.requires_grad}.values())
    wanted = [sources[n] for n in places]
    with _without_tensor_hooks(wanted):
        found = torch.autograd.grad(results, wanted, slopes, create_graph=again, allow_unused=True)
    return dict(zip(places, found, strict=True))


class _GradientsOfServedCall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inner: dict[int, list[_InnerPass]], known: dict[int, Tensor], found: list[Tensor], _link: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*known.values())
        ctx.inner, ctx.numbers = inner, list(known)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple:
        # the results' node runs next
        known = dict(zip(ctx.numbers, ctx.saved_tensors, strict=True))
        ctx.inner.setdefault(current_pass(), []).append(_InnerPass(known, cotangents))
        return (None,) * 4
