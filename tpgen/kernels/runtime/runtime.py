"""Run kernels: check the tensors, allocate the open slots, call the compiled function.

This is the plain computation below autograd; `tpgen.kernels.runtime.ops` wraps it into operators.
"""

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
from tpgen.form.call import Call as Slots
from tpgen.kernels.arguments import Edges, Kernel, KernelCall, KernelSpec, Sizes
from tpgen.kernels.build.compiler import DTYPES
from tpgen.kernels.build.rehearsal import begun, need_no_rehearsal
from tpgen.kernels.cuda import captures
from tpgen.kernels.cuda.orders import know_both
from tpgen.kernels.runtime.call import DESTINATIONS, PAIRS, ROWS, SOURCES, FormCall, ProductCall, mask_of
from tpgen.kernels.runtime.description import AnyDescription, Description, read_description
from tpgen.kernels.runtime.failures import failure_of, name_of, note_failure
from tpgen.kernels.runtime.launched import Launched
from tpgen.kernels.runtime.native.runtime import NO_NUMBER, Runtime, runtime
from tpgen.kernels.runtime.pairs import rows_of_edges, sums_of_pairs
from tpgen.kernels.runtime.signature import CallSignature, Counts, native_fields
from tpgen.kernels.runtime.standins import standin
from tpgen.kernels.runtime.targets import KernelTarget, target_of
from tpgen.kernels.sweep.terms import SLOTS, raised_call

_turns: dict[tuple, Lock] = {}  # of threads that build one kernel
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_turns.clear)

_INDICES = (torch.int64, torch.int32)
_SOURCE, _DESTINATION = 2, 3  # faults: an index out of range; the first also of an element


class Kernels:
    """The kernels of one form, each built when it is first called."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.description: AnyDescription = read_description(text)
        self._kernels: dict[tuple[Slots, torch.dtype, bool, str], Kernel] = {}
        self._signatures: dict[tuple[str, bool], CallSignature] = {}
        self._fused: dict[tuple[torch.dtype, str], bool] = {}
        # what the runtime in C++ knows: calls by their text, and a product, whose calls without levels it takes by mask
        self._numbers: dict[tuple[str, torch.dtype, bool], tuple[int, ...]] = {}
        self._native: Callable[..., list[Tensor]] | None = None
        self._launched: Launched | None = None  # on GPUs
        self._launch_form: Callable[[FormCall], Sequence[Tensor] | None] | None = None  # a polynomial's call
        self._offered: set[tuple[Kernel, torch.device]] = set()
        self._number = NO_NUMBER
        self._failed: list[tuple[KernelSpec, str, KernelError]] = []  # not said yet

    @property
    def product(self) -> Description:
        """The description of a product or a linear layer.  Raises `InputError` where it is a polynomial's."""
        if self.description.any_level:
            raise InputError("the description must be one of a product or a linear layer, not of a polynomial")
        return cast(Description, self.description)

    # -- by the runtime in C++ -----------------------------------------------------------------------------------------

    def quick(self, call: ProductCall) -> Sequence[Tensor]:
        """The open slots of a usual call whose kernel is built, by the runtime; nothing for others, nor at faults."""
        if not self._native:
            return ()
        x1, x2, w, g, src, dst, _, mask, nodes, *_ = call
        if src is None and dst is None:
            return self._native(x1, x2, w, self._number, mask, g)
        if type(nodes) is not int:  # of a trace, which must not be asked how many
            return ()
        if self._launched:
            made = self._launched.on_edges(call, self._number, self.description.check_index)
            if made is not None:
                return made
        return self._native(x1, x2, w, self._number, mask, g, src, dst, nodes)

    def quick_form(self, call: FormCall) -> Sequence[Tensor]:
        """Compute a call with its tensors as a list; nothing as above."""
        launch = self._launch_form
        if launch is not None and (made := launch(call)) is not None:
            return made
        if not self.description.any_level and (fixed := call.fixed()):
            return self.quick(fixed)
        tensors, src, dst, _, text, elements, *_ = call
        numbers = self._numbers.get((text, tensors[0].dtype, src is not None)) if tensors else None
        native = runtime() if numbers else None
        if numbers is None or native is None:
            return ()
        if len(numbers) == 1:
            return native.form(tensors, elements, numbers[0], src, dst)
        results = [native.form(tensors, elements, number, src, dst) for number in numbers]
        return [x for made in results for x in made] if all(results) else ()

    def _entered(self, native: Runtime, call: Slots, dtype: torch.dtype, indexed: bool) -> int:
        """The number by which the runtime knows a call of one kernel; that of a product is found by its mask too."""
        mask = self.description.mask(call)
        text, signature = self._name(str(call), dtype, indexed), self.signature(str(call), indexed)
        form = native.add_form(text, dtype, self.description.check_index, mask, *native_fields(signature))
        if mask and form != NO_NUMBER:
            self._number = native.number(self._text)
            if self._number != NO_NUMBER:
                native.set_call(self._number, indexed, dtype, form)
                self._native = native.run
        return form

    def _name(self, call: str, dtype: torch.dtype, indexed: bool) -> str:
        return f"{self._text} {call} {dtype} {indexed}"

    def _enter(self, spec: KernelSpec, kernel: Kernel) -> None:
        """Give a kernel to the runtime, where there is one that can call it."""
        address = getattr(kernel, "address", None)
        native = runtime() if address else None
        failed = failure_of(self.description, spec.dtype, "cpu")
        if native is None or address is None or failed or self.widens(spec.call, spec.dtype, spec.indexed, "cpu"):
            return
        form = self._entered(native, spec.call, spec.dtype, spec.indexed)
        if form != NO_NUMBER:
            native.set_kernel(form, address)
            self._numbers[str(spec.call), spec.dtype, spec.indexed] = (form,)

    def _enter_launch(self, call: Slots, kernel: Kernel, like: Tensor, indexed: bool) -> None:
        """Give the same to the runtime as it is launched on a GPU, where it has been launched by Python once."""
        launch, key = getattr(kernel, "launch", None), (kernel, like.device)
        if launch is None or key in self._offered or failure_of(self.description, like.dtype, like.device.type):
            return
        self._offered.add(key)
        native = runtime()
        if native is None or not native.launches():
            return
        launched = self._launched = self._launched or Launched(native)
        form = self._entered(native, call, like.dtype, indexed)
        if form == NO_NUMBER:
            return
        native.set_launch(form, *launch(like))
        if self.description.any_level:
            launched.enter_form(form, call, self.signature(str(call), False), kernel, like)
            self._launch_form = launched.of_form
        elif indexed:
            launched.enter_sorting(kernel, like, mask_of(call))

    def named(self, call: str, dtype: torch.dtype, indexed: bool) -> int:
        """The name by which compiled programs make a call of one kernel, which is built.

        Raises `KernelError` as `need`.
        """
        self.need(call, dtype, indexed)
        native, numbers = runtime(), self._numbers.get((call, dtype, indexed), ())
        if native is None or len(numbers) != 1:
            raise BackendError("compiled programs call kernels by the runtime in C++, which has not been built here")
        return native.name(self._name(call, dtype, indexed), numbers[0])

    def need(self, call: str, dtype: torch.dtype, indexed: bool) -> None:
        """Build the kernels of a call for a program, which calls no graphs in their place.

        Raises `KernelError` where one of this form cannot be built.
        """
        self._together(self.signature(call, indexed).parts, dtype, indexed, "cpu")
        if why := failure_of(self.description, dtype, "cpu"):
            raise KernelError(
                f"the kernel of {name_of(self.description.plan)}: {why}\n"
                "a compiled program calls kernels alone: write the program again, in which a graph stands for this "
                "product, or name another compiler in TPGEN_CXX"
            )

    # -- kernels -------------------------------------------------------------------------------------------------------

    def kernel(self, call: Slots, dtype: torch.dtype, indexed: bool = False, device: str = "cpu") -> Kernel:
        """The function that makes a call on rows, or on edges, of a dtype."""
        key = (call, dtype, indexed, device)
        found = self._kernels.get(key)
        if found is None:
            need_no_rehearsal()
            with _turns.setdefault((self._text, *key), Lock()):
                found = self._kernels.get(key) or self._built(
                    KernelSpec(self.description, call, dtype, indexed), device
                )
        return found

    def _built(self, spec: KernelSpec, device: str) -> Kernel:
        target = _need_target(device)
        if self.description.pairs and not target.takes_pairs:
            raise InputError(f"w: on {target.about} each edge takes a row of weights of its own; repeat those of pairs")
        try:
            made = target.load(spec)
        except KernelError as error:
            return self._stand_in(spec, device, error)
        self._enter(spec, made)  # first: other threads may look for it
        self._kernels[spec.call, spec.dtype, spec.indexed, device] = made
        return made

    def _stand_in(self, spec: KernelSpec, device: str, error: KernelError) -> Kernel:
        """Put PyTorch's operations in the place of a kernel that cannot be built, and say so.

        No usual call goes past Python any more, where modules see that they have to choose again.
        """
        made = self._kernels[spec.call, spec.dtype, spec.indexed, device] = standin(spec)
        self._native = self._launched = self._launch_form = None
        self._numbers.clear()
        self._failed.append((spec, device, error))
        return made

    def _say(self) -> None:
        """Tell of kernels that could not be built, on the thread that has asked for them."""
        while self._failed:
            note_failure(*self._failed.pop())

    def _call(self, kernel: Kernel, spec: KernelSpec, device: str, call: KernelCall) -> int:
        """Call a kernel; those of GPUs are compiled for a chip when they are first called there."""
        try:
            return kernel(call)
        except KernelError as error:
            made = self._stand_in(spec, device, error)
            self._say()
            return made(call)

    def _together(self, calls: Sequence[Slots], dtype: torch.dtype, indexed: bool, device: str) -> list[Kernel]:
        """The kernels of some calls, those that are missing built side by side."""
        _side_by_side(self._missing(calls, dtype, indexed, device))
        self._say()
        return [self.kernel(call, dtype, indexed, device) for call in calls]

    def _missing(self, calls: Sequence[Slots], dtype: torch.dtype, indexed: bool, device: str) -> list[partial[Kernel]]:
        """What builds those kernels of some calls that are missing."""
        missing = [call for call in calls if (call, dtype, indexed, device) not in self._kernels]
        return [partial(self.kernel, call, dtype, indexed, device) for call in missing]

    def build_together(self, calls: Iterable[str], like: Tensor, indexed: bool) -> None:
        """Build the kernels of calls on tensors like one side by side."""
        dtype, device = like.dtype, like.device.type
        if dtype not in DTYPES or target_of(device) is None or not self.description.live:
            return
        if indexed and self.repeats(dtype, device):
            kernels_of(self.product.per_edge).build_together(calls, like, indexed)
            return
        parts = [part for text in calls for part in self.signature(text, indexed).parts]
        widens = {part: self.widens(part, dtype, indexed, device) for part in parts}
        for wide in (False, True):
            chosen = [p for p in parts if widens[p] == wide]
            number = torch.float32 if wide else dtype
            if begun(self._missing(chosen, number, indexed, device)):
                continue
            kernels = self._together(chosen, number, indexed, device)
            _side_by_side([partial(_compile, k, like) for k in kernels if hasattr(k, "compile")])

    def sort_together(self, call: FormCall) -> None:
        """Sort edges by both ends at once, where a kernel takes them sorted and gradients are to follow."""
        x1, ends = call.tensors[0], [x for x in (call.src, call.dst) if x is not None and x.dim() == 1]
        target = target_of(x1.device.type)
        if target is None or not target.sorts or call.by_dst is not None or not x1.dim():
            return
        usual = [x for x in ends if x.dtype in _INDICES and x.is_contiguous() and x.device == x1.device]
        if len(usual) == 2 and len({len(x) for x in usual}) == 1:
            src, dst = usual
            know_both(src, dst, x1.shape[0], max(0, call.nodes), captures.capture_of(x1.get_device()))

    def fuses(self, dtype: torch.dtype, device: str) -> bool:
        """Whether second derivatives of a product's tensors of a dtype are one kernel there."""
        found = self._fused.get((dtype, device))
        if found is None:
            target, spec = target_of(device), KernelSpec(self.description, raised_call(SLOTS, SLOTS), dtype)
            taken = target is not None and dtype in DTYPES and self.description.live
            # of whatever chip: a GPU need not be there for tensors without values
            found = taken and target is not None and not target.obstacle(spec, None)
            self._fused[dtype, device] = found
        return found

    def expands(self, call: FormCall) -> bool:
        """Whether a call has no kernel of its own, and is a sum of calls without levels."""
        if self.description.any_level or not call.slots.levels:
            return False
        return not (call.tensors and self.fuses(call.tensors[0].dtype, call.tensors[0].device.type))

    def widens(self, call: Slots, dtype: torch.dtype, indexed: bool, device: str) -> bool:
        """Whether a call on bfloat16 computes on float32 copies of its operands."""
        target = target_of(device) if dtype == torch.bfloat16 else None
        return target is not None and target.rounds_sums and self.description.rounds(call, indexed)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def signature(self, text: str, indexed: bool) -> CallSignature:
        """Operands and results of a call, read once.  Raises `PlanError` or `InputError` where it is none."""
        found = self._signatures.get((text, indexed))
        if found is None:
            made = CallSignature(self.description, Slots.parse(text), indexed)
            found = self._signatures[text, indexed] = made
        return found

    def check(self, call: FormCall) -> tuple[CallSignature, Sizes, Counts]:
        """Raise `InputError` where a tensor does not fit; returns the sizes of the call, and what its axes count."""
        signature = self.signature(call.call, call.indexed)
        sizes, counts = signature.sizes(call)
        signature.check_kinds(call, sizes.rows)
        return signature, sizes, counts

    def run(self, call: FormCall | ProductCall) -> list[Tensor]:
        """The opened slots of a call."""
        made = self.quick(call) if isinstance(call, ProductCall) else self.quick_form(call)
        return list(made) or self._run(call.listed())

    def _run(self, call: FormCall) -> list[Tensor]:
        signature, sizes, counts = self.check(call)
        like, indexed = call.tensors[0], call.indexed
        dtype, device = like.dtype, like.device.type
        if self.widens(signature.call, dtype, indexed, device):
            return [x.bfloat16() for x in self._run(call._replace(tensors=[x.float() for x in call.tensors]))]
        if indexed and self.repeats(dtype, device):
            return self._run_per_edge(call, signature, counts)
        target = _need_target(device)
        results = [target.empty(shape, dtype, like.device) for shape in signature.shapes(call.tensors, counts)]
        if not self.description.live or not sizes.channels:  # nothing to compile
            return [x.zero_() for x in results]
        if begun(self._missing(signature.parts, dtype, indexed, device)):
            return [x.zero_() for x in results]
        kernels = self._together(signature.parts, dtype, indexed, device)
        entered = [self._numbers.get((str(part), dtype, indexed), ()) for part in signature.parts]
        if all(entered):
            self._numbers.setdefault((call.call, dtype, indexed), tuple(n for numbers in entered for n in numbers))
        torch.get_num_threads()  # a Python thread learns torch's setting when it first asks
        given = dict(zip(signature.call.given, map(_dense, call.tensors), strict=True))
        made = dict(zip(signature.call.opened, results, strict=True))
        edges, index = self._edges(call, counts), None if call.elements is None else _dense(call.elements)
        for part, kernel in zip(signature.parts, kernels, strict=True):
            operands, opened = [given[s] for s in part.given], [made[s] for s in part.opened]
            spec = KernelSpec(self.description, part, dtype, indexed)
            fault = self._call(kernel, spec, device, KernelCall(operands, opened, sizes, edges, index))
            if fault:
                raise self._fault(fault, call, counts)
            self._enter_launch(part, kernel, like, indexed)
        return results

    def repeats(self, dtype: torch.dtype, device: str) -> bool:
        """Whether rows of weights that two edges share are repeated, since kernels there take one for each edge."""
        if not self.description.pairs:
            return False
        target = target_of(device)
        return target is None or not target.takes_pairs or not self.product.shares(dtype)

    def _run_per_edge(self, call: FormCall, signature: CallSignature, counts: Counts) -> list[Tensor]:
        tensors = [
            rows_of_edges(x, counts[ROWS]) if g.shape.counts == PAIRS else x
            for g, x in zip(signature.given, call.tensors, strict=True)
        ]
        text = self.product.per_edge
        made = kernels_of(text).run(call._replace(tensors=tensors, description=text))
        shapes = [shape for _, shape in signature.opened]
        return [sums_of_pairs(x, counts[PAIRS]) if s.counts == PAIRS else x for s, x in zip(shapes, made, strict=True)]

    def _edges(self, call: FormCall, counts: Counts) -> Edges | None:
        if call.src is None or call.dst is None:
            return None
        check = self.description.check_index
        ends = _dense(call.src), _dense(call.dst), counts[SOURCES], counts[DESTINATIONS]
        return Edges(*ends, check, call.by_src, call.by_dst, counts.get(PAIRS, 0))

    def _fault(self, code: int, call: FormCall, counts: Counts) -> Exception:
        what = self.description.faults.get(code, f"fault {code}")
        if call.src is not None and code in (_SOURCE, _DESTINATION):
            last = (counts[SOURCES] if code == _SOURCE else counts[DESTINATIONS]) - 1
            rule = f"0 to {last}, " + ("the rows of x1" if code == _SOURCE else "below num_nodes")
            low, high = _ends(call.src if code == _SOURCE else call.dst)
            return InputError(f"{what}: indices run from {rule}, got {low} to {high}")
        if call.elements is not None and code == _SOURCE:
            low, high = _ends(call.elements)
            return InputError(f"index: elements run from 0 to {counts['elements'] - 1}, got {low} to {high}")
        return BackendError(f"a kernel stopped: {what}; use smaller batches")


def _side_by_side(tasks: Sequence[Callable[[], object]]) -> None:
    """Do tasks on threads of their own, and one alone on this."""
    if len(tasks) == 1:
        tasks[0]()
    elif tasks:
        with ThreadPoolExecutor(len(tasks)) as pool:
            contexts = [copy_context() for _ in tasks]
            list(pool.map(lambda context, task: context.run(task), contexts, tasks))


def _compile(kernel: Any, like: Tensor) -> None:
    """Compile a kernel ahead of its first call, which sees to what its compiler refuses."""
    with suppress(KernelError):
        kernel.compile(like)


def _ends(index: Tensor | None) -> tuple[int, int]:
    assert index is not None
    low, high = index.aminmax()
    return int(low), int(high)


def _need_target(device: str) -> KernelTarget:
    """The target of a device that the tensors have been checked to be on."""
    target = target_of(device)
    assert target is not None, device
    return target


def _dense(x: Tensor) -> Tensor:
    return x if x.is_contiguous() else x.contiguous()


@remembered("kernels of forms, by description")
def kernels_of(description: str) -> Kernels:
    """The kernels of a described form, prepared once per process."""
    return Kernels(description)
