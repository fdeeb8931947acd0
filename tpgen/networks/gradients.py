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
    """Numbers of result leaves with cotangents, and of the sources to differentiate by.

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
    """Record of a backward pass through a call's results."""

    request: GradientRequest
    possible: frozenset[int]  # sources that require gradients
    again: bool  # records a graph of gradients
    is_plain: bool  # what programs serve
    is_observed: bool = False  # by hooks of a leaf
    behind: frozenset[int] | None = None  # leaves that the request's are computed from: a pass reaches them, too


# an outcome's leaves by the network, and the sources that these are computed from
Recompute = Callable[["ServedCall", BackwardPass], tuple[Sequence[Any], Sequence[Tensor]]]


def add_pass_to_requests(requests: Requests, backward_pass: BackwardPass) -> Requests:
    """Extend requests to cover another backward pass."""
    if backward_pass.again:  # the pass through its graph may ask for anything
        first = backward_pass.request | requests[0] if requests else backward_pass.request
        outer = GradientRequest(backward_pass.request.given, backward_pass.possible)
        return first, outer | requests[1] if len(requests) > 1 else outer
    if len(requests) > 1:
        return requests[0], requests[1] | GradientRequest(backward_pass.request.given, frozenset())
    return (backward_pass.request | requests[0] if requests else backward_pass.request,)


def with_gradients(network: nn.Module, requests: Requests) -> Evaluate:
    """Make a function from cotangents and arguments to outcome and gradients of each request."""

    def call_and_differentiate(cotangents: Sequence[Sequence[Tensor]], *args: Any, **options: Any) -> tuple[Any, ...]:
        outcome, _, gradients = _call_and_compute_gradients(network, requests, args, options, cotangents)
        return outcome, *gradients

    return call_and_differentiate


def example_cotangents(
    network: nn.Module, requests: Requests, signature: Signature, tensors: Sequence[Tensor]
) -> list[list[Tensor]]:
    """Cotangents for each request, of an example call's shapes."""
    args, options = signature.arguments([x.detach().requires_grad_(x.requires_grad) for x in tensors])
    with ParameterSlots(network, gradients=True).restored():
        return _call_and_compute_gradients(network, requests, args, options)[1]


def _call_and_compute_gradients(
    network: nn.Module, requests: Requests, arguments: tuple, keywords: dict[str, Any], cotangents: Any = None
) -> tuple[tuple, list[list[Tensor]], list[list[Tensor | None]]]:
    # outcome, cotangents (by default the results) and gradients of each pass
    _, tensors = Signature.split_call(arguments, keywords)
    slopes, found = [], list[Any]()
    with torch.enable_grad(), bypassing_programs():
        outcome = outcome_of(network, arguments, keywords)[1]
        leaves = flatten(outcome)[0]
        sources = sources_of(network, tensors, leaves)
        for n, request in enumerate(requests):
            results = [leaves[k] for k in sorted(request.given)] + [x for x in chain(*found[-1:]) if x is not None]
            slopes.append([x.detach() for x in results] if cotangents is None else cotangents[n])
            wanted = [sources[k] for k in sorted(request.wanted)]
            asked, again = [x for x in wanted if x.requires_grad], n + 1 < len(requests)
            # a first gradient may be constant, as one by a bias
            ends, given = zip(*(of for of in zip(results, slopes[-1], strict=True) if of[0].requires_grad), strict=True)
            with _without_tensor_hooks(asked):
                made = iter(torch.autograd.grad(ends, asked, given, create_graph=again, allow_unused=True))
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


def are_plain_cotangents(cotangents: Iterable[Tensor]) -> bool:
    """Whether programs take cotangents: none of vmap, none that are differentiated."""
    asks = torch.is_grad_enabled()
    return not any(
        is_functorch_wrapped_tensor(x) or is_legacy_batchedtensor(x) or (asks and x.requires_grad) for x in cotangents
    )


@dataclass(frozen=True, eq=False)
class ServedCall:
    """A call that a program has computed, with all that gradients need."""

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
        """Whether ``sources`` are the call's own, with unchanged values."""
        known = zip(self.sources, sources, self._versions, strict=False)
        return all(x is y and (count_writes(x) == v or n in self.before) for n, (x, y, v) in enumerate(known))

    def can_compute_gradients(
        self, stage: int, with_graph: bool, leaves: Iterable[int], source_edges: Sequence[tuple[Any, int]]
    ) -> bool:
        """Whether programs compute the running pass's gradients; ``source_edges`` are autograd's edges to sources."""
        if stage + with_graph >= len(self.requests) or not self.requests[stage].given.issuperset(leaves):
            return False
        wanted = self.requests[stage].wanted
        return not any(
            find_used_gradients(repeat(True), compress(source_edges, (n not in wanted for n in self.places)))
        )

    def run_gradient_stage(
        self,
        stage: int,
        stage_inputs: dict[int, Tensor],
        cotangents: Sequence[Tensor | None],
        shapes_and_dtypes: Sequence[Any],
    ) -> tuple[dict[int, Tensor], dict[int, Tensor]] | None:
        """Gradients by source number, and tensors for the next stage by number; None if the program fails.

        None among ``cotangents`` is zero, of shape and dtype ``shapes_and_dtypes``.
        """
        programs = self.program.gradients
        assert programs is not None
        numbers, of = programs.cotangents[stage], programs.written.stages[stage]
        filled = (
            torch.zeros(shape, dtype=dtype) if x is None else x
            for x, (shape, dtype) in zip(cotangents, shapes_and_dtypes, strict=True)
        )
        more = dict(zip(numbers, filled, strict=True))
        made = programs.run(stage, stage_inputs | more)
        if made is None:
            return None
        given = {n for n, x in zip(numbers, cotangents, strict=True) if x is not None}
        rows = zip(self.differentiated_sources(stage), made, of.depends, strict=False)
        found = {n: x for n, x, depends in rows if not (depends and given.isdisjoint(depends))}  # zeros depend on none
        kept = more | dict(zip(of.saves, made[len(of.places) :], strict=True))
        return clone_tensors_that_share_memory(found, (stage_inputs | kept).values()), kept

    def differentiated_sources(self, stage: int) -> list[int]:
        """Numbers of the sources whose gradients a stage returns."""
        programs, wanted = self.program.gradients, sorted(self.requests[stage].wanted)
        assert programs is not None
        return [wanted[n] for n in programs.written.stages[stage].places]


def clone_tensors_that_share_memory(tensors: dict[int, Tensor], others: Iterable[Tensor]) -> dict[int, Tensor]:
    """Replace tensors by clones if sharing memory with others."""
    taken = set(map(memory_address, others))
    for n, x in tensors.items():
        tensors[n] = x.clone() if memory_address(x) in taken else x
        taken.add(memory_address(x))
    return tensors


_PASSES = torch.autograd.grad.__code__, torch.autograd.backward.__code__


class _InnerPass(NamedTuple):
    known: dict[int, Tensor]  # for the next stage
    cotangents: tuple[Tensor | None, ...]


def find_inputs_of_running_grad() -> list[Tensor]:
    """Computed tensors among the inputs of the running `torch.autograd.grad`."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code not in _PASSES:
        frame = frame.f_back
    asked = () if frame is None else pytree.tree_leaves(frame.f_locals["inputs"])
    return [x for x in asked if isinstance(x, Tensor) and x.grad_fn is not None]


def attach_graph(call: ServedCall, stage_inputs: dict[int, Tensor], results: dict[int, Tensor]) -> list[Tensor]:
    """Make ``results`` differentiable by the call's sources, to any order; stages read ``stage_inputs``."""
    own, sources = (
        clone_tensors_that_share_memory(results, stage_inputs.values()),
        [call.sources[n] for n in call.places],
    )
    with torch.enable_grad():
        *found, _ = _ResultsOfProgramCall.apply(call, list(own.values()), stage_inputs, *sources)
    within = {n: ref(x) for n, x in zip(results, found, strict=True) if n in call.graphs.within}
    found[0].grad_fn.within = within
    return found


class _ServedCallHolder(Tensor):
    """An empty tensor that carries a `ServedCall` among saved tensors."""

    call: ServedCall


class _ResultsOfProgramCall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, call: ServedCall, results: list[Tensor], stage_inputs: dict[int, Tensor], *_sources: Tensor
    ) -> tuple[Tensor, ...]:
        # the last result leads gradients of gradients here; the call is freed with what is saved
        """Return results, and a link for gradients of gradients."""
        ctx.set_materialize_grads(False)
        link, holder = torch.zeros(()), _ServedCallHolder()
        holder.call = call
        ctx.save_for_backward(link, holder, *stage_inputs.values())
        ctx.numbers, ctx.inner = list(stage_inputs), {}
        ctx.like = {n: (x.shape, x.dtype) for n, x in zip(call.graphs.led, results, strict=True)}
        return *results, link

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple:
        """Gradients by sources, by programs or else by the network."""
        inner = ctx.inner.pop(current_pass(), [])
        link, holder, *saved = ctx.saved_tensors
        call = holder.call
        known = dict(zip(ctx.numbers, saved, strict=True))
        given = {n: g for n, g in zip(call.graphs.led, cotangents, strict=False) if g is not None}
        _refuse_gradients_by_inner_results(ctx, given)
        found: Any = _compute_gradients_by_programs(ctx, call, given, inner, known, link)
        if found is None:
            found = _compute_gradients_by_network(ctx, call, given, inner)
        return None, None, None, *(found.get(n) for n in call.places)


def _refuse_gradients_by_inner_results(ctx: Any, cotangents: dict[int, Tensor]) -> None:
    results = {n: x for n, of in ctx.within.items() if (x := of()) is not None and x.grad_fn is ctx}
    asked = [id(x) for x in find_inputs_of_running_grad()] if results else ()
    for n, x in results.items():
        if cotangents.keys() - {n} and (x.retains_grad or x._backward_hooks or id(x) in asked):
            raise InputError(
                "a gradient by a result that other results are computed from is none of a program: "
                "convert the network with program=False"
            )


def _compute_gradients_by_programs(
    ctx: Any,
    call: ServedCall,
    cotangents: dict[int, Tensor],
    inner_passes: list[_InnerPass],
    stage_inputs: dict[int, Tensor],
    link: Tensor,
) -> dict[int, Tensor] | None:
    again, stage = torch.is_grad_enabled(), len(inner_passes)
    inside = (x for one in inner_passes for x in one.cotangents if x is not None)
    if not are_plain_cotangents(chain(cotangents.values(), inside)) or not call.can_compute_gradients(
        stage, again, cotangents, ctx.next_functions
    ):
        return None
    leaves = sorted(call.requests[stage].given)
    if again and len(cotangents) < len(leaves):
        return None
    slopes, like = [cotangents.get(n) for n in leaves], [ctx.like[n] for n in leaves]
    for one in inner_passes:
        stage_inputs, slopes = stage_inputs | one.known, [*slopes, *one.cotangents]
        like += [(call.sources[n].shape, call.sources[n].dtype) for n in call.differentiated_sources(0)]
    with torch.no_grad():
        made = call.run_gradient_stage(stage, stage_inputs, slopes, like)
    if made is None or not again:
        return made and made[0]
    found, kept = made
    return dict(zip(found, _GradientsOfProgramCall.apply(ctx.inner, kept, list(found.values()), link), strict=True))


def _compute_gradients_by_network(
    ctx: Any, call: ServedCall, cotangents: dict[int, Tensor], inner_passes: list[_InnerPass]
) -> dict[int, Tensor | None]:
    again, asking, programs = torch.is_grad_enabled(), call.graphs.asking, call.program.gradients
    wanted = compress(call.places, find_used_gradients(repeat(True), ctx.next_functions))
    request, plain = (
        GradientRequest.from_numbers(cotangents, wanted),
        not inner_passes and are_plain_cotangents(cotangents.values()),
    )
    with torch.enable_grad():
        leaves, known = call.recompute(call, BackwardPass(request, frozenset(call.places), again, plain))
        known = [*known, *(leaves[n] for n in asking)]
        sources = {n: known[n] for n in call.places}
        pairs: list[Any] = [(leaves[n], g) for n, g in cotangents.items()]
        for one in inner_passes:
            first = [leaves[n] for n in sorted(call.requests[0].given)]
            assert programs is not None
            slopes = [one.known[n] for n in programs.cotangents[0]]
            within = {n: sources[n] for n in call.differentiated_sources(0)}
            outer = dict(zip(within, one.cotangents, strict=True))
            pairs += [(x, outer[n]) for n, x in _differentiate_by_sources(first, slopes, within, True).items()]
    pairs = [(x, g) for x, g in pairs if x is not None and x.requires_grad and g is not None]
    if not pairs:
        return {}
    results, by = zip(*pairs, strict=True)
    return _differentiate_by_sources(results, by, sources, again)


def _differentiate_by_sources(
    results: Sequence[Tensor], cotangents: Sequence[Tensor], sources: dict[int, Tensor], create_graph: bool
) -> dict[int, Tensor | None]:
    # of a tensor in several places, in one of these; of none that has been frozen since
    places = list({id(x): n for n, x in sources.items() if x.requires_grad}.values())
    wanted = [sources[n] for n in places]
    with _without_tensor_hooks(wanted):
        found = torch.autograd.grad(results, wanted, cotangents, create_graph=create_graph, allow_unused=True)
    return dict(zip(places, found, strict=True))


class _GradientsOfProgramCall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        inner_passes: dict[int, list[_InnerPass]],
        stage_inputs: dict[int, Tensor],
        gradients: list[Tensor],
        _link: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return ``gradients``."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*stage_inputs.values())
        ctx.inner, ctx.numbers = inner_passes, list(stage_inputs)
        return tuple(gradients)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple:
        # the results' node runs next
        """Keep cotangents of gradients for the results' backward."""
        known = dict(zip(ctx.numbers, ctx.saved_tensors, strict=True))
        ctx.inner.setdefault(current_pass(), []).append(_InnerPass(known, cotangents))
        return (None,) * 4
