"""What kernels are compiled for: the machine, or an instruction set by name; what a machine cannot run is refused."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch

from tests.kernels.test_build import run_product
from tpgen.base.errors import BackendError
from tpgen.kernels.build import processor
from tpgen.kernels.build.build import LibraryRequest
from tpgen.kernels.build.compiler import find_compiler, need_compiler, cpu_target
from tpgen.kernels.build.processor import SETS, cpu_features, instruction_set

LEAST = SETS[-1].name  # which every machine of its kind has


def test_an_unknown_set_is_an_error_with_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPGEN_TARGET", "sse9")
    known = ", ".join(("native", *(each.name for each in SETS)))
    for asked in (instruction_set, find_compiler, lambda: cpu_target(torch.float32), run_product):
        with pytest.raises(BackendError, match=f"unknown instruction set 'sse9'.*{known}: TPGEN_TARGET names one"):
            asked()


@pytest.mark.parametrize("each", SETS, ids=lambda each: each.name)
def test_a_set_that_the_machine_lacks_is_refused(each: processor.InstructionSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPGEN_TARGET", each.name)
    monkeypatch.setattr(processor, "cpu_features", lambda: " ".join(("fpu", *each.features[:-1])))
    with pytest.raises(BackendError, match=f"TPGEN_TARGET={each.name} needs {each.features[-1]}, which this processor"):
        find_compiler()
    monkeypatch.setattr(processor, "cpu_features", lambda: " ".join(each.features))
    assert instruction_set() == each


@pytest.mark.parametrize("name", ["", "native"])
def test_native_is_what_there_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPGEN_TARGET", name)
    assert cpu_features() in need_compiler().identity
    assert any(flag.endswith("=native") for flag in need_compiler().base_command)


def test_a_named_set_has_one_key_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """So machines of a cluster share what one of them has compiled; kernels for a machine alone they do not."""
    keys: dict[str, set[str]] = {}
    for name in ("native", LEAST):
        monkeypatch.setenv("TPGEN_TARGET", name)
        for more in ("", " rdpid", " sve=32"):
            found = f"{platform.machine()} {' '.join(SETS[-1].features)}{more}"
            monkeypatch.setattr(processor, "cpu_features", lambda found=found: found)
            keys.setdefault(name, set()).add(LibraryRequest("text").key(need_compiler()))
    assert {name: len(found) for name, found in keys.items()} == {"native": 3, LEAST: 1}


def test_widths_follow_the_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPGEN_TARGET", LEAST)
    assert (cpu_target(torch.float32).lanes, cpu_target(torch.float64).lanes) == (4, 2)


def test_the_length_of_vectors_on_arm_is_in_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class System:
        def prctl(self, asked: int) -> int:
            assert asked == 51
            return 1 << 17 | 32  # inherited, 32 bytes

    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n" * 2)
    monkeypatch.setattr(processor, "_CPUINFO", file)
    monkeypatch.setattr(processor, "_ARM", True)
    monkeypatch.setattr(processor.ctypes, "CDLL", lambda _: System())
    read = cpu_features.__wrapped__
    assert read() == f"{platform.machine()} fp asimd sve implementer=0x41 part=0xd40 sve=32"
