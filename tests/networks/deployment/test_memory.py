"""Deploys leave nothing behind once they are done."""

from __future__ import annotations

import pytest

from tests.cases import run_python
from tests.machine import needs_compiler

# in a process of its own: pytest keeps what torch logs; counted are objects of programs, and texts in both caches
DEPLOYS = """
import gc, linecache, tempfile
from collections import Counter
import torch, tpgen
from torch.fx import graph_module

PROGRAMS = ("tpgen", "torch.fx", "torch.export", "torch._subclasses", "torch._guards", "torch._dynamo.source")

def held():
    for _ in range(3):  # what C++ holds is let go by what a collection has found, and is found by the next
        gc.collect()
    kinds = (type(x) for x in gc.get_objects())
    found = Counter(kind.__qualname__ for kind in kinds if str(kind.__module__).startswith(PROGRAMS))
    return found + Counter(texts=len(graph_module._loader.eval_cache), lines=len(linecache.cache))

layer = tpgen.Linear("4x0e+4x1o", "4x0e+4x1o", strategy="kernel")
network, counts = torch.nn.Sequential(layer, torch.nn.Linear(16, 8, bias=False)), []
with tempfile.TemporaryDirectory() as folder:
    for n in range(4):
        tpgen.deploy(network, [torch.randn(5, 16)], f"{folder}/{n}")
        if n in (1, 3):
            counts.append(held())
print(dict(counts[1] - counts[0]))
"""


@pytest.mark.slow
@needs_compiler
def test_deploys_leave_no_objects_and_no_texts() -> None:
    assert run_python(DEPLOYS).splitlines()[-1] == "{}"
