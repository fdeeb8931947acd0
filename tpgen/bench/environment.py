"""The machine and the versions that figures were measured with."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from tpgen._version import __version__


@dataclass(frozen=True)
class Environment:
    """The machine and the versions of packages that a figure depends on besides the code."""

    tpgen: str
    torch: str
    e3nn: str
    cuequivariance: str  # empty where it is not installed
    python: str
    system: str
    cpu: str
    cpu_capability: str  # widest vector instructions that torch uses
    cores: int
    threads: int
    gpu: str  # empty where there is none
    compile_caches: bool  # whether Inductor may take code of an earlier run: first calls are shorter then


def environment() -> Environment:
    """The environment of this process."""
    return Environment(
        tpgen=__version__,
        torch=torch.__version__,
        e3nn=_version("e3nn"),
        cuequivariance=_version("cuequivariance-torch"),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        cpu=_cpu_model(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        compile_caches=os.environ.get("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "0") != "1",
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
