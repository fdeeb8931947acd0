"""Laws of memory, gradient mode and other state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tpgen.base._torch import pytree
from tpgen.networks.results import opened_fields
from tpgen.tools.inspection.report.values import describe_error
from tpgen.tools.verification.findings import NotCompared, Outcome
from tpgen.tools.verification.laws import Outcomes, pair_results, prefix_part_names
from tpgen.tools.verification.randomness import RANDOM, is_torch_generator, read_held_states, read_shared_states
from tpgen.tools.verification.subject import Subject, TensorsByName, name_leaf

# What a whole process shares: how it is read and set, and two values, of which one call finds the one, one the other.
SHARED: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], tuple[Any, Any]]] = {
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype, (torch.float32, torch.float64)),
    "whether gradients are taken": (torch.is_grad_enabled, torch.set_grad_enabled, (True, False)),
    "the number of threads": (torch.get_num_threads, torch.set_num_threads, (1, 2)),
    "the precision of matrix products": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
        ("highest", "high"),
    ),
    "whether algorithms are deterministic": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
        (False, True),
    ),
}
SEEDS = (7919, 104729)  # which no network sets itself
DRAWN = "a call in training goes on with random numbers of torch's, as dropout does"

ASKED = "a call sets requires_grad of its caller's tensor, as some potentials mean to"
ADDED = "a call adds or removes this entry of its caller's, as some networks mean to"
# What torch says where a network takes gradients, as of an energy, and no graph is kept.
UNTRACKED = ("does not require grad", "nference tensor")


class Touched(Exception):
    """A call changes state outside its module."""


def check_untouched(subject: Subject) -> Outcomes:
    """Check that calls change no parameters, inputs, random states or process settings."""
    subject = subject.with_advancing_randomness()
    module, given = subject.fresh_copy(), subject.arguments()
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    for parameter in module.parameters():
        parameter.grad = None
    found = []
    with _restore_process_state_after():
        for number in (0, 1):
            for _, write, values in SHARED.values():
                write(values[number])
            with suppress(Exception):  # some take no gradients where nobody asks for any
                subject.call(module, given)
            found += [name for name, (read, _, values) in SHARED.items() if read() != values[number]]
    both = [_find_seeded_and_advanced_generators(subject, module, tracked) for tracked in (True, False)]
    seeded, drawn = ([name for names in each for name in names] for each in zip(*both, strict=True))
    meant = [name for name in drawn if module.training and is_torch_generator(module, name)]
    found += [f"the seed of {name}" for name in seeded]
    found += [f"the state of {name}" for name in drawn if name not in meant]
    found += [f"the gradient of {name}" for name, p in module.named_parameters() if p.grad is not None]
    found += [f"the {what} of {name}" for name, what in _find_inputs_that_a_call_writes(subject, module)]
    exchanged, added = _find_container_entries_a_call_changes(subject, module)
    found += [f"{name} of its caller's" for name in exchanged]
    touched = Touched(f"a call changes {', '.join(dict.fromkeys(found))}")
    outcomes: dict = {"": touched if found else (torch.zeros(1), torch.zeros(1))}
    outcomes |= dict.fromkeys(meant, DRAWN) | dict.fromkeys(added, ADDED)
    after = dict(module.named_parameters())
    same = {name: (after[name].detach().double(), x.double()) for name, x in before.items() if x.numel()}
    return outcomes | _find_inputs_set_to_require_gradients(subject, module) | same


def _find_seeded_and_advanced_generators(subject: Subject, module: Any, tracked: bool) -> tuple[list[str], list[str]]:
    # a seed was set if the state after a call does not depend on the state before
    began, after, held = [], [], []
    with _restore_process_state_after():
        for seed in SEEDS:
            for _, _, begin in RANDOM.values():
                begin(seed)
            began.append(read_shared_states())
            with suppress(Exception), torch.set_grad_enabled(tracked):
                subject.call(module, subject.arguments())
            after.append(read_shared_states())
            held.append(read_held_states(module))
    of_process = [name for name in RANDOM if after[0][name] != began[0][name]]
    seeded = [name for name in of_process if after[0][name] == after[1][name]]
    further = [name for name, state in held[0].items() if held[1].get(name) != state]
    return seeded, [name for name in of_process if name not in seeded] + further


def _find_inputs_that_a_call_writes(subject: Subject, module: Any) -> list[tuple[str, str]]:
    # Writes of a call into its inputs: their memory, which may not count them, or gradients.
    given, expected = subject.arguments(), subject.arguments()
    before = {name: x._version for name, x in given.items()}
    subject.call(module, given)
    other = [name for name, x in given.items() if x._version != before[name] or not _has_same_bits(x, expected[name])]
    written = [(name, "memory") for name in other]
    return written + [(name, "gradient") for name, x in given.items() if x.is_leaf and x.grad is not None]


def _find_container_entries_a_call_changes(subject: Subject, module: Any) -> tuple[list[str], list[str]]:
    # What a call puts into dicts and lists of its caller's: other values, and entries that are new or gone.
    if subject.call_arguments is None:
        return [], []
    given, before = (subject.call_arguments(subject.arguments()) for _ in range(2))
    with suppress(Exception):
        module(*given)
    after, known = _container_entries(given), _container_entries(before)
    both = [(name, after[name], x) for name, x in known.items() if isinstance(x, Tensor) and name in after]
    other = [name for name, y, x in both if not (isinstance(y, Tensor) and _has_same_bits(y.to(x), x))]
    return other, sorted(after.keys() ^ known.keys())


def _container_entries(argument: Any) -> dict[str, Any]:
    found = pytree.tree_flatten_with_path(opened_fields(list(argument)))[0]
    return {name_leaf(path[1:]): x for path, x in found if len(path) > 1}


def _has_same_bits(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and torch.equal(x.detach().nan_to_num(), y.nan_to_num())


def _find_inputs_set_to_require_gradients(subject: Subject, module: Any) -> dict[str, str]:
    given = subject.arguments()
    subject.call(module, given)
    return dict.fromkeys((name for name, x in given.items() if x.requires_grad), ASKED)


@contextmanager
def _restore_process_state_after() -> Iterator[None]:
    # Give state that a process shares back as it was before.
    before = [(write, read()) for read, write, *_ in (*SHARED.values(), *RANDOM.values())]
    try:
        yield
    finally:
        for write, value in before:
            write(value)


def _copy_with_gaps_in_memory(x: Tensor) -> Tensor:
    # With a gap after each entry, which holds no number.
    room = x.new_full((*x.shape, 2), float("nan") if x.is_floating_point() else 0)
    return room[..., 0].copy_(x)


def _copy_with_permuted_strides(x: Tensor) -> Tensor:
    # With the axes in another order.
    return x.clone() if x.dim() < 2 else x.movedim(-1, 0).contiguous().movedim(0, -1)


def _copy_with_offset_in_memory(x: Tensor) -> Tensor:
    # One entry behind the beginning of its memory.
    room = x.new_full((x.numel() + 1,), float("nan") if x.is_floating_point() else 0)
    return room[1:].view(x.shape).copy_(x)


MEMORY: dict[str, Callable[[Tensor], Tensor]] = {
    "with gaps": _copy_with_gaps_in_memory,
    "with axes in another order": _copy_with_permuted_strides,
    "not at the beginning": _copy_with_offset_in_memory,
}


def compare_memory_layouts(subject: Subject) -> Outcomes:
    """Compare results of inputs with other strides and offsets."""
    found: dict = {}
    expected = subject.detached_results(subject.module, subject.arguments())
    for part, laid in MEMORY.items():
        try:
            got = subject.detached_results(subject.module, {name: laid(x) for name, x in subject.arguments().items()})
        except RuntimeError as error:  # such as a view: it says so, and is not silently wrong
            found[part] = f"it does not take them: {str(error).strip().splitlines()[0][:120]}"
            continue
        found |= prefix_part_names(part, pair_results(got, expected))
    return found


def compare_gradient_modes(subject: Subject) -> Outcomes:
    """Compare results under no_grad, inference_mode, input gradients and frozen parameters."""
    frozen = None if subject.fresh is None else subject.fresh_copy().requires_grad_(False)

    def call(module: nn.Module = subject.module, input_gradients: bool = False) -> TensorsByName:
        given = subject.arguments()
        for x in given.values():
            x.requires_grad_(input_gradients and x.is_floating_point())
        return subject.detached_results(module, given)

    expected = call()
    cases: dict[str, Callable[[], TensorsByName]] = {
        "no_grad": torch.no_grad()(call),
        "inference_mode": torch.inference_mode()(call),
        "inputs with gradients": partial(call, input_gradients=True),
    }
    if frozen is not None:
        cases["frozen parameters"] = partial(call, frozen)
    found: dict[str, Outcome] = {}
    for part, called in cases.items():
        try:
            got = called()
        except Exception as error:
            if not any(said in str(error) for said in UNTRACKED):
                found[part] = f"it does not run so: {describe_error(error)}"
            continue
        found |= prefix_part_names(part, pair_results(got, expected))
    return found


def compare_also_without_gradients(compare: Callable[[Subject], Outcomes]) -> Callable[[Subject], Outcomes]:
    """Wrap a law to add outcomes that differ under no_grad."""

    def compare_both(subject: Subject) -> Outcomes:
        found = dict(compare(subject))
        try:
            untracked = torch.no_grad()(compare)(subject)
        except Exception as error:
            if any(said in str(error) for said in UNTRACKED) or isinstance(error, NotCompared):
                return found
            return {**found, "without gradients": error}
        other = {name: x for name, x in untracked.items() if name in found and _is_outcome_changed(x, found[name])}
        return {**found, **prefix_part_names("without gradients", other)}

    return compare_both


def _is_outcome_changed(untracked: Outcome, tracked: Outcome) -> bool:
    # Whether an outcome is another one: pairs that are as near as before are the same.
    if not isinstance(untracked, tuple) or not isinstance(tracked, tuple) or untracked[0].shape != tracked[0].shape:
        return isinstance(untracked, (tuple, Exception))
    return not torch.allclose(untracked[0], tracked[0], rtol=1e-9, atol=1e-9, equal_nan=True)
