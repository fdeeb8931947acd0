"""A package says which features of a processor it needs, and looks for them where it is loaded, on x86 and on Arm."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from tpgen.networks.deployment import runtime

CPUINFO = {
    "x86": "processor\t: 0\nflags\t\t: fpu sse2 avx avx2 fma\nvmx flags\t: bmi2\n",
    "Arm": "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd atomics sve\nCPU part\t: 0xd40\n",
}


@pytest.fixture
def loader() -> ModuleType:
    file = Path(runtime.__file__).parent / "files" / "load.py"
    spec = spec_from_file_location("load", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "machine, features, lacking",
    [
        ("x86", ["avx2", "fma"], ""),
        ("x86", ["bmi2", "avx512f", "fma"], "avx512f and bmi2"),
        ("Arm", ["asimd", "atomics"], ""),
        ("Arm", ["asimd", "sve2"], "sve2"),
        ("Arm", ["sve", "sve=32"], ""),
        ("Arm", ["sve", "sve=64"], "sve=64"),
    ],
)
def test_what_a_processor_lacks(
    machine: str, features: list[str], lacking: str, loader: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class System:
        def prctl(self, asked: int) -> int:
            return {51: 1 << 17 | 32}[asked]

    monkeypatch.setattr(loader.ctypes, "CDLL", lambda _: System())
    file = tmp_path / "cpuinfo"
    file.write_text(CPUINFO[machine])
    assert loader._missing_features(features, file) == lacking
    assert loader._missing_features(features, tmp_path / "none") == "", "the system does not say"


def test_features_of_arm_are_listed_with_the_length_of_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    here = "aarch64 fp asimd cpuid atomics sve implementer=0x41 sve=32"
    monkeypatch.setattr(runtime, "cpu_features", lambda: here)
    assert runtime.list_processor_features() == ["asimd", "atomics", "sve", "sve=32"]
    table = runtime.kernel_table_as_cpp([], [], runtime.list_processor_features())
    assert 'FEATURES[] = {"asimd", "atomics", "sve", "sve=32", 0};' in table
