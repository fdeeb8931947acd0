"""A deployed folder's C++ example."""

from __future__ import annotations

import subprocess
from pathlib import Path

import torch
from torch import Tensor

from tpgen.base.errors import DeployError
from tpgen.kernels.build.compiler import need_compiler

LIBRARIES = ("-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-ldl")


def build_example(source: Path, program: Path) -> list[str]:
    """Compile a C++ file against this torch; return the command.  Raises `DeployError` on failure."""
    home = Path(torch.__file__).parent
    include = home / "include"
    command = [*need_compiler().program, "-std=c++20", str(source), "-o", str(program)]
    command += [f"-I{include}", f"-I{include / 'torch/csrc/api/include'}"]
    command += [f"-L{home / 'lib'}", f"-Wl,-rpath,{home / 'lib'}", *LIBRARIES]
    run_command(command)
    return command


def run_example(program: Path, *arguments: str | Path) -> list[Tensor]:
    """Run a program; return each printed line of numbers as a float64 tensor."""
    lines = run_command([str(program), *map(str, arguments)]).splitlines()
    return [torch.tensor([float(x) for x in line.split()], dtype=torch.float64) for line in lines]


def run_command(command: list[str]) -> str:
    """Run a command; return the standard output.  Raises `DeployError` on failure."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=600, check=False)
    if done.returncode:
        raise DeployError(f"this failed: {' '.join(command)}\n{done.stderr.strip()}")
    return done.stdout
