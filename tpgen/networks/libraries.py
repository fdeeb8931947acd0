"""Libraries of traced graphs, in the kernel cache."""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, fx

from tpgen._version import __version__
from tpgen.base import _torch
from tpgen.base.errors import DeployError
from tpgen.base.progress import announce
from tpgen.kernels.build import cache
from tpgen.kernels.build.compiler import need_compiler
from tpgen.kernels.build.processor import cpu_features
from tpgen.networks.edges import fuse_gathers_and_sums, write_wide_sums_as_library_calls
from tpgen.networks.exponentials import multiply_no_subnormal_exponentials
from tpgen.networks.loops import write_vector_loops
from tpgen.networks.named import call_kernels_by_number
from tpgen.networks.packages import THREADS, conditions_of, write_traced
from tpgen.networks.products import replace_matrix_products_by_kernels
from tpgen.networks.sizes import InputSizes
from tpgen.networks.stages import GraphPart

_only_cached: ContextVar[bool] = ContextVar("programs are taken from the cache", default=False)
_taken: ContextVar[list[str] | None] = ContextVar("names of libraries that programs take", default=None)

RunLibrary = Callable[[list[Tensor]], "list[Tensor] | None"]
Library = tuple[RunLibrary, InputSizes]  # and the conditions on its inputs
# one file is compiled, for which headers are not worth to be compiled before; torch writes into what it is given
_OPTIONS = {
    "aot_inductor.precompile_headers": False,
    "aot_inductor.enable_line_tables": False,  # nobody steps through it
    "size_asserts": False,  # `Program` looks at sizes, and no operator of ours returns others than it says
    "realize_reads_threshold": 1,  # what several loops read is short: they read it rather than compute it again
    "cpp.vec_isa_ok": True,  # kernels have been compiled for this machine: no need to try its vectors again
}


class NotCachedError(DeployError):
    """A library is not in the cache."""


@contextmanager
def names_of_libraries() -> Iterator[list[str]]:
    """Collect the names of the libraries that programs take in the block."""
    token = _taken.set(names := list[str]())
    try:
        yield names
    finally:
        _taken.reset(token)


@contextmanager
def only_cached() -> Iterator[None]:
    """Forbid compilation inside the block: uncached programs raise `NotCachedError`."""
    token = _only_cached.set(True)
    try:
        yield
    finally:
        _only_cached.reset(token)


def library_of(program: GraphPart, sizes: InputSizes, inputs: list[Tensor], saved: Sequence[Tensor] = ()) -> Library:
    """Load or compile the library for ``inputs``; return a function of tensors, and conditions.

    ``saved`` are further inputs, without conditions.
    """
    graph, key = program.graph, ""
    fuse_gathers_and_sums(graph.graph)
    multiply_no_subnormal_exponentials(graph.graph)
    replace_matrix_products_by_kernels(graph.graph)
    write_wide_sums_as_library_calls(graph.graph)
    write_vector_loops(graph.graph)
    call_kernels_by_number(graph.graph)
    graph.recompile()
    for like in ("", [list(x.shape) for x in inputs]):  # the first is for most, the second for those of such sizes
        key = _library_key(graph, [key, like, sizes.conditions])
        given = tuple(x.contiguous() for x in program.given([*inputs, *saved]))
        found = cache.find_intact_entry(key, cache.PROGRAM) or _find_or_compile_cache_entry(key, graph, given)
        loader = _torch.PackageLoader(str(found.library), "model", False, 1, -1)
        held = sizes.and_also(conditions_of(loader.get_metadata()))
        if held.hold(inputs):
            break
    if (names := _taken.get()) is not None:
        names.append(key)
    return (lambda given: loader.boxed_run([x.contiguous() for x in given])), held  # it does not look at strides


def _find_or_compile_cache_entry(key: str, graph: fx.GraphModule, inputs: tuple) -> cache.Entry:
    entry = cache.Entry(cache.open_cache_directory(), key, cache.PROGRAM)
    with entry.hold_file_lock():
        if not entry.is_intact():
            if _only_cached.get():
                raise NotCachedError("the program is not in the cache of kernels")
            announce("compiles a network as one program, once for this machine: some half a minute")
            built = entry.create_temporary_file(cache.PROGRAM)
            try:
                built.write_bytes(_compile_graph(graph, inputs))
                entry.publish_library(built)
            finally:
                built.unlink(missing_ok=True)
    return entry


def _compile_graph(graph: fx.GraphModule, inputs: tuple) -> bytes:
    held, known = io.BytesIO(), set(_torch.inductor_options())
    options = {name: value for name, value in _OPTIONS.items() if name in known}  # others came with a later torch
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch's own
        write_traced(graph, inputs, held, options)
    return held.getvalue()


def _library_key(graph: fx.GraphModule, more_of_key: Any) -> str:
    # name of a library: a hash of its graph's text, its inputs, conditions on them, constants, and who compiles
    described = [
        more_of_key,
        graph.code,
        [str((x.meta["val"].shape, x.meta["val"].dtype)) for x in graph.graph.find_nodes(op="placeholder")],
        [_hash_of_tensor_values(getattr(graph, str(x.target))) for x in graph.graph.find_nodes(op="get_attr")],
        [__version__, torch.__version__, need_compiler().identity, cpu_features(), _OPTIONS, THREADS],
    ]
    return hashlib.sha256(json.dumps(described, default=str).encode()).hexdigest()[:32]


def _hash_of_tensor_values(x: Any) -> str:
    return hashlib.sha256(x.detach().contiguous().numpy().tobytes()).hexdigest() if isinstance(x, Tensor) else str(x)
