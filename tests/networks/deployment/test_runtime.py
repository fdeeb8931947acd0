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
from tests.networks.deployment.elsewhere import LIBRARY, run_without_tpgen
from tpgen.kernels.rows import parse_row_rules
from tpgen.kernels.runtime.call import product_call_text
from tpgen.kernels.runtime.description import describe
from tpgen.kernels.runtime.ops import kernel_conv, kernel_product
from tpgen.kernels.runtime.polynomials import forward_call
from tpgen.kernels.runtime.runtime import kernels_of as forms
from tpgen.kernels.sweep.terms import SLOTS, make_second_derivative_call
from tpgen.networks.deployment import runtime
from tpgen.networks.deployment.runtime import NeededKernel
from tpgen.planner.contraction import make_contraction_plan
from tpgen.planner.presets import channelwise

pytestmark = needs_compiler
PLAN = channelwise("4x0e+4x1o", "0e+1o", "0e+1o")
TEXT = describe(PLAN)


def listed(text: str, call: str, rows: str = "") -> list[NeededKernel]:
    """Kernels of a call."""
    parts = forms(text).signature(call, parse_row_rules(rows)).parts
    return [NeededKernel(text, torch.float64, call, str(part), rows) for part in parts]


FORWARD, BACKWARD = product_call_text("out"), product_call_text("x1", "x2", "w")


UNKNOWN = (
    "tpgen: a call or a dtype that was not deployed; deploy the network that calls it, one network for each process"
)
KERNELS = [*listed(TEXT, FORWARD), *listed(TEXT, FORWARD, "src dst"), *listed(TEXT, BACKWARD)]


def product(*given: torch.Tensor, text: str = TEXT, nodes: int = 0) -> tuple:
    """Arguments of a call of the operator: a product of rows, or of edges behind x1, x2 and w, summed by node."""
    return [*given[:3]], [*given[3:]], text, FORWARD, "src dst" if given[3:] else "", nodes


def backward(*given: torch.Tensor, opened: str = "x1 x2 w") -> tuple:
    return [*given], [], TEXT, f"x1 x2 w out -> {opened}"


def operands_and_edges(rows: int = 5) -> tuple[torch.Tensor, ...]:
    return *operands(PLAN, rows).values(), *torch.randint(3, (2, rows))


ELSEWHERE = """
calls, wrong = given
found = [torch.ops.tpgen.form(*call) for call in calls]
for call in wrong:
    try:
        torch.ops.tpgen.form(*call)
    except RuntimeError as error:
        print(str(error).splitlines()[0])
"""


def elsewhere(folder: Path, calls: list[tuple], wrong: list[tuple]) -> tuple[list[list[torch.Tensor]], list[str]]:
    """What calls return in a process without tpgen, and the first line of the error of each that is wrong."""
    return run_without_tpgen(folder, LIBRARY + ELSEWHERE, (calls, wrong))


def assert_equal(found: list[list[torch.Tensor]], wanted: list[list[torch.Tensor]]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert len(one) == len(other) > 0
        assert all(map(torch.equal, one, other))


def test_operators_without_python_compute_the_same(tmp_path: Path) -> None:
    runtime.write_runtime(KERNELS, tmp_path)
    x1, x2, w, g, src, dst = operands_and_edges()
    edges = [product(x1[:3], x2, w, e, dst, nodes=4) for e in (src, src.int())]
    wrong = [
        product(x1[:, 1:], x2, w),
        product(x1[:3], x2, w, src + 3, dst, nodes=4),
        product(x1, x2, w, text=TEXT[1:]),
        backward(x1, x2, w, g, opened="x1"),
    ]
    found, said = elsewhere(tmp_path, [product(x1, x2, w), *edges, backward(x1, x2, w, g.T.contiguous().T)], wrong)
    wanted = [[kernel_product(x1, x2, w, TEXT)], *2 * [[kernel_conv(x1[:3], x2, w, src, dst, 4, TEXT)]]]
    assert_equal(found, [*wanted, [*gradients(TEXT, x1, x2, w, g)]])
    numel = PLAN.weight_numel
    assert said == [
        f"tpgen: tensors do not fit the call 'x1 x2 w -> out': shapes (5, 15) (5, 4) (5, {numel}); "
        f"rows have 16 4 {numel} numbers",
        "tpgen: edge_src holds an index out of range",
        UNKNOWN,
        UNKNOWN,
    ]


MISSING = r"tpgen: a kernel is missing or not what was deployed: 1.so; copy the whole folder again"


@pytest.mark.parametrize(
    "lacks, message",
    [
        ("half a kernel", MISSING),
        ("one bit", MISSING),
        ("a feature", r"tpgen: built for a processor with xop; deploy on the machine that it is to run on"),
        ("a version", r"tpgen: built with torch 99.0, and this is torch \d.\d+; use that torch or a later one"),
    ],
)
def test_what_cannot_run_says_why_at_the_first_call(
    lacks: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lacks == "a feature":
        monkeypatch.setattr(runtime, "list_processor_features", lambda: ["xop"])
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
    x1, x2, w, g, src, dst = operands_and_edges()
    every = [product(x1, x2, w), product(x1[:3], x2, w, src, dst, nodes=4), backward(x1, x2, w, g)]
    _, said = elsewhere(tmp_path, [], every)
    assert len(said) == len(every)
    assert re.match(message, said[0])


CONTRACTION = make_contraction_plan(Irreps("2x0e+2x1o"), Irreps("2x0e"), [2])
CONTRACTED = forward_call(CONTRACTION)


def contraction(tensors: list[torch.Tensor], index: torch.Tensor, call: str = str(CONTRACTED)) -> tuple:
    return tensors, [index], CONTRACTION.to_json(), call, "element"


def weights_of_contraction(rows: int) -> list[torch.Tensor]:
    return [torch.randn(rows, 2 * CONTRACTION.operand(slot.operand).dim).double() for slot in CONTRACTED.given]


def check_calls(folder: Path, calls: list[tuple], wrong: list[tuple]) -> list[str]:
    """Deploy the kernels of calls, and compare what they return; the errors of those that are wrong."""
    wanted = [torch.ops.tpgen.form(*call) for call in calls]
    runtime.write_runtime([needed for call in calls for needed in listed(*call[2:5])], folder)
    found, said = elsewhere(folder, calls, wrong)
    assert_equal(found, wanted)
    return said


def test_polynomials_and_their_gradients(tmp_path: Path) -> None:
    """A symmetric contraction with weights by element: strided operands, and the gradients of both."""
    back = str(CONTRACTED.pulled_back([True], [True] * len(CONTRACTED.given)))
    x, index = torch.randn(5, 16, dtype=torch.float64)[:, ::2], torch.tensor([0, 1, 1, 0, 1])
    weights, g = weights_of_contraction(2)[1:], torch.randn(5, 2, dtype=torch.float64)
    right = contraction([x, *weights], index)
    wrong = [
        contraction([x], index),
        contraction([x[:, 1:], *weights], index),
        contraction([x, *weights], index + 2),
        (*right[:2], right[2][1:], *right[3:]),
    ]
    said = check_calls(tmp_path, [right, contraction([x, *weights, g], index, back)], wrong)
    assert said == [UNKNOWN, said[1], "tpgen: index holds an index out of range", UNKNOWN]
    assert said[1].startswith(f"tpgen: tensors do not fit the call '{CONTRACTED}': shapes (5, 7)")


def test_second_derivatives_of_a_convolution(tmp_path: Path) -> None:
    """Both ends of a gather are two kernels of one call; a polynomial is called by the same operator."""
    x1, x2, w, g = operands(PLAN, 5).values()
    src, dst = torch.tensor([[0, 3, 1, 2, 2], [1, 0, 3, 3, 0]])
    nodes = [x1[:4], x2, w, g[:4]]
    tensors = nodes + [x.flip(0) for x in nodes[:3]]
    right, wrong = (
        (tensors, [at, dst], TEXT, str(make_second_derivative_call(SLOTS, SLOTS[:3])), "src dst")
        for at in (src, src + 9)
    )
    said = check_calls(tmp_path, [right, contraction(weights_of_contraction(3), torch.tensor([2, 0, 1]))], [wrong])
    assert said == ["tpgen: edge_src holds an index out of range"]


DIFFERENTIATED = """
from torch.autograd import forward_ad
(x1, x2, w, g, text), (tensors, index, *described, rows) = given
def product(x1, x2, w, text):
    return torch.ops.tpgen.form([x1, x2, w], [], text, "x1 x2 w -> out")[0]
leaf, ones = x1.clone().requires_grad_(), torch.ones_like(x1)
*inputs, last = tensors
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
    polynomial=lambda: torch.ops.tpgen.form([*inputs, last.requires_grad_()], [], *described, rows),
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
    found = [product(leaf, x2, w, text)]
    found += torch.ops.tpgen.form([x1, x2, w], None, text, "x1 x2 w -> out")  # packages give none for an empty list
found.append(product(*made, text))
"""


def test_what_is_to_be_differentiated_is_refused(tmp_path: Path) -> None:
    """Without the rules in Python a kernel would be a constant: the rest of an energy would pass for its gradient."""
    x1, x2, w, g = operands(PLAN, 5).values()
    polynomial = contraction(weights_of_contraction(1), torch.zeros(0))
    needed = [*listed(TEXT, BACKWARD), *listed(TEXT, FORWARD), *listed(*polynomial[2:])]
    runtime.write_runtime(needed, tmp_path)
    results, lines = run_without_tpgen(tmp_path, LIBRARY + DIFFERENTIATED, ((x1, x2, w, g, TEXT), polynomial))
    names = ("leaf", "result", "weights", "gradients", "polynomial", "dual", "grad", "jvp", "vmap")
    for name, said in zip(names, lines, strict=True):
        assert re.match(rf"{name} tpgen: this call is to be differentiated or transformed.*take forces from", said)
    for found in results:  # under no_grad, and of tensors of an inference
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
