"""Registration of operators at each level of torch's dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from tpgen.base._torch import (
    BelowAutograd,
    DispatchKey,
    FunctionalizeAPI,
    FunctionalizeInterpreter,
    VmapInterpreter,
    add_batch_dim,
    add_vmap_dim,
    after_autograd,
    bypass_backward_wrapper,
    enter_vmap,
    forward_mode,
    functorch_interpreter,
    has_tangents,
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
    leave_vmap,
    living,
    remove_batch_dim,
    will_run,
    without_vmap_dim,
)
from tpgen.base.errors import BackendError
from tpgen.kernels.runtime.call import FormCall
from tpgen.kernels.runtime.targets import KERNEL_TARGETS

library = torch.library.Library("tpgen", "DEF")

# dispatch keys of the devices that some target takes: there is nothing between them and a kernel
KERNEL_KEYS = {getattr(DispatchKey, t.device.upper()) for t in KERNEL_TARGETS.values()}
_DEVICES = ("CPU", "CUDA", "XPU", "MPS")  # where no target is, operators say so, and what to do
# torch.func enters the dispatcher at this key; an operator whose derivative is written in Python is transformed there.
_TRANSFORMS = "FuncTorchDynamicLayerFrontMode"


def define_operator(schema: str) -> None:
    """Define a torch operator by schema.

    Raises `BackendError` if a deployed network defined the operator.
    """
    try:
        library.define(schema, tags=torch.Tag.needs_contiguous_strides)
    except RuntimeError as error:
        raise BackendError(
            "the operators of a deployed network (libtpgen.so) are in this process already: import tpgen before you "
            "load one, and it serves both"
        ) from error


C = TypeVar("C")  # calls
Unfold = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]


class Differentiable(Generic[C]):
    """Base of computations with own derivatives, which autograd records by `record_call`."""

    def call(self, tensors: Sequence[Any], other_arguments: tuple) -> C:
        raise NotImplementedError

    def constants(self, other_arguments: tuple) -> int:
        """Number of last tensors, which have no derivative."""
        return 0

    def should_ask_for_used_gradients(self, call: C) -> bool:
        return True

    def pull_back(
        self, call: C, cotangents: Sequence[Tensor | None], wanted_gradients: Sequence[bool]
    ) -> Sequence[Tensor | None]:
        """Gradients of a call's tensors, without indices, from cotangents of results; None for unwanted."""
        raise NotImplementedError

    def push_forward(self, call: C, tangents: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        raise NotImplementedError


class Operator(Differentiable[FormCall]):
    """Base of differentiable torch operators, implemented at all levels of the dispatcher."""

    def split_arguments(self, call: FormCall) -> tuple[tuple[Tensor, ...], tuple]:
        """Split a call into tensors and other arguments."""
        tensors, at, *rest = call
        return (*tensors, *at), (len(at), *rest)

    def call(self, tensors: Sequence[Any], other_arguments: tuple) -> FormCall:
        """Make a call from tensors (indices last) and other arguments."""
        count = len(tensors) - other_arguments[0]
        return FormCall(tensors[:count], tensors[count:], *other_arguments[1:])

    def constants(self, other_arguments: tuple) -> int:
        return other_arguments[0]

    def evaluate(self, call: FormCall, keys: Any = None) -> list[Tensor]:
        """Compute a call's results by the dispatcher, at levels of ``keys``."""
        raise NotImplementedError

    def run_kernels(self, call: FormCall) -> list[Tensor]:
        raise NotImplementedError

    def empty_results(self, call: FormCall) -> list[Tensor]:
        """Results with shapes, without values."""
        raise NotImplementedError

    def build_kernels_ahead(self, call: FormCall, wanted_gradients: Sequence[bool]) -> None:
        raise NotImplementedError

    def fold(self, size: int, dims: Sequence[int | None], call: FormCall) -> tuple[FormCall, Unfold]:
        """Fold a vmap batch into rows; return the call and an `Unfold`."""
        raise NotImplementedError

    def compute_in_cpp(self, call: FormCall) -> Sequence[Tensor]:
        """Compute a call in C++, without a graph; empty if refused."""
        raise NotImplementedError

    def needs_grad(self, call: FormCall) -> bool:
        """Whether a tensor of a call requires a gradient."""
        for x in call.tensors:  # noqa: SIM110 (small products notice a generator)
            if x.requires_grad:
                return True
        return False

    # -- by the shortest way -------------------------------------------------------------------------------------------

    def compute_and_record_in_cpp(self, call: FormCall) -> Sequence[Tensor]:
        """Compute a call in C++, recorded by autograd; empty if a transform or trace needs the dispatcher."""
        if torch.compiler.is_compiling() or has_tangents():
            return ()
        made = self.compute_in_cpp(call)
        if made and torch.is_grad_enabled() and self.needs_grad(call):
            tensors, rest = self.split_arguments(call)
            return record_call(self, made, rest, *tensors)
        return made

    def compute(self, call: FormCall) -> Sequence[Tensor]:
        """Compute a call's results in C++ if possible, else by the dispatcher."""
        return self.compute_and_record_in_cpp(call) or self.evaluate(call)

    # -- levels of the dispatcher --------------------------------------------------------------------------------------

    def compute_for_autograd(self, dispatch_keys: Any, call: FormCall) -> list[Tensor]:
        """Compute at the dispatcher's autograd level; record if a tensor requires gradients."""
        records = torch.is_grad_enabled() and self.needs_grad(call)
        if not records and not has_tangents():
            return self.compute_below_autograd(dispatch_keys, (), call)
        tensors, rest = self.split_arguments(call)
        wanted = [x is not None and x.requires_grad for x in tensors[: len(tensors) - self.constants(rest)]]
        with torch.no_grad(), forward_mode(False):
            made = self.compute_below_autograd(dispatch_keys, wanted, call)
        return list(_RecordedCall.apply(self, made, rest, *tensors))

    def compute_below_autograd(
        self, dispatch_keys: Any, wanted_gradients: Sequence[bool], call: FormCall
    ) -> list[Tensor]:
        """Compute below the dispatcher's autograd level; also build kernels of wanted gradients."""
        rest = dispatch_keys & after_autograd
        if rest.highestPriorityTypeId() in KERNEL_KEYS:  # nothing in between: save a round through the dispatcher
            if any(wanted_gradients):
                self.build_kernels_ahead(call, wanted_gradients)
            return self.run_kernels(call)
        with BelowAutograd():
            return self.evaluate(call, rest)

    def compute_under_torch_func(self, call: FormCall) -> list[Tensor]:
        """Compute a call on tensors of torch.func's transforms."""
        interpreter = functorch_interpreter()
        if isinstance(interpreter, FunctionalizeInterpreter):
            return self.compute_under_functionalize(FunctionalizeAPI(interpreter), call)
        if isinstance(interpreter, VmapInterpreter):
            return self.compute_under_vmap(interpreter, call)
        tensors, rest = self.split_arguments(call)
        return list(_TransformedCall.apply(self, rest, *tensors))

    def compute_under_vmap(self, interpreter: VmapInterpreter, call: FormCall) -> list[Tensor]:
        """Fold a vmap batch into rows, compute, and return batched tensors."""
        tensors, rest = self.split_arguments(call)
        level = interpreter.level()
        below, dims = zip(*[without_vmap_dim(x, level) for x in living(tensors)], strict=True)
        with interpreter.lower():
            if all(dim is None for dim in dims):
                return self.evaluate(self.call(below, rest))
            folded, unfold = self.fold(interpreter.batch_size(), dims, self.call(below, rest))
            results = unfold(self.evaluate(folded))
        return [add_vmap_dim(x, 0, level) for x in results]

    def compute_under_functionalize(self, level: Any, call: FormCall) -> list[Tensor]:
        """Unwrap functional tensors, compute, and wrap the results."""
        tensors, rest = self.split_arguments(call)
        below = self.call(level.unwrap_tensors(tensors), rest)
        with level.redispatch_to_next():
            made = self.evaluate(below)
        return list(level.wrap_tensors(tuple(made)))

    def compute_under_legacy_vmap(self, call: FormCall) -> list[Tensor]:
        """As `compute_under_vmap`, for the vmap of ``is_grads_batched``."""
        with leave_legacy_vmap() as level:
            tensors, rest = self.split_arguments(call)
            size, dims, below = unwrap_legacy_batched_tensors(level, tensors)
            folded, unfold = self.fold(size, dims, self.call(below, rest))
            return [add_batch_dim(x, 0, level) for x in unfold(self.evaluate(folded))]


def register_operator(operator: Operator, name: str) -> None:
    """Register an operator at every level of the dispatcher."""

    def implementation_by(level: Callable[[FormCall], list[Tensor]]) -> Callable:
        return lambda *args, **options: level(FormCall.from_arguments(*args, **options))

    def call_for_autograd(keys: Any, *args: Any, **options: Any) -> Any:
        return operator.compute_for_autograd(keys, FormCall.from_arguments(*args, **options))

    for device in _DEVICES:
        library.impl(name, implementation_by(operator.run_kernels), device)
    library.impl(name, call_for_autograd, "Autograd", with_keyset=True)
    library.impl(name, implementation_by(operator.compute_under_torch_func), _TRANSFORMS)
    library.impl(name, implementation_by(operator.compute_under_legacy_vmap), "Batched")
    torch.library.register_fake(f"tpgen::{name}", implementation_by(operator.empty_results), lib=library)


def define_operator_without_derivatives(
    name: str, compute: Callable[..., Tensor], compute_empty: Callable[..., Tensor]
) -> None:
    """Register an operator without derivatives; ``compute_empty`` returns results without values."""
    library.impl(name, compute, "CompositeExplicitAutograd")
    library.impl(name, torch.library.fallthrough_kernel, "Autograd")
    torch.library.register_fake(f"tpgen::{name}", compute_empty, lib=library)


# -- autograd and torch.func -------------------------------------------------------------------------------------------


class _RecordedCall(torch.autograd.Function):
    """Autograd node of a call whose results are computed already."""

    @staticmethod
    def forward(
        ctx: Any, operator: Differentiable, results: Sequence[Tensor], other_arguments: tuple, *tensors: Any
    ) -> tuple[Tensor, ...]:
        """Save a call for derivatives; return results computed before."""
        _save_call_for_derivatives(ctx, operator, other_arguments, tensors)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple:
        """Gradients of a call's tensors; None for unused."""
        operator, rest = ctx.made_by
        tensors, constants = ctx.saved_tensors, operator.constants(rest)  # asked once: checkpointing unpacks at each
        call, wanted = operator.call(tensors, rest), ctx.needs_input_grad[3 : 3 + len(tensors) - constants]
        if operator.should_ask_for_used_gradients(call):
            # the nodes behind the tensors among the arguments, so none for an absent tensor
            wanted = find_used_gradients(wanted, ctx.next_functions)
        return (None, None, None, *operator.pull_back(call, cotangents, wanted), *[None] * constants)

    @staticmethod
    def jvp(ctx: Any, _operator: Any, _made: Any, _rest: Any, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        return _compute_result_tangents(ctx, tangents)


def get_unchecked_apply(function: Any) -> Callable[..., Any]:
    """An autograd function's ``apply``, without torch.func's checks."""
    bypass_backward_wrapper(function)
    return super(torch.autograd.Function, function).apply


# of what differentiates calls, results, all else of a call, and its tensors
record_call = get_unchecked_apply(_RecordedCall)


class _TransformedCall(torch.autograd.Function):
    """Autograd node of a call under torch.func."""

    @staticmethod
    def forward(operator: Operator, other_arguments: tuple, *tensors: Any) -> tuple[Tensor, ...]:
        return tuple(operator.evaluate(operator.call(tensors, other_arguments)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        operator, rest, *tensors = inputs
        _save_call_for_derivatives(ctx, operator, rest, tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple:
        """Gradients of a call's tensors."""
        operator, rest = ctx.made_by
        tensors, constants = ctx.saved_tensors, operator.constants(rest)
        call, wanted = operator.call(tensors, rest), ctx.needs_input_grad[2 : 2 + len(tensors) - constants]
        return (None, None, *operator.pull_back(call, cotangents, wanted), *[None] * constants)

    @staticmethod
    def jvp(ctx: Any, _operator: Any, _rest: Any, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        return _compute_result_tangents(ctx, tangents)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, operator: Operator, other_arguments: tuple, *tensors: Any) -> tuple:
        """Compute a call with the vmap batch folded into rows."""
        folded, unfold = operator.fold(info.batch_size, in_dims[2:], operator.call(tensors, other_arguments))
        tensors, other_arguments = operator.split_arguments(folded)
        results = unfold(_TransformedCall.apply(operator, other_arguments, *tensors))
        return results, (0,) * len(results)


def _save_call_for_derivatives(
    ctx: Any, operator: Differentiable, other_arguments: tuple, tensors: Sequence[Any]
) -> None:
    ctx.save_for_backward(*tensors)
    if has_tangents():
        ctx.save_for_forward(*tensors)
    ctx.made_by = operator, other_arguments
    ctx.set_materialize_grads(False)


def _compute_result_tangents(ctx: Any, tangents: Sequence[Tensor | None]) -> tuple:
    operator, rest = ctx.made_by
    tensors = ctx.saved_tensors
    with_tangents = len(tensors) - operator.constants(rest)
    return tuple(operator.push_forward(operator.call(tensors, rest), tangents[:with_tangents]))


def add_results(total: Tensor, addend: Tensor) -> Tensor:
    """Add a tensor to ``total``, in place if autograd and transforms allow."""
    recorded = torch.is_grad_enabled() or has_tangents()
    if recorded or is_functorch_wrapped_tensor(addend) or is_legacy_batchedtensor(addend):
        return total + addend
    return total.add_(addend)


def find_used_gradients(possible: Iterable[bool], nodes: Iterable[tuple[Any, int]]) -> list[bool]:
    """Whether the running backward uses each possible gradient."""
    return [yes and _is_reached_by_backward(node) for yes, (node, _) in zip(possible, nodes, strict=False)]


def _is_reached_by_backward(node: Any) -> bool:
    try:
        return will_run(node)
    except RuntimeError:  # a leaf that `torch.autograd.grad` was asked for
        return True


@contextmanager
def leave_legacy_vmap() -> Iterator[int]:
    """Context outside the innermost legacy vmap; yield the level left."""
    level = leave_vmap() + 1
    try:
        yield level
    finally:
        enter_vmap()


def unwrap_legacy_batched_tensors(level: int, values: Sequence[Any]) -> tuple[int, list[int | None], list[Any]]:
    """Unwrap legacy batched tensors at a vmap level; return batch size, batch axes (0 or None), values."""
    batched: dict[int, Tensor] = {
        # of a tensor that only a level further out has batched this makes one with a batch of one
        n: remove_batch_dim(x, level, 1, 0)
        for n, x in enumerate(values)
        if isinstance(x, Tensor) and is_legacy_batchedtensor(x)
    }
    size = max(x.shape[0] for x in batched.values())
    below = [batched[n].expand(size, *batched[n].shape[1:]) if n in batched else x for n, x in enumerate(values)]
    return size, [0 if n in batched else None for n in range(len(below))], below
