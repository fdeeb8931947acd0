"""Programs as packages of AOTInductor, for any number of rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from torch import Tensor, fx
from torch.export import ExportedProgram

from tpgen import _torch


def write_package(program: ExportedProgram, file: Any, options: dict[str, Any] | None = None) -> None:
    """Compile a program into a file, which is a path or takes bytes."""
    with _changed():
        _torch.compile_package(program, package_path=file, inductor_configs=options)


def write_traced(graph: fx.GraphModule, inputs: Sequence[Tensor], file: Any, options: dict[str, Any]) -> None:
    """Compile a traced graph into a file, for all sizes that its values leave open; ``inputs`` are an example.

    Such a graph has nothing to export: Inductor reads the open sizes from the values of its placeholders.  Who calls
    it looks at sizes, dtypes and devices, and gives contiguous tensors, so the package does not look.
    """
    with _changed(), _torch.instead(_torch.CppWrapper, "generate_input_output_runtime_checks", _of_no_input):
        files = _torch.compile_files(graph, tuple(inputs), options={**options, "aot_inductor.package": True})
        _torch.package_files(file, files)


@contextmanager
def _changed() -> Iterator[None]:
    """Inductor as packages need it."""
    with (
        _torch.instead(_torch.CppKernel, "need_use_acc_helper", _of_any_length),
        _side_by_side(),
        _torch.without_stack_traces(),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message=r".*LeafSpec.*is deprecated", category=FutureWarning)  # torch's own
        yield


def _of_any_length(asked: Callable[..., bool]) -> Callable[..., bool]:
    """Let Inductor sum rows without asking whether they are more than 4,096.

    It asks the example, to sum many in steps, and the package then refuses other answers: a network deployed with eight
    atoms would refuse 4,097 edges.
    """

    def needs_steps(self: Any, reduction: str, *rest: Any) -> bool:
        is_open = any(not size.is_number for size in self.call_ranges[self.reduction_depth :])
        return not (is_open and reduction == "sum") and asked(self, reduction, *rest)

    return needs_steps


def _of_no_input(written: Callable[[Any], None]) -> Callable[[Any], None]:
    """Leave out checks of inputs, a third of a package's text, which run only where a variable of torch's asks."""

    def write(self: Any) -> None:
        graph = _torch.inductor_graph.graph
        inputs, graph.graph_inputs = graph.graph_inputs, {}
        try:
            written(self)
        finally:
            graph.graph_inputs = inputs

    return write


@contextmanager
def _side_by_side() -> Iterator[None]:
    """Compile the calls of a package beside its loops, which torch does one after the other."""
    with ThreadPoolExecutor(1) as aside:
        begun: list[Future] = []
        here = get_ident()  # what other threads compile meanwhile is theirs

        def change(build: Callable[[Any], None]) -> Callable[[Any], None]:
            def begin(self: Any) -> None:
                made = self.get_target_file_path()
                if get_ident() != here:
                    return build(self)
                if made.endswith(".wrapper.o"):
                    return begun.append(aside.submit(build, self))
                if not made.endswith(".o"):  # a library, of what has been begun
                    for unit in begun:
                        unit.result()
                return build(self)

            return begin

        with _torch.instead(_torch.CppBuilder, "build", change):
            yield
