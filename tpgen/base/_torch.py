"""Torch's private names; other modules import these only from here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from operator import attrgetter
from threading import RLock
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from tpgen.base.locks import ForkedLock

_FLOOR = "2.10"  # the oldest torch that has them all, but for those with another way


class Private(NamedTuple):
    """Private name of torch: module, name, tpgen's use, fallback if missing (empty: error)."""

    module: str
    name: str
    use: str
    without: str = ""


_TRANSFORMS = "to leave calls under torch.func, vmap and tracers to the way that has their rules"
_VMAP = "rules of operators under the older vmap (is_grads_batched=True, vectorize=True)"
_OPERATORS = "to go from one level of the dispatcher to the next in operators of tpgen's"
_GRAPHS = "graphs without numbers: explain, dump, reports, compile_step"
_CONSTANTS = "constants with values while shapes are computed"
_REPORTS = "tpgen dump and tpgen report"
_STEP = "compile_step"
_POSTPONED = "weights of edges that wait for a sum by node"
_SORTS = "edges sorted once in a graph of torch.compile"

NAMES: dict[str, Private] = {
    "is_functorch_wrapped_tensor": Private("torch._C._functorch", "is_functorch_wrapped_tensor", _TRANSFORMS),
    "is_legacy_batchedtensor": Private("torch._C._functorch", "is_legacy_batchedtensor", _TRANSFORMS),
    "transform_level": Private("torch._C._functorch", "maybe_current_level", _TRANSFORMS),
    "is_tracing": Private("torch._C", "_is_tracing", _TRANSFORMS),
    "dispatch_modes": Private("torch._C", "_len_torch_dispatch_stack", _TRANSFORMS),
    "function_modes": Private("torch._C", "_len_torch_function_stack", _TRANSFORMS),
    "saved_tensor_hooks": Private("torch._C._autograd", "_top_saved_tensors_default_hooks", _TRANSFORMS),
    "sequence_number": Private("torch._C._autograd", "_get_sequence_nr", "explain_network: times backward"),
    "without_functions": Private("torch._C", "DisableTorchFunctionSubclass", _POSTPONED),
    "plain_function": Private("torch._C", "_disabled_torch_function_impl", _POSTPONED),
    "throw_on_access": Private("torch._C", "_set_throw_on_mutable_data_ptr", _POSTPONED),
    "wrapper_of": Private("torch", "Tensor._make_wrapper_subclass", _POSTPONED),
    "has_kernel": Private("torch._C", "_dispatch_has_kernel_for_dispatch_key", _STEP),
    "dispatch_mode": Private("torch._C", "_get_dispatch_mode", _TRANSFORMS),
    "DispatchModeKey": Private("torch._C", "_TorchDispatchModeKey", _TRANSFORMS),
    "DispatchKey": Private("torch._C", "DispatchKey", _OPERATORS),
    "after_autograd": Private("torch._C", "_after_autograd_keyset", _OPERATORS),
    "BelowAutograd": Private("torch._C", "_AutoDispatchBelowAutograd", _OPERATORS),
    "forward_mode": Private("torch.autograd.forward_ad", "_set_fwd_grad_enabled", _OPERATORS),
    "current_node": Private("torch._C", "_current_autograd_node", "to see what a backward pass computes"),
    "current_pass": Private("torch._C", "_current_graph_task_id", "to see what a backward pass computes"),
    "will_run": Private("torch._C", "_will_engine_execute_node", "to compute no gradient that nobody asked for"),
    "FunctionalizeInterpreter": Private("torch._functorch.pyfunctorch", "FunctionalizeInterpreter", _OPERATORS),
    "functorch_interpreter": Private(
        "torch._functorch.pyfunctorch", "retrieve_current_functorch_interpreter", _OPERATORS
    ),
    "VmapInterpreter": Private("torch._functorch.pyfunctorch", "VmapInterpreter", _OPERATORS),
    "add_vmap_dim": Private("torch._functorch.predispatch", "_add_batch_dim", _OPERATORS),
    "living": Private("torch._functorch.utils", "unwrap_dead_wrappers", _OPERATORS),
    "without_vmap_dim": Private("torch._C._functorch", "_unwrap_batched", _OPERATORS),
    "FunctionalizeAPI": Private("torch._subclasses.functional_tensor", "FunctorchFunctionalizeAPI", _OPERATORS),
    "enter_vmap": Private("torch._C", "_vmapmode_increment_nesting", _VMAP),
    "leave_vmap": Private("torch._C", "_vmapmode_decrement_nesting", _VMAP),
    "add_batch_dim": Private("torch", "_add_batch_dim", _VMAP),
    "remove_batch_dim": Private("torch", "_remove_batch_dim", _VMAP),
    "early_modes": Private("torch._ops", "_len_torch_dispatch_stack_pre_dispatch", _CONSTANTS),
    "disabled_modes": Private("torch.utils._python_dispatch", "_disable_current_modes", _CONSTANTS),
    "DispatchMode": Private("torch.utils._python_dispatch", "TorchDispatchMode", "operations and bytes of a call"),
    "FakeTensorMode": Private("torch._subclasses.fake_tensor", "FakeTensorMode", _GRAPHS),
    "OpOverload": Private("torch._ops", "OpOverload", _GRAPHS),
    "pytree": Private("torch.utils", "_pytree", "tensors in tuples, lists and dicts, as torch itself finds them"),
    "ConstantSource": Private("torch._dynamo.source", "ConstantSource", _STEP),
    "shape_config": Private("torch.fx.experimental", "_config", "deploy: sizes of 0 and 1"),
    "symbolic_shapes": Private("torch.fx.experimental", "symbolic_shapes", f"deploy: sizes of 0 and 1; {_SORTS}"),
    "infer_size": Private("torch._prims_common", "infer_size", "deploy: sizes of 0 and 1"),
    "fake_impls": Private("torch._subclasses", "fake_impls", "deploy: sizes of 0 and 1"),
    "TracingMode": Private(
        "torch.fx.experimental.proxy_tensor", "ProxyTorchDispatchMode", _SORTS,
        "every convolution sorts in a graph without gradients",
    ),
    "track_tensors": Private("torch.fx.experimental.proxy_tensor", "track_tensor_tree", _SORTS),
    "PythonPrinter": Private("torch.utils._sympy.printers", "PythonPrinter", f"deploy, {_STEP}"),
    "compile_package": Private("torch._inductor", "aoti_compile_and_package", "deploy"),
    "CppKernel": Private("torch._inductor.codegen.cpp", "CppKernel", f"deploy, {_STEP}"),
    "CppWrapper": Private("torch._inductor.codegen.cpp_wrapper_cpu", "CppWrapperCpu", _STEP),
    "cexpr": Private("torch._inductor.codegen.cpp_utils", "cexpr", "deploy"),
    "CppBuilder": Private("torch._inductor.cpp_builder", "CppBuilder", f"deploy, {_STEP}"),
    "TensorGuards": Private(
        "torch._C._dynamo.guards", "TensorGuards", "to see in C++ that parameters have kept their sizes",
        "compile_step looks at each in Python",
    ),
    "fx_config": Private("torch.fx", "config", _STEP),
    "compile_files": Private("torch._inductor", "aot_compile", _STEP),
    "package_files": Private("torch._inductor.package", "package_aoti", _STEP),
    "inductor_options": Private("torch._inductor", "list_options", _STEP),
    "PackageLoader": Private("torch._C._aoti", "AOTIModelPackageLoader", _STEP),
    "tensors_of": Private(
        "torch._C._aoti", "alloc_tensors_by_stealing_from_void_ptrs", "large results on memory that was used before",
        "results of functions in Python stand on new memory",
    ),
    "raw_stream": Private(
        "torch._C", "_cuda_getCurrentRawStream", "the current stream of a GPU, as a number", "an object is made of it"
    ),
    "operation": Private(
        "torch._C", "_get_operation_overload", "to call the runtime without Python in one frame less", "in one more"
    ),
    "graph_texts": Private(
        "torch.fx.graph_module", "_loader", "to forget the text of programs that are gone", "torch keeps all texts"
    ),
    "foreach_mul": Private("torch", "_foreach_mul", "training of compiled steps: all gradients times a number at once"),
    "assert_async": Private("torch", "_assert_async", "MACE's species in programs"),
    "graph_trees": Private(
        "torch._inductor.cudagraph_trees", "get_manager", 'convolutions under torch.compile(mode="reduce-overhead")',
        "orders of edges may be found in its memory, and it says so",
    ),
    "export_joint": Private("torch._functorch.aot_autograd", "aot_export_joint_simple", _REPORTS),
    "aot_function": Private("torch._functorch.aot_autograd", "aot_function", _REPORTS),
    "default_partition": Private("torch._functorch.partitioners", "default_partition", _REPORTS),
    "min_cut_partition": Private("torch._functorch.partitioners", "min_cut_rematerialization_partition", _REPORTS),
    "DynamoException": Private("torch._dynamo.exc", "TorchDynamoException", _REPORTS),
    "dynamo_explain": Private("torch._dynamo", "explain", _REPORTS),
    "clear_compilations": Private("torch._dynamo.utils", "clear_compilation_metrics", _REPORTS),
    "compilations": Private("torch._dynamo.utils", "get_compilation_metrics", _REPORTS),
    "run_and_get_code": Private("torch._inductor.utils", "run_and_get_code", _REPORTS),
    "inductor_config": Private("torch._inductor", "config", f"deploy, {_STEP}, {_REPORTS}"),
    "CppScheduling": Private(
        "torch._inductor.codegen.cpp", "CppScheduling", _REPORTS, "comments of Inductor's alone name origins"
    ),
    "realize": Private(
        "torch._inductor.test_operators", "torch.ops._inductor_test.realize.default", _STEP,
        "values of parameters alone are computed for each row",
    ),
    "kernel_metadata": Private("torch._inductor.utils", "get_kernel_metadata", _REPORTS, "the same"),
    "inductor_graph": Private("torch._inductor.virtualized", "V", f"{_REPORTS}, {_STEP}", "the same"),
}  # fmt: skip


def __getattr__(asked: str) -> Any:
    """Load a name of `NAMES`.  If torch lacks the name: `AttributeError` with a fallback, else `ImportError`."""
    if asked not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {asked!r}")
    private = NAMES[asked]
    try:
        found = attrgetter(private.name)(import_module(private.module))
    except (ImportError, AttributeError):
        error = AttributeError if private.without else ImportError  # of the first, getattr has another value
        raise error(
            f"torch {torch.__version__} has no {private.module}.{private.name}, which tpgen needs ({private.use}): "
            f"use a torch from {_FLOOR} on that docs/versions.md names"
        ) from None
    globals()[asked] = found
    return found


def has_tangents() -> bool:
    """Whether forward-mode differentiation is active."""
    return forward_ad._current_level >= 0


def bypass_backward_wrapper(autograd_function: type[torch.autograd.Function]) -> None:
    """Let autograd call a function's ``backward`` without torch's wrapping frames."""
    made = getattr(autograd_function, "_backward_cls", None)
    if made is not None:
        made.apply = autograd_function.backward


def without_dispatch_modes() -> AbstractContextManager[Any]:
    """Disable dispatch modes inside the block: constants get values while tracing."""
    # without an entered mode do not import torch's modules for modes: most of a second, and a lock that forks inherit
    entered = __getattr__("dispatch_modes")() or __getattr__("early_modes")()
    return __getattr__("disabled_modes")() if entered else nullcontext()


_PATCHING = ForkedLock(RLock)


@contextmanager
def replaced_attribute(owner: Any, name: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """Replace an existing attribute by ``change(value)`` inside the block, one thread at a time."""
    # of two threads, each would restore what the other has set
    with _PATCHING.lock:
        there = getattr(owner, name, None)
        if there is None:
            yield
            return
        setattr(owner, name, change(there))
        try:
            yield
        finally:
            setattr(owner, name, there)


def without_stack_traces() -> Any:
    """Inside the block, traces record no source lines."""
    # they take a tenth of the time
    config = __getattr__("fx_config")  # a module does not look into its own __getattr__
    return replaced_attribute(config, "do_not_emit_stack_traces", lambda _: True)


@contextmanager
def trace_for_sizes_zero_and_one(assume_nonzero: bool = False) -> Iterator[None]:
    """Inside the block, traced programs also hold for sizes 0 and 1.

    Remaining tests for size 1, and for 0 unless ``assume_nonzero``, become guards.
    """
    shapes, fakes = __getattr__("shape_config"), __getattr__("fake_impls")
    # by such questions torch looks for memory that overlaps, of which a network that has been called has none
    unasked = replaced_attribute(torch, "_debug_has_internal_overlap", lambda _: lambda _: 0)
    views = replaced_attribute(fakes, "_compute_stride", _make_stride_function_size_oblivious)
    symbols = replaced_attribute(
        __getattr__("symbolic_shapes"), "make_symbol", (lambda x: x) if assume_nonzero else _let_size_symbols_be_zero
    )
    with (
        replaced_attribute(shapes, "backed_size_oblivious", lambda _: True),
        symbols,
        unasked,
        views,
        _use_size_oblivious_reshape(fakes),
    ):
        yield


def _make_stride_function_size_oblivious(compute_strides: Callable[..., Any]) -> Callable[..., Any]:
    # strides for all sizes; without any, strides for the sizes of the example
    def strides_of_shapes(*shapes: Any, size_oblivious: bool = False) -> Any:
        of_all = compute_strides(*shapes, size_oblivious=True)
        return compute_strides(*shapes) if of_all is None and not size_oblivious else of_all

    return strides_of_shapes


@contextmanager
def _use_size_oblivious_reshape(fake_impls: Any) -> Iterator[None]:
    # write a reshape down as a view for all sizes, or as a copy; torch's, in C++, asks for sizes of 1

    def reshape_as_view_or_copy(x: torch.Tensor, shape: Any) -> torch.Tensor:
        sizes = __getattr__("infer_size")(tuple(shape), x.numel())
        if fake_impls._compute_stride(x.shape, x.stride(), sizes, size_oblivious=True) is not None:
            return x.view(sizes)
        return torch.ops.aten._unsafe_view.default(x.clone(memory_format=torch.contiguous_format), sizes)

    operator, key = torch.ops.aten.reshape.default, __getattr__("DispatchKey").CompositeImplicitAutograd
    if key in operator.py_kernels or not hasattr(fake_impls, "_compute_stride"):
        yield
        return
    with _PATCHING.lock:
        operator.py_impl(key)(reshape_as_view_or_copy)
        try:
            yield
        finally:
            del operator.py_kernels[key]
            operator._dispatch_cache.clear()


def _let_size_symbols_be_zero(make_symbol: Callable[..., Any]) -> Callable[..., Any]:
    # torch takes dynamic sizes to be positive; so a test for size 0 becomes a condition
    return lambda *kind, positive=None, **rest: make_symbol(*kind, nonnegative=positive, **rest)
