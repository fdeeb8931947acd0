"""Programs as AOTInductor packages."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from typing import Any

from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tpgen.base import _torch
from tpgen.networks.functional import free_source_texts_with_graphs
from tpgen.networks.sizes import python_text, size_guards

# Loops run on the threads that a process has at each call: Inductor would write its own number of threads into code,
# and room for as many.  Loops that are short for this number of threads stay on one.
THREADS = {"cpp.dynamic_threads": True, "cpp.threads": 16}
_METADATA, _CONDITIONS = "_metadata.json", "tpgen_conditions"  # of a package, what its loader reads, and ours in it


def write_package(program: ExportedProgram, file: Any, options: dict[str, Any] | None = None) -> None:
    """Compile a program into ``file``, a path or binary stream.

    The package rejects sizes that trace or compiler excluded.
    """
    checks = _torch.replaced_attribute(
        _torch.CppWrapper, "generate_input_output_runtime_checks", _wrap_writer_to_check_sizes
    )
    with _patched_inductor(), checks, _torch.trace_for_sizes_zero_and_one():
        _torch.compile_package(program, package_path=file, inductor_configs={**THREADS, **(options or {})})


def write_traced(graph: fx.GraphModule, inputs: Sequence[Tensor], file: Any, options: dict[str, Any]) -> None:
    """Compile a traced graph at example ``inputs`` into ``file``, for all open sizes.

    The package checks no inputs: callers check sizes, dtypes and devices, and give contiguous tensors.
    """
    values = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
    before = set(size_guards(values))
    with (
        _patched_inductor(),
        _torch.replaced_attribute(
            _torch.CppWrapper, "generate_input_output_runtime_checks", _wrap_writer_to_omit_input_checks
        ),
    ):
        files = _torch.compile_files(graph, tuple(inputs), options={**options, **THREADS, "aot_inductor.package": True})
    conditions = [text for text in size_guards(values) if text not in before]
    for each in files:
        if isinstance(each, str) and each.endswith(_METADATA):
            held = json.loads(Path(each).read_text(encoding="utf-8"))
            Path(each).write_text(json.dumps({**held, _CONDITIONS: json.dumps(conditions)}), encoding="utf-8")
    _torch.package_files(file, files)


def conditions_of(metadata: Mapping[str, str]) -> list[str]:
    """Read compilation's size conditions from a `write_traced` package's metadata."""
    return json.loads(metadata[_CONDITIONS])


@contextmanager
def _patched_inductor() -> Iterator[None]:
    with (
        free_source_texts_with_graphs(),
        _torch.replaced_attribute(_torch.CppKernel, "need_use_acc_helper", _wrap_acc_helper_check_to_skip_open_sums),
        _torch.replaced_attribute(_torch.CppKernel, "decide_parallel_depth", _wrap_choice_to_leave_short_loops_alone),
        _compile_wrapper_on_another_thread(),
        _torch.without_stack_traces(),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message=r".*LeafSpec.*is deprecated", category=FutureWarning)  # torch's own
        try:
            yield
        finally:
            _clear_torch_shape_caches()


def _clear_torch_shape_caches() -> None:
    _torch.FakeTensorMode.cache_clear()
    for method in vars(ShapeEnv).values():
        if hasattr(method, "cache_clear"):
            method.cache_clear()


def _wrap_acc_helper_check_to_skip_open_sums(needs_helper: Callable[..., bool]) -> Callable[..., bool]:
    def needs_steps(self: Any, reduction: str, *rest: Any) -> bool:
        is_open = any(not size.is_number for size in self.call_ranges[self.reduction_depth :])
        return not (is_open and reduction == "sum") and needs_helper(self, reduction, *rest)

    return needs_steps


def _wrap_choice_to_leave_short_loops_alone(decide_depth: Callable[..., Any]) -> Callable[..., Any]:
    def decide_as_for_fixed_threads(self: Any, *rest: Any) -> Any:
        with _torch.inductor_config.patch({"cpp.dynamic_threads": False}):
            return decide_depth(self, *rest)

    return decide_as_for_fixed_threads


def _wrap_writer_to_omit_input_checks(write_source: Callable[[Any], None]) -> Callable[[Any], None]:
    def write_without_input_checks(self: Any) -> None:
        with _torch.replaced_attribute(_torch.inductor_graph.graph, "graph_inputs", lambda _: {}):
            write_source(self)

    return write_without_input_checks


def _wrap_writer_to_check_sizes(write_checks: Callable[[Any], None]) -> Callable[[Any], None]:

    def write_with_size_checks(self: Any) -> None:
        graph = _torch.inductor_graph.graph
        self.prefix.splice("#define __check_inputs_outputs check_each_input")
        with _torch.replaced_attribute(
            graph, "graph_inputs", lambda inputs: {name: _BufferWithoutStrides(x) for name, x in inputs.items()}
        ):
            write_checks(self)
        self.prefix.splice("#undef __check_inputs_outputs")
        self.prefix.splice(_CHECKS.replace("LINES", "\n".join(_cpp_lines_that_check_inputs(graph))))

    return write_with_size_checks


class _BufferWithoutStrides:
    def __init__(self, buffer: Any) -> None:
        self._held = buffer

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # by which torch knows what it looks at
        return type(self._held)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._held, name)

    def get_stride(self) -> tuple:
        """No strides."""
        return ()


_CHECKS = """
AOTI_NOINLINE static void __check_inputs_outputs(AtenTensorHandle* inputs, AtenTensorHandle* outputs) {
    check_each_input(inputs, outputs);
    if (!_check_aoti_runtime_check_inputs_env()) return;
    const auto size = [inputs](int n, int dim) { return ConstantHandle(inputs[n]).sizes()[dim]; };
    const auto ask = [](bool fulfilled, const char* condition) {
        const char* out = ": use the network as it is, or deploy it by an example of such sizes";
        if (!fulfilled) throw std::runtime_error(std::string("this package is for inputs with ") + condition + out);
    };
    const auto step = [inputs](int n, int dim, int64_t wanted) {
        ConstantHandle x(inputs[n]);
        int64_t numel = 0;
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_numel(x, &numel));
        if (numel == 0 || x.sizes()[dim] < 2 || x.strides()[dim] == wanted) return;
        const char* out = "] lies in memory otherwise than the example's: give a copy, as .contiguous() makes it";
        throw std::runtime_error("inputs[" + std::to_string(n) + out);
    };
    LINES
}
"""


def _cpp_lines_that_check_inputs(graph: Any) -> Iterator[str]:
    env, known, rest = graph.sizevars.shape_env, {}, []
    for n, x in enumerate(graph.graph_inputs.values()):
        for dim, size in enumerate(map(env.replace, x.get_size())):
            here, said = f"size({n}, {dim})", f"inputs[{n}].shape[{dim}]"
            if size.is_Symbol and size not in known:
                known[size] = said
                yield f"[[maybe_unused]] const int64_t {size} = {here};"
            elif size.free_symbols:
                rest.append((f"{here} == {_torch.cexpr(size)}", f"{said} == {python_text(size)}"))
    guards = dict.fromkeys(env.replace(guard.expr) for guard in env.guards)
    rest += [(_torch.cexpr(each), python_text(each)) for each in guards if each.free_symbols]
    words = {str(symbol): said for symbol, said in known.items()}
    for condition, text in rest:
        said = re.sub(r"\w+", lambda word: words.get(word[0], word[0]), text)
        yield f"ask({condition}, {json.dumps(said)});"
    for n, x in enumerate(graph.graph_inputs.values()):
        for dim, stride in enumerate(map(env.replace, x.get_stride())):
            if stride.free_symbols <= known.keys():
                yield f"step({n}, {dim}, {_torch.cexpr(stride)});"


@contextmanager
def _compile_wrapper_on_another_thread() -> Iterator[None]:
    with ThreadPoolExecutor(1) as aside:
        begun: list[Future] = []
        here = get_ident()  # what other threads compile meanwhile is theirs

        def wrap_build(build: Callable[[Any], None]) -> Callable[[Any], None]:
            def build_or_submit_to_thread(self: Any) -> None:
                made = self.get_target_file_path()
                if get_ident() != here:
                    return build(self)
                if made.endswith(".wrapper.o"):
                    return begun.append(aside.submit(build, self))
                if not made.endswith(".o"):  # a library, of what has been begun
                    for unit in begun:
                        unit.result()
                return build(self)

            return build_or_submit_to_thread

        with _torch.replaced_attribute(_torch.CppBuilder, "build", wrap_build):
            yield
