"""One cache for many processes: killed while they build, forked and spawned while others build."""

from __future__ import annotations

import json
import signal

import pytest

from tests.cases import run_python
from tests.machine import needs_compiler

pytestmark = [pytest.mark.slow, needs_compiler]

KILLED = str(-signal.SIGKILL)
MANY = """
import json, os, random
import torch
torch.set_num_threads(1)
from tests.attacks.processes import call, many, WIDTHS
from tpgen.kernels.build.build import cache_clear, cache_info
random.seed(0)
ends = many(10, seconds=25.0)
for width in WIDTHS:
    assert torch.allclose(call(width), call(width, "einsum"))
assert cache_info().entries >= len(WIDTHS)
cache_clear()
print(json.dumps([ends, os.listdir(cache_info().path)]))
"""

LOADERS = """
import threading
import torch
from torch.utils.data import DataLoader
from tests.attacks.processes import Products, call
if __name__ == "__main__":
    wanted = [float(call(width, "einsum").sum()) for width in (4, 5, 6)]
    thread = threading.Thread(target=call, args=(7,))
    thread.start()  # builds, while workers are forked or spawned
    for method in ("fork", "spawn"):
        loader = DataLoader(Products(), batch_size=None, num_workers=2, multiprocessing_context=method, timeout=120)
        assert torch.allclose(torch.tensor(list(loader)), torch.tensor(wanted)), method
    thread.join()
    print("done")
"""


def test_processes_that_build_and_clear_and_are_killed(tmp_path) -> None:
    """No end but a good one and SIGKILL; what is left can be used, and cleared to the last file."""
    ends, left = json.loads(run_python(MANY, TPGEN_CACHE_DIR=str(tmp_path)).splitlines()[-1])
    assert left == []
    assert set(ends) <= {"0", KILLED}, ends
    assert ends["0"] > 10
    assert ends[KILLED] > 0


def test_workers_of_a_loader_while_a_kernel_is_built(tmp_path) -> None:
    script = tmp_path / "loaders.py"
    script.write_text(LOADERS)
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    assert run_python(code, TPGEN_CACHE_DIR=str(tmp_path / "cache")).endswith("done\n")
