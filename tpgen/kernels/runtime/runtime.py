"""Kernel calls below autograd."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from threading import Lock
from typing import Any, cast

import torch
from torch import Tensor

from tpgen.base.errors import BackendError, InputError, KernelError
from tpgen.base.remember import remembered
from tpgen.form.call import Call
from tpgen.kernels.arguments import Kernel, KernelCall, KernelSpec
from tpgen.kernels.build.compiler import DTYPES
from tpgen.kernels.build.rehearsal import check_outside_dry_run, start_tasks_if_in_dry_run
from tpgen.kernels.cuda import driver
from tpgen.kernels.cuda.orders import remember_both_orders
from tpgen.kernels.rows import (
    EDGES,
    ELEMENTS,
    INDEX_DTYPES,
    ROWS,
    RowIndex,
    RowRules,
    find_index_fault,
    join_rule_names,
    make_fault_error,
)
from tpgen.kernels.runtime.call import FormCall
from tpgen.kernels.runtime.description import AnyDescription, ProductDescription, read_description
from tpgen.kernels.runtime.failures import find_build_failure, record_build_failure, summarize_plan
from tpgen.kernels.runtime.launched import GpuLauncher, run_kernels_in_cpp
from tpgen.kernels.runtime.native.runtime import FEW, NO_NUMBER, CppRuntime, load_cpp_runtime
from tpgen.kernels.runtime.pairs import gather_operand_rows, sum_to_operand_rows
from tpgen.kernels.runtime.signature import AxisSizes, CallSignature, encode_signature_for_cpp
from tpgen.kernels.runtime.standins import make_pytorch_kernel
from tpgen.kernels.runtime.targets import KernelTarget, target_of
from tpgen.kernels.sweep.terms import SLOTS, make_second_derivative_call

_turns: dict[tuple, Lock] = {}  # of threads that build one kernel
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_turns.clear)

_Built = tuple[str, torch.dtype, RowRules]  # a call whose kernels the runtime knows: its text, dtype and rules of rows
_Entered = tuple[int, int]  # by which the runtime knows a kernel; how many tensors it is given


class Kernels:
    """Kernels of one product or polynomial, for forward and gradients, built at first calls."""

    def __init__(self, description: str) -> None:
        """Parse a description; build nothing."""
        self._text = description
        self.description: AnyDescription = read_description(description)
        self._kernels: dict[tuple[Call, torch.dtype, RowRules, str], Kernel] = {}
        self._signatures: dict[tuple[str, RowRules], CallSignature] = {}
        self._fused: dict[tuple[torch.dtype, str], bool] = {}
        self._entered: dict[_Built, tuple[_Entered, ...]] = {}
        self._native: CppRuntime | None = None  # where it calls a kernel by its number
        self._launched: GpuLauncher | None = None  # on GPUs
        self._offered: set[tuple[Kernel, torch.device]] = set()
        # calls that are built for a device
        self._ahead: set[tuple[tuple[str, ...], torch.dtype, RowRules, int]] = set()
        self._failed: list[tuple[KernelSpec, str, KernelError]] = []  # not said yet

    @property
    def product_description(self) -> ProductDescription:
        """Description of a product or layer.  Raises `InputError` for polynomials."""
        if self.description.any_level:
            raise InputError("the description must be one of a product or a linear layer, not of a polynomial")
        return cast(ProductDescription, self.description)

    # -- by the runtime in C++ -----------------------------------------------------------------------------------------

    def compute_in_cpp(self, call: FormCall) -> Sequence[Tensor]:
        """Compute a call by built kernels in C++; empty for unbuilt kernels, unusual calls, faults."""
        tensors, at, _, text, rules, nodes, _ = call
        entered = self._entered.get((text, tensors[0].dtype, rules)) if tensors else None
        if entered is None or self._native is None or type(nodes) is not int:
            return ()  # a symbol of a trace must not be asked how many
        if at and self._launched is not None:
            made = self._launched.launch_call(call, entered, self.description.check_index)
            if made is not None:
                return made
        if len(entered) > 1:
            return run_kernels_in_cpp(self._native.form, call, entered, at)
        if len(tensors) == FEW and len(at) < FEW:
            return self._native.few(*tensors, entered[0][0], nodes, *at)
        return self._native.form([*tensors, *at], entered[0][0], nodes)

    def _key_of_call_in_cpp(self, call: str, dtype: torch.dtype, rules: RowRules) -> str:
        return f"{self._text} {call} {dtype} {join_rule_names(rules)}"

    def _register_call_in_cpp(self, runtime: CppRuntime, spec: KernelSpec, set_kernel: Callable[[int], None]) -> None:
        # ``set_kernel`` enters the kernel by its number
        call, dtype, rules = str(spec.call), spec.dtype, spec.rules
        fields = encode_signature_for_cpp(self.signature(call, rules), self.description.check_index)
        places = self.description.opened_bits(spec.call)
        number = runtime.register_call(self._key_of_call_in_cpp(call, dtype, rules), dtype, places, fields)
        if number != NO_NUMBER:
            set_kernel(number)
            self._entered[call, dtype, rules] = ((number, len(spec.call.given)),)
            self._native = runtime

    def _register_cpu_kernel_in_cpp(self, spec: KernelSpec, kernel: Kernel) -> None:
        address = getattr(kernel, "address", None)
        wide = self.computes_in_float32(spec.call, spec.dtype, spec.rules, "cpu")
        if address is None or wide or find_build_failure(self.description, spec.dtype, "cpu"):
            return
        if native := load_cpp_runtime():
            self._register_call_in_cpp(native, spec, lambda number: native.set_kernel_address(number, address))

    def _register_gpu_kernel_in_cpp(self, spec: KernelSpec, kernel: Kernel, example: Tensor) -> None:
        # only after one launch by Python
        launch, key = getattr(kernel, "launch_parameters", None), (kernel, example.device)
        dtype, kind = example.dtype, example.device.type
        if launch is None or key in self._offered or find_build_failure(self.description, dtype, kind):
            return
        self._offered.add(key)
        native = load_cpp_runtime()
        if native is None or not native.can_launch_gpu_kernels():
            return

        def set_launch_parameters(number: int) -> None:
            native.set_launch_parameters(number, *launch(example))
            self._launched = self._launched or GpuLauncher(native)
            signature = self.signature(str(spec.call), spec.rules)
            self._launched.register_kernel(number, spec.call, signature, kernel, example)

        self._register_call_in_cpp(native, spec, set_launch_parameters)

    def build_kernel_with_number(self, call: str, dtype: torch.dtype, rules: RowRules) -> int:
        """Build a call's kernel; return the kernel's number for compiled programs."""
        self.build_kernels_or_raise(call, dtype, rules)
        native, entered = load_cpp_runtime(), self._entered.get((call, dtype, rules), ())
        if native is None or len(entered) != 1:
            raise BackendError("compiled programs call kernels by the runtime in C++, which has not been built here")
        return native.register_call_hash(self._key_of_call_in_cpp(call, dtype, rules), entered[0][0])

    def build_kernels_or_raise(self, call: str, dtype: torch.dtype, rules: RowRules) -> None:
        """Build a call's kernels; raise `KernelError` on failure."""
        self._build_kernels(self.signature(call, rules).parts, dtype, rules, "cpu")
        if why := find_build_failure(self.description, dtype, "cpu"):
            raise KernelError(
                f"the kernel of {summarize_plan(self.description.plan)}: {why}\n"
                "a compiled program calls kernels alone: write the program again, in which a graph stands for this "
                "product, or name another compiler in TPGEN_CXX"
            )

    # -- kernels -------------------------------------------------------------------------------------------------------

    def get_kernel(self, call: Call, dtype: torch.dtype, rules: RowRules = (), device: str = "cpu") -> Kernel:
        """Kernel of a call, built at first use."""
        key = (call, dtype, rules, device)
        found = self._kernels.get(key)
        if found is None:
            check_outside_dry_run()
            with _turns.setdefault((self._text, *key), Lock()):
                spec = KernelSpec(self.description, call, dtype, rules)
                found = self._kernels.get(key) or self._build_kernel(spec, device)
        return found

    def _build_kernel(self, spec: KernelSpec, device: str) -> Kernel:
        try:
            made = _get_kernel_target(device).load(spec)
        except KernelError as error:
            return self._fall_back_to_pytorch_kernel(spec, device, error)
        self._register_cpu_kernel_in_cpp(spec, made)  # first: other threads may look for it
        self._kernels[spec.call, spec.dtype, spec.rules, device] = made
        return made

    def _fall_back_to_pytorch_kernel(self, spec: KernelSpec, device: str, error: KernelError) -> Kernel:
        # C++ runs no call of this form any more: Python is where modules notice that they must choose again
        made = self._kernels[spec.call, spec.dtype, spec.rules, device] = make_pytorch_kernel(spec)
        self._native = self._launched = None
        self._entered.clear()
        self._failed.append((spec, device, error))
        return made

    def _warn_of_build_failures(self) -> None:
        # on the thread that asked for the kernels
        while self._failed:
            record_build_failure(*self._failed.pop())

    def _run_kernel_or_fall_back(self, kernel: Kernel, spec: KernelSpec, device: str, call: KernelCall) -> int:
        # GPU kernels are compiled for a chip at their first call
        try:
            return kernel(call)
        except KernelError as error:
            made = self._fall_back_to_pytorch_kernel(spec, device, error)
            self._warn_of_build_failures()
            return made(call)

    def _build_kernels(self, calls: Sequence[Call], dtype: torch.dtype, rules: RowRules, device: str) -> list[Kernel]:
        _run_tasks_in_parallel(self._make_build_tasks(calls, dtype, rules, device))
        self._warn_of_build_failures()
        return [self.get_kernel(call, dtype, rules, device) for call in calls]

    def _make_build_tasks(
        self, calls: Sequence[Call], dtype: torch.dtype, rules: RowRules, device: str
    ) -> list[partial]:
        missing = [call for call in calls if (call, dtype, rules, device) not in self._kernels]
        return [partial(self.get_kernel, call, dtype, rules, device) for call in missing]

    def build_kernels_in_parallel(self, calls: Iterable[str], example: Tensor, rules: RowRules) -> None:
        """Build kernels of calls in parallel, for the dtype and device of ``example``."""
        dtype, device, calls = example.dtype, example.device.type, tuple(calls)
        built = calls, dtype, rules, example.get_device()
        if (
            built in self._ahead
            or dtype not in DTYPES
            or target_of(device) is None
            or not self.description.has_live_paths
        ):
            return
        if unsupported := self.unsupported_rules(rules, dtype, device):
            kept = tuple(rule for rule in rules if rule not in unsupported)
            kernels_of(self.text_with_weights_by_row(unsupported)).build_kernels_in_parallel(calls, example, kept)
            return
        parts = [part for text in calls for part in self.signature(text, rules).parts]
        wide = [part for part in parts if self.computes_in_float32(part, dtype, rules, device)]
        narrow = [part for part in parts if part not in wide]
        numbers = (narrow, dtype), (wide, torch.float32)
        ready = [self._try_build_kernels(some, number, rules, example) for some, number in numbers]
        if all(ready):
            self._ahead.add(built)

    def _try_build_kernels(self, calls: Sequence[Call], dtype: torch.dtype, rules: RowRules, example: Tensor) -> bool:
        device = example.device.type
        if start_tasks_if_in_dry_run(self._make_build_tasks(calls, dtype, rules, device)):
            return False  # other threads have begun to
        kernels = self._build_kernels(calls, dtype, rules, device)
        _run_tasks_in_parallel([partial(_compile_for_device_of, k, example) for k in kernels if hasattr(k, "compile")])
        return True

    def sort_edges_ahead(self, call: FormCall) -> None:
        """Sort edges by both ends ahead of calls, if kernels take sorted edges."""
        x1 = call.tensors[0]
        target = target_of(x1.device.type)
        if target is None or not target.sorts or call.rules != EDGES or not x1.dim():
            return
        if call.ordered or len(call.at) != len(EDGES) or any(x.dim() != 1 for x in call.at):
            return
        src, dst = call.at
        usual = all(x.dtype in INDEX_DTYPES and x.is_contiguous() and x.device == x1.device for x in (src, dst))
        if usual and len(src) == len(dst):
            capture = driver.captured_graph_number(x1.get_device())
            remember_both_orders(src, dst, x1.shape[0], max(0, call.nodes), capture, self.description.check_index)

    def fuses_second_derivatives(self, dtype: torch.dtype, device: str) -> bool:
        """Whether one kernel computes second derivatives of a product."""
        found = self._fused.get((dtype, device))
        if found is None:
            target = target_of(device)
            spec = KernelSpec(self.description, make_second_derivative_call(SLOTS, SLOTS), dtype)
            taken = target is not None and dtype in DTYPES and self.description.has_live_paths
            # of whatever chip: a GPU need not be there for tensors without values
            found = taken and target is not None and not target.obstacle(spec, None)
            self._fused[dtype, device] = found
        return found

    def lacks_own_kernel(self, call: FormCall) -> bool:
        """Whether a derivative is a sum of first derivatives, without an own kernel."""
        if self.description.any_level or not call.slots.levels:
            return False
        return not (call.tensors and self.fuses_second_derivatives(call.tensors[0].dtype, call.tensors[0].device.type))

    def computes_in_float32(self, call: Call, dtype: torch.dtype, rules: RowRules, device: str) -> bool:
        """Whether a bfloat16 call computes on float32 copies."""
        target = target_of(device) if dtype == torch.bfloat16 else None
        return target is not None and target.rounds_sums and self.description.rounds_partial_sums(call, rules)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def signature(self, call_text: str, rules: RowRules) -> CallSignature:
        """Expected tensor shapes of a call, cached."""
        found = self._signatures.get((call_text, rules))
        if found is None:
            found = CallSignature(self.description, Call.parse(call_text), rules)
            self._signatures[call_text, rules] = found
        return found

    def check_tensors(self, call: FormCall) -> tuple[CallSignature, AxisSizes]:
        """Check a call's tensors; return expected shapes and axis sizes."""
        signature = self.signature(call.call, call.rules)
        counts = signature.measure_axes(call)
        signature.check_dtypes_and_devices(call, counts[ROWS])
        return signature, counts

    def run(self, call: FormCall) -> list[Tensor]:
        return list(self.compute_in_cpp(call)) or self._check_and_run(call)

    def _check_and_run(self, call: FormCall) -> list[Tensor]:
        signature, counts = self.check_tensors(call)
        like, rules = call.tensors[0], signature.rules
        dtype, device = like.dtype, like.device.type
        if self.computes_in_float32(signature.call, dtype, rules, device):
            return [x.bfloat16() for x in self._check_and_run(call._replace(tensors=[x.float() for x in call.tensors]))]
        if unsupported := self.unsupported_rules(rules, dtype, device):
            return self._run_on_gathered_rows(call, signature, counts, unsupported)
        target = _get_kernel_target(device)
        results = [target.empty(shape, dtype, like.device) for shape in signature.result_shapes(call.tensors, counts)]
        if not self.description.has_live_paths or not counts["channels"]:  # nothing to compile
            return [x.zero_() for x in results]
        if start_tasks_if_in_dry_run(self._make_build_tasks(signature.parts, dtype, rules, device)):
            return [x.zero_() for x in results]
        kernels = self._build_kernels(signature.parts, dtype, rules, device)
        torch.get_num_threads()  # a Python thread learns torch's setting when it first asks
        given = dict(zip(signature.call.given, map(Tensor.contiguous, call.tensors), strict=True))
        made = dict(zip(signature.call.opened, results, strict=True))
        indices = self.prepare_row_indices(call, counts)
        for part, kernel in zip(signature.parts, kernels, strict=True):
            operands, opened = [given[s] for s in part.given], [made[s] for s in part.opened]
            spec = KernelSpec(self.description, part, dtype, rules)
            one = KernelCall(operands, opened, counts[ROWS], counts["channels"], indices)
            if fault := self._run_kernel_or_fall_back(kernel, spec, device, one):
                raise make_fault_error(fault, indices)
            self._register_gpu_kernel_in_cpp(spec, kernel, like)
        entered = [self._entered.get((str(part), dtype, rules), ()) for part in signature.parts]
        if all(entered):
            self._entered.setdefault((call.call, dtype, rules), tuple(n for numbers in entered for n in numbers))
        return results

    def prepare_row_indices(self, call: FormCall, axis_sizes: AxisSizes) -> tuple[RowIndex, ...]:
        """Row indices for kernels: contiguous tensors, each with the count of rows pointed into."""
        check = self.description.check_index
        return tuple(
            index._replace(
                tensor=None if index.tensor is None else index.tensor.contiguous(),
                size=axis_sizes.get(index.rule.into, 0),
                check=index.rule.checked(check),
            )
            for index in call.indices
        )

    # -- rules that no kernel takes ------------------------------------------------------------------------------------

    def unsupported_rules(self, rules: RowRules, dtype: torch.dtype, device: str) -> RowRules:
        """Row rules that a device's kernels do not support."""
        # rows are gathered before such a kernel, and results summed after
        target = target_of(device)
        taken = () if target is None else target.takes(self.description, rules)
        return tuple(rule for rule in rules if rule not in taken or not self.description.supports_row_rule(rule, dtype))

    def text_with_weights_by_row(self, rules: RowRules) -> str:
        """Description with weights per row, in place of ``rules``."""
        return self.product_description.text_with_row_weights if ELEMENTS in rules else self._text

    def _run_on_gathered_rows(
        self, call: FormCall, signature: CallSignature, axis_sizes: AxisSizes, unsupported: RowRules
    ) -> list[Tensor]:
        indices = [index for index in self.prepare_row_indices(call, axis_sizes) if index.rule in unsupported]
        if fault := find_index_fault(indices):
            raise make_fault_error(fault, indices)
        own = {index.rule.into: index for index in indices}
        tensors = [
            gather_operand_rows(own[g.shape.counts], x, axis_sizes[ROWS]) if g.shape.counts in own else x
            for g, x in zip(signature.given, call.tensors, strict=True)
        ]
        kept = [index for index in call.indices if index.rule not in unsupported]
        text = self.text_with_weights_by_row(unsupported)
        below = call._replace(tensors=tensors, description=text).with_indices(kept)
        made = kernels_of(below.description).run(below)
        return [
            sum_to_operand_rows(own[shape.counts], x) if shape.counts in own else x
            for (_, shape), x in zip(signature.opened, made, strict=True)
        ]


def _run_tasks_in_parallel(tasks: Sequence[Callable[[], object]]) -> None:
    if len(tasks) == 1:
        tasks[0]()
    elif tasks:
        with ThreadPoolExecutor(len(tasks)) as pool:
            contexts = [copy_context() for _ in tasks]
            list(pool.map(lambda context, task: context.run(task), contexts, tasks))


def _compile_for_device_of(kernel: Any, example: Tensor) -> None:
    # the first call handles an error of the compiler
    with suppress(KernelError):
        kernel.compile(example)


def _get_kernel_target(device: str) -> KernelTarget:
    target = target_of(device)
    assert target is not None, device
    return target


@remembered("kernels of forms, by description")
def kernels_of(description: str) -> Kernels:
    return Kernels(description)
