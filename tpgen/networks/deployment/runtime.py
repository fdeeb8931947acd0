"""Kernels and library of a deployed program."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

import tpgen.kernels.runtime.ops  # noqa: F401  registers what programs call
from tpgen.base._torch import pytree
from tpgen.base.errors import DeployError, KernelError
from tpgen.form.call import Call
from tpgen.kernels.arguments import KernelSpec
from tpgen.kernels.build.build import LibraryRequest, load_library
from tpgen.kernels.build.compiler import DTYPES, need_compiler
from tpgen.kernels.build.processor import cpu_features
from tpgen.kernels.rows import RULES, join_rule_names, parse_row_rules
from tpgen.kernels.runtime import forms
from tpgen.kernels.runtime.call import FormCall
from tpgen.kernels.runtime.failures import failures_seen
from tpgen.kernels.runtime.load import generate_kernel_source
from tpgen.kernels.runtime.native.source import libtorch, write_deployed_runtime_source
from tpgen.kernels.runtime.runtime import kernels_of
from tpgen.kernels.runtime.signature import encode_signature_for_cpp
from tpgen.networks.deployment.example import run_command

LIBRARY = "libtpgen.so"
# what a compiler may use without being asked again, by the names that the system and the compiler share
_X86 = ("avx", "avx2", "fma", "bmi2", "avx512f", "avx512bw", "avx512dq", "avx512vl")
_ARM = (
    *("asimd", "atomics", "fphp", "asimdhp", "asimdrdm", "asimddp", "asimdfhm", "jscvt", "fcma", "lrcpc", "ilrcpc"),
    *("flagm", "uscat", "sve", "sve2", "i8mm", "bf16"),
)
_LENGTH = "sve="  # of SVE's vectors in bytes: code for one length does not run on another


@dataclass(frozen=True)
class NeededKernel:
    """Kernel that a deployed network calls: plan, dtype, call, part of the call, row rules."""

    description: str
    dtype: torch.dtype
    call: str
    part: str
    rows: str

    def build(self) -> None:
        """Build the kernel unless cached.  Raises `KernelError` on failure."""
        kernels_of(self.description).build_kernels_or_raise(self.part, self.dtype, parse_row_rules(self.rows))

    def library_file(self) -> Path:
        """Path of the compiled kernel."""
        spec = KernelSpec(
            kernels_of(self.description).description, Call.parse(self.part), self.dtype, parse_row_rules(self.rows)
        )
        return Path(load_library(LibraryRequest(generate_kernel_source(spec).text))._name)


def list_kernels_in(program: ExportedProgram) -> list[NeededKernel]:
    """A program's distinct kernels in order; `DeployError` for a call without one."""
    return list(dict.fromkeys(needed for node in program.graph.nodes for needed in _list_kernels_that_node_needs(node)))


def build_kernels_of(
    program: ExportedProgram, export_again: Callable[[], ExportedProgram]
) -> tuple[ExportedProgram, list[NeededKernel]]:
    """Build a program's kernels; ``export_again`` if one fails; return program and kernels."""
    while True:
        failures, kernels = failures_seen(), list_kernels_in(program)
        try:
            for needed in kernels:
                needed.build()
        except KernelError as error:
            if failures == failures_seen():
                raise DeployError(f"{error}\nor deploy tpgen.portable(network)") from error
            program = export_again()
        else:
            return program, kernels


def _list_kernels_that_node_needs(node: Any) -> Iterator[NeededKernel]:
    if node.target is torch.ops.tpgen.form.default:
        given = pytree.tree_map(lambda x: x.meta["val"] if hasattr(x, "meta") else x, tuple(node.args))
        yield from _list_kernels_that_call_needs(FormCall.from_arguments(*given))


def _list_kernels_that_call_needs(call: FormCall) -> Iterator[NeededKernel]:
    kernels, dtype, rules = kernels_of(call.description), call.tensors[0].dtype, call.rules
    description = kernels.description
    in_float32 = kernels.computes_in_float32(call.slots, dtype, rules, "cpu")
    if (
        not description.has_live_paths
        or in_float32
        or kernels.lacks_own_kernel(call)
        or kernels.unsupported_rules(rules, dtype, "cpu")
    ):
        raise DeployError(
            f"a call in {dtype} of plan {description.plan.digest} has no kernel of its own to deploy: convert "
            "the network with .float(), or deploy tpgen.portable(network)"
        )
    for part in kernels.signature(call.call, rules).parts:
        yield NeededKernel(call.description, dtype, call.call, str(part), join_rule_names(rules))


def write_runtime(kernels: Sequence[NeededKernel], folder: Path) -> None:
    """Compile the C++ runtime and copy kernels into a folder; `DeployError` if the compiler fails."""
    (folder / "kernels").mkdir()
    files = [f"{number}.so" for number in range(len(kernels))]
    for needed, file in zip(kernels, files, strict=True):
        shutil.copyfile(needed.library_file(), folder / "kernels" / file)
    source = folder / "libtpgen.cpp"
    sums = [(file, zlib.crc32((folder / "kernels" / file).read_bytes())) for file in files]
    source.write_text(
        write_deployed_runtime_source(kernel_table_as_cpp(kernels, sums, list_processor_features())), encoding="utf-8"
    )
    compiler = need_compiler()
    command = compiler.make_command([source], folder / LIBRARY, [libtorch()])
    # without the flags of any instruction set: the library itself says what kernels need
    run_command([flag for flag in command if flag not in compiler.instructions.flags])
    source.unlink()


def list_processor_features() -> list[str]:
    """List this processor's features that compiled kernels may use."""
    here = cpu_features().split()
    return [name for name in (*_X86, *_ARM) if name in here] + [name for name in here if name.startswith(_LENGTH)]


# -- the table, as C++ -------------------------------------------------------------------------------------------------

File = tuple[str, int]  # name and checksum
_STRUCTS = ("Given", "Opened", "Rule")  # in the order of `encode_signature_for_cpp`


def kernel_table_as_cpp(kernels: Sequence[NeededKernel], files: Sequence[File], features: Sequence[str]) -> str:
    """C++ source of the library's table of kernels."""
    major, minor = torch.__version__.split(".")[:2]
    arguments = (_write_string_list(rule.name, rule.argument) for rule in RULES.values())
    return "\n".join(
        [
            *_kernel_entries_as_cpp(kernels, files),
            f"static const char* const FORM = {json.dumps(forms.FORM)};",
            f"static const struct Argument {{ const char *rule, *name; }} ARGUMENTS[] = {{{', '.join(arguments)}}};",
            f"enum : u64 {{ TORCH = {major}ull << 56 | {minor}ull << 48 }};",
            f'#define BUILT_WITH "{major}.{minor}"',
            f"static const char* const FEATURES[] = {{{''.join(f'{json.dumps(name)}, ' for name in features)}0}};",
        ]
    )


def _kernel_entries_as_cpp(kernels: Sequence[NeededKernel], files: Sequence[File]) -> Iterator[str]:
    rows = []
    for number, (needed, (file, checksum)) in enumerate(zip(kernels, files, strict=True)):
        form, part = kernels_of(needed.description), Call.parse(needed.part)
        signature = form.signature(needed.part, parse_row_rules(needed.rows))
        fields = encode_signature_for_cpp(signature, form.description.check_index)
        for name, parts in zip(_STRUCTS, fields, strict=True):
            # a list of none has room for one that nobody reads
            listed = ", ".join(map(_write_int_list, parts)) or "{}"
            yield f"static const {name} {name.lower()}_{number}[] = {{{listed}}};"
        texts = ", ".join(map(json.dumps, (needed.description, needed.call, needed.rows)))
        counts = ", ".join(map(str, (list(DTYPES).index(needed.dtype), *map(len, fields))))
        tables = ", ".join(f"{name.lower()}_{number}" for name in _STRUCTS)
        rows.append(
            f'  {{{texts}, {counts}, {tables}, "{file}", {checksum}, 0, {form.description.opened_bits(part)}, {{}}}},'
        )
    yield "\n".join(["static Form FORMS[] = {", *rows, "};"])


def _write_string_list(*texts: str) -> str:
    return f"{{{', '.join(map(json.dumps, texts))}}}"


def _write_int_list(numbers: Sequence[int]) -> str:
    return f"{{{', '.join(str(int(n)) for n in numbers)}}}"
