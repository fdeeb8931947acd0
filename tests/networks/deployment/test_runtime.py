"""The operators of a deployed network in a process that knows nothing of tpgen."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from e3nn.o3 import Irreps

from tests.kernels.plans import gradients, operands
from tests.machine import needs_compiler
from tpgen.kernels.rows import rules_of
from tpgen.kernels.runtime.call import opening_text
from tpgen.kernels.runtime.description import describe
from tpgen.kernels.runtime.ops import kernel_conv, kernel_product
from tpgen.kernels.runtime.polynomials import forward_call
from tpgen.kernels.runtime.runtime import kernels_of as forms
from tpgen.kernels.sweep.terms import SLOTS, raised_call
from tpgen.networks.deployment import runtime
from tpgen.networks.deployment.runtime import NeededKernel
from tpgen.planner.contraction import make_contraction_plan
from tpgen.planner.presets import channelwise

pytestmark = needs_compiler
PLAN = channelwise("4x0e+4x1o", "0e+1o", "0e+1o")
TEXT = describe(PLAN)


def listed(text: str, call: str, rows: str = "") -> list[NeededKernel]:
    """Kernels of a call."""
    parts = forms(text).signature(call, rules_of(rows)).parts
    return [NeededKernel(text, torch.float64, call, str(part), rows) for part in parts]


FORWARD, BACKWARD = opening_text("out"), opening_text("x1", "x2", "w")


UNKNOWN = (
    "tpgen: a call or a dtype that was not deployed; deploy the network that calls it, one network for each process"
)
KERNELS = [*listed(TEXT, FORWARD), *listed(TEXT, FORWARD, "src dst"), *listed(TEXT, BACKWARD)]

# folder and file of operands; prints the message of each error, writes results
ELSEWHERE = """
import sys, torch
sys.modules["tpgen"] = None
torch.ops.load_library(sys.argv[1] + "/libtpgen.so")
x1, x2, w, g, src, dst, text = torch.load(sys.argv[2])
def product(x1, x2, w, text, *edges, nodes=0):
    return torch.ops.tpgen.form([x1, x2, w], [*edges], text, "x1 x2 w -> out", "src dst" if edges else "", nodes)[0]
def gradients(x1, x2, w, g, text, opened):
    return torch.ops.tpgen.form([x1, x2, w, g], [], text, "x1 x2 w out -> " + opened)
def tried(call):
    try:
        return call()
    except RuntimeError as error:
        print(str(error).splitlines()[0])
results = [tried(lambda: product(x1, x2, w, text)), tried(lambda: product(x1[:3], x2, w, text, src, dst, nodes=4))]
results += [tried(lambda: product(x1[:3], x2, w, text, src.int(), dst, nodes=4))]
results += tried(lambda: gradients(x1, x2, w, g.T.contiguous().T, text, "x1 x2 w")) or []
tried(lambda: product(x1[:, 1:], x2, w, text))
tried(lambda: product(x1[:3], x2, w, text, src + 3, dst, nodes=4))
tried(lambda: product(x1, x2, w, text[1:]))
tried(lambda: gradients(x1, x2, w, g, text, "x1"))
torch.save(results, sys.argv[2])
"""


def elsewhere(folder: Path, rows: int = 5) -> tuple[list[str], list[torch.Tensor], tuple]:
    """What a process without tpgen says and returns, and the operands."""
    src, dst = torch.randint(3, (2, rows))
    given = (*operands(PLAN, rows).values(), src, dst, TEXT)
    torch.save(given, folder / "given.pt")
    command = [sys.executable, "-c", ELSEWHERE, str(folder), str(folder / "given.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), torch.load(folder / "given.pt"), given


def test_operators_without_python_compute_the_same(tmp_path: Path) -> None:
    runtime.write_runtime(KERNELS, tmp_path)
    said, results, (x1, x2, w, g, src, dst, _) = elsewhere(tmp_path)
    wanted = [kernel_product(x1, x2, w, TEXT), kernel_conv(x1[:3], x2, w, src, dst, 4, TEXT)]
    wanted += [wanted[-1], *gradients(TEXT, x1, x2, w, g)]
    assert len(results) == 6
    assert all(map(torch.equal, results, wanted))
    numel = PLAN.weight_numel
    assert said == [
        f"tpgen: tensors do not fit the call 'x1 x2 w -> out': shapes (5, 15) (5, 4) (5, {numel}); "
        f"rows have 16 4 {numel} numbers",
        "tpgen: edge_src holds an index out of range",
        UNKNOWN,
        UNKNOWN,
    ]


@pytest.mark.parametrize(
    "lacks, message",
    [
        ("half a kernel", r"tpgen: a kernel is missing or not what was deployed: 1.so; copy the whole folder again"),
        ("one bit", r"tpgen: a kernel is missing or not what was deployed: 1.so; copy the whole folder again"),
        ("a feature", r"tpgen: built for a processor with xop; deploy on the machine that it is to run on"),
        ("a version", r"tpgen: built with torch 99.0, and this is torch \d.\d+; use that torch or a later one"),
    ],
)
def test_what_cannot_run_says_why_at_the_first_call(
    lacks: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lacks == "a feature":
        monkeypatch.setattr(runtime, "features", lambda: ["xop"])
    if lacks == "a version":
        monkeypatch.setattr(torch, "__version__", "99.0.0")
    runtime.write_runtime(KERNELS, tmp_path)
    monkeypatch.undo()
    file = tmp_path / "kernels" / "1.so"
    whole = file.read_bytes()
    if lacks == "half a kernel":
        file.write_bytes(whole[:1000])
    if lacks == "one bit":
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    said, results, _ = elsewhere(tmp_path)
    assert re.match(message, said[0])
    assert set(results) == {None}


POLYNOMIAL = """
import sys, torch
sys.modules["tpgen"] = None
torch.ops.load_library(sys.argv[1] + "/libtpgen.so")
calls = torch.load(sys.argv[2])
torch.save([torch.ops.tpgen.form(*call) for call in calls], sys.argv[2])
tensors, (index,), text, call, rows = calls[0]
for tensors, text, index in ((tensors[:1], text, index), ([tensors[0][:, 1:], *tensors[1:]], text, index),
                             (tensors, text, index + 2), (tensors, text[1:], index)):
    try:
        torch.ops.tpgen.form(tensors, [index], text, call, rows)
    except RuntimeError as error:
        print(str(error).splitlines()[0])
"""


def test_polynomials_and_their_gradients(tmp_path: Path) -> None:
    """A symmetric contraction with weights by element: strided operands, and the gradients of both."""
    plan = make_contraction_plan(Irreps("2x0e+2x1o"), Irreps("2x0e"), [2])
    forward = forward_call(plan)
    backward = forward.pulled_back([True], [True] * len(forward.given))
    x, index = torch.randn(5, 16, dtype=torch.float64)[:, ::2], torch.tensor([0, 1, 1, 0, 1])
    weights = [torch.randn(2, 2 * plan.operand(slot.operand).dim).double() for slot in forward.given[1:]]
    g = torch.randn(5, 2, dtype=torch.float64)
    calls = [([x, *weights], [index], plan.to_json(), str(forward), "element")]
    calls += [([x, *weights, g], [index], plan.to_json(), str(backward), "element")]
    wanted = [torch.ops.tpgen.form(*call) for call in calls]
    kernels = [needed for _, _, *called in calls for needed in listed(*called)]
    runtime.write_runtime(kernels, tmp_path)
    torch.save(calls, tmp_path / "calls.pt")
    command = [sys.executable, "-c", POLYNOMIAL, str(tmp_path), str(tmp_path / "calls.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for found, expected in zip(torch.load(tmp_path / "calls.pt"), wanted, strict=True):
        assert len(found) == len(expected) > 0
        assert all(map(torch.equal, found, expected))
    said = done.stdout.splitlines()
    assert said == [UNKNOWN, said[1], "tpgen: index holds an index out of range", UNKNOWN]
    assert said[1].startswith(f"tpgen: tensors do not fit the call '{forward}': shapes (5, 7)")


FORMS = """
import sys, torch
sys.modules["tpgen"] = None
torch.ops.load_library(sys.argv[1] + "/libtpgen.so")
calls = torch.load(sys.argv[2])
torch.save([torch.ops.tpgen.form(*call) for call in calls], sys.argv[2])
try:
    torch.ops.tpgen.form(calls[0][0], [calls[0][1][0] + 9, calls[0][1][1]], *calls[0][2:])
except RuntimeError as error:
    print(str(error).splitlines()[0])
"""


def test_second_derivatives_of_a_convolution(tmp_path: Path) -> None:
    """Both ends of a gather are two kernels of one call; a polynomial is called by the same operator."""
    x1, x2, w, g = operands(PLAN, 5).values()
    src, dst = torch.tensor([[0, 3, 1, 2, 2], [1, 0, 3, 3, 0]])
    nodes = [x1[:4], x2, w, g[:4]]
    second = str(raised_call(SLOTS, SLOTS[:3]))
    polynomial = make_contraction_plan(Irreps("2x0e+2x1o"), Irreps("2x0e"), [2])
    forward = forward_call(polynomial)
    tensors = [torch.randn(3, 2 * polynomial.operand(slot.operand).dim).double() for slot in forward.given]
    calls = [(nodes + [x.flip(0) for x in nodes[:3]], [src, dst], TEXT, second, "src dst")]
    calls += [(tensors, [torch.tensor([2, 0, 1])], polynomial.to_json(), str(forward), "element")]
    wanted = [torch.ops.tpgen.form(*call) for call in calls]
    runtime.write_runtime([*listed(*calls[0][2:]), *listed(*calls[1][2:])], tmp_path)
    torch.save(calls, tmp_path / "calls.pt")
    command = [sys.executable, "-c", FORMS, str(tmp_path), str(tmp_path / "calls.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for found, expected in zip(torch.load(tmp_path / "calls.pt"), wanted, strict=True):
        assert len(found) == len(expected) > 0
        assert all(map(torch.equal, found, expected))
    assert done.stdout.splitlines() == ["tpgen: edge_src holds an index out of range"]


DIFFERENTIATED = """
import sys, torch
from torch.autograd import forward_ad
sys.modules["tpgen"] = None
torch.ops.load_library(sys.argv[1] + "/libtpgen.so")
(x1, x2, w, g, text), polynomial = torch.load(sys.argv[2])
def product(x1, x2, w, text):
    return torch.ops.tpgen.form([x1, x2, w], [], text, "x1 x2 w -> out")[0]
leaf, ones = x1.clone().requires_grad_(), torch.ones_like(x1)
(*inputs, last), *described = polynomial
def energy(x):
    return product(x, x2, w, text).sum() + x.square().sum()
def dual():
    with forward_ad.dual_level():
        return product(forward_ad.make_dual(x1, ones), x2, w, text)
calls = dict(
    leaf=lambda: torch.autograd.grad(energy(leaf), leaf),
    result=lambda: product(leaf * 2, x2, w, text),
    weights=lambda: product(x1, x2, w.clone().requires_grad_(), text),
    gradients=lambda: torch.ops.tpgen.form([x1, x2, w, g.clone().requires_grad_()], [], text, "x1 x2 w out -> x1 x2 w"),
    polynomial=lambda: torch.ops.tpgen.form([*inputs, last.requires_grad_()], [], *described, "element"),
    dual=dual,
    grad=lambda: torch.func.grad(energy)(x1),
    jvp=lambda: torch.func.jvp(energy, (x1,), (ones,)),
    vmap=lambda: torch.vmap(lambda x: product(x, x2, w, text))(torch.stack([x1, x1])),
)
for name, call in calls.items():
    try:
        print(name, call())
    except RuntimeError as error:
        print(name, str(error).splitlines()[0])
with torch.inference_mode():
    made = [x.clone() for x in (x1, x2, w)]
with torch.no_grad():
    results = [product(leaf, x2, w, text)]
    results += torch.ops.tpgen.form([x1, x2, w], None, text, "x1 x2 w -> out")  # packages give none for an empty list
torch.save([*results, product(*made, text)], sys.argv[2])
"""


def test_what_is_to_be_differentiated_is_refused(tmp_path: Path) -> None:
    """Without the rules in Python a kernel would be a constant: the rest of an energy would pass for its gradient."""
    x1, x2, w, g = operands(PLAN, 5).values()
    polynomial = make_contraction_plan(Irreps("2x0e+2x1o"), Irreps("2x0e"), [2])
    call = forward_call(polynomial)
    tensors = [torch.randn(1, 2 * polynomial.operand(slot.operand).dim).double() for slot in call.given]
    needed = [*listed(TEXT, BACKWARD), *listed(TEXT, FORWARD)]
    text = polynomial.to_json()
    runtime.write_runtime([*needed, *listed(text, str(call), "element")], tmp_path)
    torch.save(((x1, x2, w, g, TEXT), (tensors, text, str(call))), tmp_path / "given.pt")
    command = [sys.executable, "-c", DIFFERENTIATED, str(tmp_path), str(tmp_path / "given.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = ("leaf", "result", "weights", "gradients", "polynomial", "dual", "grad", "jvp", "vmap")
    for name, said in zip(names, done.stdout.splitlines(), strict=True):
        assert re.match(rf"{name} tpgen: this call is to be differentiated or transformed.*take forces from", said)
    for found in torch.load(tmp_path / "given.pt"):  # under no_grad, and of tensors of an inference
        assert torch.equal(found, kernel_product(x1, x2, w, TEXT))


def test_tpgen_comes_before_a_deployed_network(tmp_path: Path) -> None:
    runtime.write_runtime([], tmp_path)
    load = f"torch.ops.load_library('{tmp_path}/libtpgen.so')"
    late = f"import torch; {load}; import tpgen.kernels.runtime.ops"
    done = subprocess.run([sys.executable, "-c", late], capture_output=True, text=True, check=False)
    assert "are in this process already: import tpgen before you load one" in done.stderr
    early = f"import torch, tpgen.kernels.runtime.ops; {load}"
    done = subprocess.run([sys.executable, "-c", early], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
