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
from tpgen.tools.verification.findings import GotAndExpectedOrReason, NotCompared
from tpgen.tools.verification.laws import GotAndExpectedByPart, pair_results, prefix_part_names
from tpgen.tools.verification.randomness import (
    RANDOM,
    is_torch_generator,
    read_generator_states_of_network,
    read_random_states_of_process,
)
from tpgen.tools.verification.subject import ModuleUnderTest, TensorsByName, format_leaf_path

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


def check_side_effects_of_call(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Check that calls change no parameters, inputs, random states or process settings."""
    subject = subject.with_advancing_randomness()
    module, given = subject.make_fresh_copy(), subject.copy_call_arguments()
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    for parameter in module.parameters():
        parameter.grad = None
    found = []
    with _restore_process_state_on_exit():
        for number in (0, 1):
            for _, write, values in SHARED.values():
                write(values[number])
            with suppress(Exception):  # some take no gradients where nobody asks for any
                subject.call(module, given)
            found += [name for name, (read, _, values) in SHARED.items() if read() != values[number]]
    both = [_find_generators_that_a_call_seeds_and_advances(subject, module, tracked) for tracked in (True, False)]
    seeded, drawn = ([name for names in each for name in names] for each in zip(*both, strict=True))
    meant = [name for name in drawn if module.training and is_torch_generator(module, name)]
    found += [f"the seed of {name}" for name in seeded]
    found += [f"the state of {name}" for name in drawn if name not in meant]
    found += [f"the gradient of {name}" for name, p in module.named_parameters() if p.grad is not None]
    found += [
        f"the {what} of {name}" for name, what in _find_inputs_whose_memory_or_gradient_a_call_writes(subject, module)
    ]
    exchanged, added = _find_changed_and_added_entries_of_argument_containers(subject, module)
    found += [f"{name} of its caller's" for name in exchanged]
    touched = Touched(f"a call changes {', '.join(dict.fromkeys(found))}")
    outcomes: dict = {"": touched if found else (torch.zeros(1), torch.zeros(1))}
    outcomes |= dict.fromkeys(meant, DRAWN) | dict.fromkeys(added, ADDED)
    after = dict(module.named_parameters())
    same = {name: (after[name].detach().double(), x.double()) for name, x in before.items() if x.numel()}
    return outcomes | _remark_on_inputs_set_to_require_gradients(subject, module) | same


def _find_generators_that_a_call_seeds_and_advances(
    subject: ModuleUnderTest, module: nn.Module, with_gradients: bool
) -> tuple[list[str], list[str]]:
    # a seed was set if the state after a call does not depend on the state before
    began, after, held = [], [], []
    with _restore_process_state_on_exit():
        for seed in SEEDS:
            for _, _, begin in RANDOM.values():
                begin(seed)
            began.append(read_random_states_of_process())
            with suppress(Exception), torch.set_grad_enabled(with_gradients):
                subject.call(module, subject.copy_call_arguments())
            after.append(read_random_states_of_process())
            held.append(read_generator_states_of_network(module))
    of_process = [name for name in RANDOM if after[0][name] != began[0][name]]
    seeded = [name for name in of_process if after[0][name] == after[1][name]]
    further = [name for name, state in held[0].items() if held[1].get(name) != state]
    return seeded, [name for name in of_process if name not in seeded] + further


def _find_inputs_whose_memory_or_gradient_a_call_writes(
    subject: ModuleUnderTest, module: nn.Module
) -> list[tuple[str, str]]:
    # Writes of a call into its inputs: their memory, which may not count them, or gradients.
    given, expected = subject.copy_call_arguments(), subject.copy_call_arguments()
    before = {name: x._version for name, x in given.items()}
    subject.call(module, given)
    other = [name for name, x in given.items() if x._version != before[name] or not _has_same_bits(x, expected[name])]
    written = [(name, "memory") for name in other]
    return written + [(name, "gradient") for name, x in given.items() if x.is_leaf and x.grad is not None]


def _find_changed_and_added_entries_of_argument_containers(
    subject: ModuleUnderTest, module: nn.Module
) -> tuple[list[str], list[str]]:
    # What a call puts into dicts and lists of its caller's: other values, and entries that are new or gone.
    if subject.call_arguments is None:
        return [], []
    given, before = (subject.call_arguments(subject.copy_call_arguments()) for _ in range(2))
    with suppress(Exception):
        module(*given)
    after, known = _list_container_entries_by_path(given), _list_container_entries_by_path(before)
    both = [(name, after[name], x) for name, x in known.items() if isinstance(x, Tensor) and name in after]
    other = [name for name, y, x in both if not (isinstance(y, Tensor) and _has_same_bits(y.to(x), x))]
    return other, sorted(after.keys() ^ known.keys())


def _list_container_entries_by_path(argument: Any) -> dict[str, Any]:
    found = pytree.tree_flatten_with_path(opened_fields(list(argument)))[0]
    return {format_leaf_path(path[1:]): x for path, x in found if len(path) > 1}


def _has_same_bits(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and torch.equal(x.detach().nan_to_num(), y.nan_to_num())


def _remark_on_inputs_set_to_require_gradients(subject: ModuleUnderTest, module: nn.Module) -> dict[str, str]:
    given = subject.copy_call_arguments()
    subject.call(module, given)
    return dict.fromkeys((name for name, x in given.items() if x.requires_grad), ASKED)


@contextmanager
def _restore_process_state_on_exit() -> Iterator[None]:
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


def compare_memory_layouts(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare results of inputs with other strides and offsets."""
    found: dict = {}
    expected = subject.detached_results(subject.module, subject.copy_call_arguments())
    for part, laid in MEMORY.items():
        try:
            got = subject.detached_results(
                subject.module, {name: laid(x) for name, x in subject.copy_call_arguments().items()}
            )
        except RuntimeError as error:  # such as a view: it says so, and is not silently wrong
            found[part] = f"it does not take them: {str(error).strip().splitlines()[0][:120]}"
            continue
        found |= prefix_part_names(part, pair_results(got, expected))
    return found


def compare_gradient_modes(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare results under no_grad, inference_mode, input gradients and frozen parameters."""
    frozen = None if subject.fresh is None else subject.make_fresh_copy().requires_grad_(False)

    def call_module(module: nn.Module = subject.module, inputs_require_grad: bool = False) -> TensorsByName:
        given = subject.copy_call_arguments()
        for x in given.values():
            x.requires_grad_(inputs_require_grad and x.is_floating_point())
        return subject.detached_results(module, given)

    expected = call_module()
    cases: dict[str, Callable[[], TensorsByName]] = {
        "no_grad": torch.no_grad()(call_module),
        "inference_mode": torch.inference_mode()(call_module),
        "inputs with gradients": partial(call_module, inputs_require_grad=True),
    }
    if frozen is not None:
        cases["frozen parameters"] = partial(call_module, frozen)
    found: dict[str, GotAndExpectedOrReason] = {}
    for part, called in cases.items():
        try:
            got = called()
        except Exception as error:
            if not any(said in str(error) for said in UNTRACKED):
                found[part] = f"it does not run so: {describe_error(error)}"
            continue
        found |= prefix_part_names(part, pair_results(got, expected))
    return found


def wrap_law_to_compare_also_without_gradients(
    compare: Callable[[ModuleUnderTest], GotAndExpectedByPart],
) -> Callable[[ModuleUnderTest], GotAndExpectedByPart]:
    """Wrap a law to add comparisons that differ under no_grad."""

    def compare_with_and_without_gradients(subject: ModuleUnderTest) -> GotAndExpectedByPart:
        found = dict(compare(subject))
        try:
            untracked = torch.no_grad()(compare)(subject)
        except Exception as error:
            if any(said in str(error) for said in UNTRACKED) or isinstance(error, NotCompared):
                return found
            return {**found, "without gradients": error}
        other = {name: x for name, x in untracked.items() if name in found and _is_comparison_changed(x, found[name])}
        return {**found, **prefix_part_names("without gradients", other)}

    return compare_with_and_without_gradients


def _is_comparison_changed(without_gradients: GotAndExpectedOrReason, with_gradients: GotAndExpectedOrReason) -> bool:
    # Whether an outcome is another one: pairs that are as near as before are the same.
    if (
        not isinstance(without_gradients, tuple)
        or not isinstance(with_gradients, tuple)
        or without_gradients[0].shape != with_gradients[0].shape
    ):
        return isinstance(without_gradients, (tuple, Exception))
    return not torch.allclose(without_gradients[0], with_gradients[0], rtol=1e-9, atol=1e-9, equal_nan=True)
