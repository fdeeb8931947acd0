"""Laws of compiled, repeated, threaded and saved calls."""

from __future__ import annotations

import io
import logging
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tpgen.base._e3nn import default_dtype
from tpgen.base._torch import replaced_attribute
from tpgen.base.clock import with_threads
from tpgen.compiler.backends import compile_program
from tpgen.compiler.config import Config
from tpgen.networks.conversion.operations.splines import has_splined_nets
from tpgen.networks.copies import copy_of
from tpgen.tools.inspection.report.sections import REMARK, is_missing_irrep_length
from tpgen.tools.inspection.report.values import describe_error
from tpgen.tools.verification.derivatives import (
    compute_gradients_of_order,
    draw_normal_tensors,
    is_freed_graph_error,
    sum_weighted_entries,
)
from tpgen.tools.verification.findings import GotAndExpected, GotAndExpectedOrReason, largest_entry, tolerance_of
from tpgen.tools.verification.holding import AttributePath, find_parameters_used_by_call, find_unregistered_tensors
from tpgen.tools.verification.laws import GotAndExpectedByPart, pair_results, prefix_part_names
from tpgen.tools.verification.randomness import find_advanced_random_states, is_torch_generator
from tpgen.tools.verification.subject import CallableModule, ModuleUnderTest, TensorsByName

REPEATS, DRAWING = 3, 16  # calls, and how many of a network that draws random numbers
NEAR, PLACES = 1e-2, 4  # how far inputs are moved, relative to the largest entry, and how often: sums round otherwise
CHANGE = 0.1  # of an attribute's entries, relative to the largest or to one
NUMBERS = (2, 3, 5)  # of threads: work that is cut into equal parts may lose what is left over by one of them


def compare_compiled(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare results and gradients under `torch.compile` with eager ones."""
    torch.compiler.reset()  # beyond its limit of compilations torch would run eager code
    run = compile_program(subject.module, Config(backend=subject.backend))
    within = _has_autograd_call_inside_forward(subject)
    compared = _compute_detached_results if within else _compute_results_and_gradients
    try:
        with _silence_warnings_and_logs():
            got = compared(subject, run)
    except Exception as error:
        if is_missing_irrep_length(error):
            return {"": f"stock e3nn's too: {REMARK}"}
        if type(error).__module__.startswith("torch._dynamo"):
            return {"": f"torch.compile cannot take it: {describe_error(error)}"}
        if subject.kind == "network" and _is_raised_within_torch(error):
            return {"": f"torch cannot compile it: {describe_error(error)}"}
        raise
    return {**pair_results(got, compared(subject)), **({"gradients": WITHIN} if within else {})}


_TORCH, _OURS = str(Path(torch.__file__).parent), str(Path(__file__).parents[1])
_RUNNERS = tuple(f"{_OURS}/{name}" for name in ("verification", "compiler"))  # which stand in every traceback


def _is_raised_within_torch(error: Exception) -> bool:
    # Whether an error was raised within torch, where nothing of tpgen's was at work: stock networks fail alike.
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    ours = any(name.startswith(_OURS) and not name.startswith(_RUNNERS) for name in files)
    return files[-1].startswith(_TORCH) and not ours and "tpgen::" not in str(error)


WITHIN = (
    "torch.compile gives none, or wrong ones, of a function that takes gradients itself, without tpgen too: train "
    "such a network without it"
)


def _has_autograd_call_inside_forward(subject: ModuleUnderTest) -> bool:
    # Whether the module takes gradients within, as potentials do for forces.
    taken = []

    def wrap_to_record_calls(function: Callable[..., Any]) -> Callable[..., Any]:
        def record_and_call(*given: Any, **keywords: Any) -> Any:
            taken.append(True)
            return function(*given, **keywords)

        return record_and_call

    with replaced_attribute(torch.autograd, "grad", wrap_to_record_calls):
        _compute_detached_results(subject)
    return bool(taken)


def _compute_detached_results(subject: ModuleUnderTest, run: CallableModule | None = None) -> TensorsByName:
    return {name: y.detach() for name, y in subject(subject.given, run).items()}


@contextmanager
def _silence_warnings_and_logs() -> Iterator[None]:
    # Without what Dynamo says of the code around: what it cannot take is a finding.
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _compute_results_and_gradients(subject: ModuleUnderTest, run: CallableModule | None = None) -> TensorsByName:
    # Results, and the gradients of their combination with a cotangent, if the network keeps its graph.

    def sum_results_times_cotangents(leaves: TensorsByName, cotangents: TensorsByName) -> Tensor:
        return sum_weighted_entries(
            {name: y for name, y in subject(leaves, run).items() if y.requires_grad}, cotangents
        )

    found = _compute_detached_results(subject, run)
    try:
        slopes = compute_gradients_of_order(
            1, sum_results_times_cotangents, subject.given, draw_normal_tensors(found, seed=7)
        )
    except RuntimeError as error:
        if not is_freed_graph_error(error):
            raise
        return found
    return found | {f"gradient of {name}": g for name, g in slopes.items()}


def _choose_call_with_or_without_gradients(subject: ModuleUnderTest) -> Callable[[ModuleUnderTest], TensorsByName]:
    # with gradients, except where forces are results and splines have no second derivatives; some of torch's gradients,
    # as that of a determinant, fail if the default dtype is another
    compared = (
        _compute_detached_results
        if has_splined_nets(subject.module) and _has_autograd_call_inside_forward(subject)
        else _compute_results_and_gradients
    )
    if _needs_matching_default_dtype(subject, compared):
        return default_dtype(subject.dtype)(compared)
    return compared


def _needs_matching_default_dtype(
    subject: ModuleUnderTest, result_function: Callable[[ModuleUnderTest], TensorsByName]
) -> bool:
    if torch.get_default_dtype() == subject.dtype:
        return False
    try:
        result_function(subject)
    except RuntimeError as error:
        return "dtype" in str(error) and _is_raised_within_torch(error)
    return False


def compare_repeated_calls(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare bits of repeated calls, also on moved inputs."""
    if is_random_in_training_alone(subject):
        return {**compare_repeated_calls(subject.with_copy_in_evaluation_mode()), "training": RANDOM_LAWS}
    subject = subject.with_advancing_randomness()
    compared = _choose_call_with_or_without_gradients(subject)
    bits: dict[str, GotAndExpectedOrReason] = dict(
        _compare_results_with_first_call([compared(subject) for _ in range(REPEATS)])
    )
    number = (
        DRAWING if find_advanced_random_states(subject.module, lambda: _compute_detached_results(subject)) else REPEATS
    )
    for place in range(PLACES if subject.kind == "network" else 0):
        bits |= _compare_repeated_calls_on_moved_inputs(subject, place, number)
    return {
        **bits,
        **_remark_on_training_and_evaluation_difference(subject),
        **_remark_if_gradients_need_other_default_dtype(subject, compared),
    }


RANDOM_LAWS = (
    "calls in training draw random numbers, as dropout does: for other laws they draw the same again, and laws under "
    "which these would stand elsewhere are compared in evaluation"
)


def is_random_in_training_alone(subject: ModuleUnderTest) -> bool:
    """Whether calls draw torch's random numbers in training alone."""
    if subject.drawing is None or not subject.module.training:
        return False
    calm, drawn = (
        subject.with_copy_in_evaluation_mode().with_advancing_randomness(),
        subject.with_advancing_randomness(),
    )
    of_torch = all(
        is_torch_generator(subject.module, name)
        for name in find_advanced_random_states(drawn.module, lambda: _compute_detached_results(drawn))
    )
    return of_torch and not find_advanced_random_states(calm.module, lambda: _compute_detached_results(calm))


def has_running_statistics(module: nn.Module) -> bool:
    return any(name.rpartition(".")[2].startswith("running_") for name, _ in module.named_buffers())


def is_random(subject: ModuleUnderTest) -> bool:
    """Whether random numbers change results of equal inputs."""
    if subject.drawing is None:
        return False
    one, other = (_compute_detached_results(subject.with_advancing_randomness()) for _ in range(2))
    return any(not torch.equal(y, other[name]) for name, y in one.items() if name in other)


def _compare_repeated_calls_on_moved_inputs(
    subject: ModuleUnderTest, seed: int, call_count: int
) -> dict[str, GotAndExpected]:
    # Results of several calls near the inputs, unless the network does not take these, or gives no numbers.
    names = [subject.points] if subject.points else list(subject.given)
    draw = draw_normal_tensors({name: subject.given[name] for name in names}, seed=600 + seed)
    moved = {n: x + NEAR * x.abs().max() * draw[n] if n in draw and x.numel() else x for n, x in subject.given.items()}
    other = replace(subject, given=moved)
    try:
        found = [_compute_detached_results(other) for _ in range(call_count)]
    except Exception:
        return {}
    same = all(one.keys() == found[0].keys() for one in found)
    shapes = same and all(y.shape == found[0][name].shape for one in found for name, y in one.items())
    numbers = all(bool(y.isfinite().all()) for one in found for y in one.values())
    return (
        prefix_part_names(f"inputs moved {seed + 1}", _compare_results_with_first_call(found))
        if shapes and numbers
        else {}
    )


def _compare_results_with_first_call(results_of_calls: list[TensorsByName]) -> dict[str, GotAndExpected]:
    # Results of several calls, each beside those of the first.
    first, *again = results_of_calls
    got = {name: torch.stack([one[name] for one in again]) for name in first}
    return pair_results(got, {name: torch.stack([x] * len(again)) for name, x in first.items()})


def _remark_if_gradients_need_other_default_dtype(
    subject: ModuleUnderTest, result_function: Callable[[ModuleUnderTest], TensorsByName]
) -> dict[str, str]:
    # Errors of torch in the default dtype of the process.
    if result_function in (_compute_detached_results, _compute_results_and_gradients):
        return {}
    default = str(torch.get_default_dtype()).removeprefix("torch.")
    return {"default dtype": f"torch takes no gradients where the default dtype is {default}: compared in its own"}


def _remark_on_training_and_evaluation_difference(subject: ModuleUnderTest) -> dict[str, str]:
    if subject.fresh is None or subject.kind != "network" or has_splined_nets(subject.module):
        return {}
    try:
        one, other = (
            subject.detached_results(subject.make_fresh_copy().train(mode), subject.copy_call_arguments())
            for mode in (True, False)
        )
    except Exception as error:
        return {"modes": f"it does not run in both modes: {describe_error(error)}"}
    apart = {name: largest_entry(y - other[name]) for name, y in one.items()}
    limit = subject.slack * tolerance_of(subject.dtype)
    differ = [f"{name} by {d:.1e}" for name, d in apart.items() if not d <= limit * largest_entry(one[name])]
    return {"modes": f"training and evaluation differ: {', '.join(differ)}; it may be meant"} if differ else {}


def compare_threads(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare results on one thread and on several."""
    found, compared = [], _choose_call_with_or_without_gradients(subject)
    for number in (1, *sorted({*NUMBERS, max(2, torch.get_num_threads())})):
        with with_threads(number):
            found.append(compared(subject))
    return _compare_results_with_first_call(found)


def compare_saved_copies(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare bits of results with those of copies from a state_dict and a file."""
    found: dict = {}
    expected = _compute_detached_results(subject)
    for part, again in (("state_dict", _copy_from_state_dict), ("file", save_and_load)):
        try:
            module = again(subject.module)
        except Exception as error:
            found[part] = describe_error(error)
            continue
        found |= prefix_part_names(part, pair_results(_compute_detached_results(subject, module), expected))
    held, buffers = subject.module.state_dict(), subject.module.named_buffers()
    left = [name for name, x in buffers if name not in held and x.is_floating_point() and x.numel()]
    if subject.kind == "network" and left:
        found["buffers"] = f"no state_dict holds {', '.join(left[:8])}: they must come from the constructor"
    if subject.kind != "network":
        return found
    return {
        **found,
        **_check_deepcopy_after_call(subject),
        **_check_copy_uses_own_parameters(subject),
        **_check_tensors_are_parameters_or_buffers(subject),
    }


def _check_deepcopy_after_call(subject: ModuleUnderTest) -> dict[str, GotAndExpectedOrReason]:
    if subject.fresh is None:
        return {}
    module = subject.make_fresh_copy()
    try:
        deepcopy(module)
        subject.call(module, subject.copy_call_arguments())
    except Exception:  # other laws say so
        return {}
    try:
        deepcopy(module)
    except Exception as error:
        why = f"a call keeps tensors with their graph, and deepcopy fails: {describe_error(error)}"
        return {"copy after a call": why}
    return {}


class _SharedParameters(Exception):
    """A copy uses its original's parameters."""


def _check_copy_uses_own_parameters(subject: ModuleUnderTest) -> dict[str, GotAndExpectedOrReason]:
    # a function that a module holds may hold the original module
    if subject.fresh is None:
        return {}
    try:
        names = find_parameters_used_by_call(
            subject.module, lambda: subject.call(subject.make_fresh_copy(), subject.copy_call_arguments())
        )
    except Exception:  # other laws say so
        return {}
    said = f"a copy computes with {', '.join(names[:8])} of its original: no function that a module holds may name self"
    return {"copy": _SharedParameters(said)} if names else {}


class _Unregistered(Exception):
    """A parameter that no module registers."""


def _check_tensors_are_parameters_or_buffers(subject: ModuleUnderTest) -> dict[str, GotAndExpectedOrReason]:
    plain = _find_unregistered_tensors_that_results_use(subject)
    lost = [name for name, x in plain.items() if isinstance(x, nn.Parameter) and x.requires_grad]
    rest = [name for name in plain if name not in lost]
    found: dict[str, GotAndExpectedOrReason] = {}
    if lost:
        said = f"{', '.join(lost[:8])}: no parameters of the network, and so not trained, saved or moved"
        found["parameters"] = _Unregistered(f"{said}; hold them in an nn.ModuleList or nn.ParameterList")
    if rest:
        said = f"results depend on {', '.join(rest[:8])}, tensors that are neither parameters nor buffers"
        found["tensors"] = f"{said}: no state_dict holds them, and .to() leaves them where they are"
    return found


def _copy_from_state_dict(module: nn.Module) -> nn.Module:
    # A copy with zeros for parameters, and then with the state; what only copies hold, as of e3nn's squares, stays.
    copy, saved = copy_of(module), module.state_dict()
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.zero_()
    further = {name: x for name, x in copy.state_dict().items() if name not in saved}
    copy.load_state_dict({**further, **save_and_load(saved, weights_only=True)})
    return copy


def save_and_load(module_or_state: Any, weights_only: bool = False) -> Any:
    """Save a module or state, and load the copy."""
    held = io.BytesIO()
    torch.save(module_or_state, held)
    held.seek(0)
    return torch.load(held, weights_only=weights_only)


def _find_unregistered_tensors_that_results_use(subject: ModuleUnderTest) -> dict[str, Tensor]:
    # Tensors that results depend on, and that are neither parameters nor buffers, by name.
    plain = {} if subject.fresh is None else dict(find_unregistered_tensors(subject.fresh))
    if not plain:
        return {}
    expected, changed = (
        subject.detached_results(subject.make_fresh_copy(), subject.copy_call_arguments()),
        subject.make_fresh_copy(),
    )

    def is_any_tensor_at_paths_used(paths: Collection[AttributePath]) -> bool:
        moved = [x for place, x in find_unregistered_tensors(changed) if place in paths]
        before = [x.detach().clone() for x in moved]
        for x in moved:
            x.data.add_(CHANGE * max(1.0, float(x.detach().abs().max())))
        try:
            found = subject.detached_results(changed, subject.copy_call_arguments())
        except Exception:  # as of a table that must hold what it holds
            return True
        finally:
            for x, values in zip(moved, before, strict=True):
                x.data.copy_(values)
        return any(not torch.equal(found[name], y) for name, y in expected.items())

    if not is_any_tensor_at_paths_used(plain):
        return {}
    return {".".join(filter(None, place)): x for place, x in plain.items() if is_any_tensor_at_paths_used([place])}
