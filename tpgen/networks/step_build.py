"""A graph as a library: kernels called by C++, all else fused by Inductor, in the cache of kernels."""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from tpgen import _torch
from tpgen._version import __version__
from tpgen.kernels.build import cache
from tpgen.kernels.build.compiler import need_compiler
from tpgen.networks.named import call_by_name
from tpgen.networks.packages import conditions_of, write_traced
from tpgen.networks.products import products_by_kernels
from tpgen.networks.sizes import HeldSizes
from tpgen.networks.step_trace import GraphPart
from tpgen.progress import announce

RunLibrary = Callable[[list[Tensor]], list[Tensor]]
# one file is compiled, for which headers are not worth to be compiled before; torch writes into what it is given
_OPTIONS = {
    "aot_inductor.precompile_headers": False,
    "aot_inductor.enable_line_tables": False,  # nobody steps through it
    "size_asserts": False,  # `Program` looks at sizes, and no operator of ours returns others than it says
    "realize_reads_threshold": 1,  # what several loops read is short: they read it rather than compute it again
    "cpp.vec_isa_ok": True,  # kernels have been compiled for this machine: no need to try its vectors again
}


def library_of(program: GraphPart, sizes: HeldSizes, inputs: list[Tensor]) -> tuple[RunLibrary, HeldSizes]:
    """The function of a program, from all tensors of its inputs in a list to those of its results; what it holds for.

    It is compiled where the cache has it not, or has one that is not for the example: ``inputs``, of the whole, of
    which ``sizes`` are known.  Kernels are called in C++ by names.
    """
    graph, key = program.graph, ""
    products_by_kernels(graph.graph)
    call_by_name(graph.graph)
    graph.recompile()
    for like in ("", [list(x.shape) for x in inputs]):  # the first is for most, the second for those of such sizes
        key = _key(graph, [key, like, sizes.conditions])
        given = tuple(x.contiguous() for x in program.given(inputs))
        found = cache.finished(key, cache.PROGRAM) or _made(key, graph, given)
        loader = _torch.PackageLoader(str(found.library), "model", False, 1, -1)
        held = sizes.and_also(conditions_of(loader.get_metadata()))
        if held.hold(inputs):
            break
    return loader.boxed_run, held


def _made(key: str, graph: fx.GraphModule, inputs: tuple) -> cache.Entry:
    entry = cache.Entry(cache.current_directory(), key, cache.PROGRAM)
    with entry.locked():
        if not entry.intact():
            announce("compiles a network as one program, once for this machine: some half a minute")
            built = entry.new_file(cache.PROGRAM)
            try:
                built.write_bytes(_compiled(graph, inputs))
                entry.publish(built)
            finally:
                built.unlink(missing_ok=True)
    return entry


def _compiled(graph: fx.GraphModule, inputs: tuple) -> bytes:
    held, known = io.BytesIO(), set(_torch.inductor_options())
    options = {name: value for name, value in _OPTIONS.items() if name in known}  # others came with a later torch
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch's own
        write_traced(graph, inputs, held, options)
    return held.getvalue()


def _key(graph: fx.GraphModule, asked: Any) -> str:
    """Name of a library: a hash of its graph's text, its inputs, what is asked of them, constants, and who compiles."""
    described = [
        asked,
        graph.code,
        [str((x.meta["val"].shape, x.meta["val"].dtype)) for x in graph.graph.find_nodes(op="placeholder")],
        [_bytes(getattr(graph, str(x.target))) for x in graph.graph.find_nodes(op="get_attr")],
        [__version__, torch.__version__, need_compiler().identity, _OPTIONS],
    ]
    return hashlib.sha256(json.dumps(described, default=str).encode()).hexdigest()[:32]


def _bytes(x: Any) -> str:
    return hashlib.sha256(x.detach().contiguous().numpy().tobytes()).hexdigest() if isinstance(x, Tensor) else str(x)
