"""Background builds of programs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import finalize

import cloudpickle
import torch
from torch import nn

from tpgen.networks.gradients import Requests, example_cotangents, with_gradients
from tpgen.networks.outcome import evaluation
from tpgen.networks.signature import ParameterSlots, Signature
from tpgen.networks.step_program import DOES_NOT_COMPILE, Program

_NAMES = ("call.pt", "said.txt")


class ProgramBuilder:
    """Background process that builds a program into the kernel cache; raises if pickle refuses the network."""

    def __init__(self, network: nn.Module, held: dict[str, Any]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tpgen-"))
        self._owner = os.getpid()
        try:
            call, said = (self._folder / name for name in _NAMES)
            here = {"path": sys.path, "threads": torch.get_num_threads(), "dtype": torch.get_default_dtype()}
            torch.save(here, self._folder / "here.pt")
            count = len(ParameterSlots(network, gradients=True).tensors())
            everything = {"network": network, "slots": count, **held}
            torch.save(everything, call, pickle_module=cloudpickle)  # classes of a script, too
            with said.open("wb") as file:
                self._process = subprocess.Popen(
                    [sys.executable, "-W", "ignore", "-m", __name__, str(self._folder)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=file,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(x for x in sys.path if x)},
                    start_new_session=True,  # a Ctrl-C is this process's
                )
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._kill_and_delete = finalize(self, _kill_and_delete, self._process, self._folder, self._owner)

    def works(self) -> bool:
        """Whether the process runs; False in a fork."""
        return self._owner == os.getpid() and self._process.poll() is None

    def wait(self) -> None:
        """Wait until the process ends."""
        if self._owner == os.getpid():
            self._process.wait()

    def failure(self) -> str:
        """Last stderr line of a failed process, or ""."""
        if not self._process.returncode:
            return ""
        lines = (self._folder / _NAMES[1]).read_text(errors="replace").strip().splitlines()
        return next(reversed(lines), f"exit status {self._process.returncode}")

    def end(self) -> None:
        """Kill the process and delete its files."""
        self._kill_and_delete()


def _kill_and_delete(process: subprocess.Popen[bytes], folder: Path, owner: int) -> None:
    if owner != os.getpid():
        process.returncode = 0  # a forked process has none of its parent's
        return
    if process.poll() is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, 9)  # the compilers that it runs, too
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def build(network: nn.Module, grad: bool, args: tuple, options: dict[str, Any], requests: Requests = ()) -> Program:
    """Build the program of a network, and of requested gradients, for calls like this example."""
    title, (signature, tensors) = type(network).__name__, Signature.split_call(args, options)
    slots = ParameterSlots(network, gradients=bool(requests))
    if not requests:
        return Program.build_from_example(title, evaluation(network, grad), slots, signature, tensors)
    cotangents = example_cotangents(network, requests, signature, tensors)
    return Program.build_from_example(title, with_gradients(network, requests), slots, signature, tensors, cotangents)


def _build_program_from_folder(folder: Path) -> None:
    with contextlib.suppress(OSError, AttributeError):
        os.nice(10)
    here = torch.load(folder / "here.pt", weights_only=False)
    sys.path[:] = here["path"]
    torch.set_num_threads(here["threads"])
    torch.set_default_dtype(here["dtype"])
    held = torch.load(folder / _NAMES[0], weights_only=False)
    (folder / _NAMES[0]).unlink()  # it may be large, and who began this may be gone
    warnings.filterwarnings("error", message=f".*{DOES_NOT_COMPILE}")  # so that this process says why
    before, after = held.pop("slots"), len(ParameterSlots(held["network"], gradients=True).tensors())
    requests = _renumber_sources_of_call(held.pop("requests", ()), before, after)
    build(**held, requests=requests)


def _renumber_sources_of_call(requests: Requests, before: int, after: int) -> Requests:
    # tensors of a call are numbered behind parameters and buffers, of which a copy by pickle may have more
    return tuple(
        replace(of, wanted=frozenset(n + (after - before) * (n >= before) for n in of.wanted)) for of in requests
    )


if __name__ == "__main__":
    _build_program_from_folder(Path(sys.argv[1]))
