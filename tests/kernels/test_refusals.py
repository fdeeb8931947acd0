"""A kernel that cannot be built is no end: graphs compute in its place, one warning says so, and it stays known."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tpgen
from tpgen.base.errors import InputError, KernelError
from tpgen.functions.bessel import CutBessel, cut_bessel
from tpgen.functions.gate import gate, gate_by_torch, make_gate_table
from tpgen.functions.silu import silu, silu_second_grad
from tpgen.functions.spline import can_run_spline, make_spline
from tpgen.kernels.build import build, cache, compiler
from tpgen.kernels.runtime import polynomials
from tpgen.kernels.runtime.failures import failures_seen
from tpgen.kernels.runtime.ops import describe, kernel_source
from tpgen.kernels.runtime.runtime import kernels_of
from tpgen.planner.presets import channelwise, fully_connected

# A compiler in a hurry; sources that hold $REFUSED it refuses, or makes an empty library of where $BREAKS is set.
COMPILER = """#!/bin/sh
if [ "$1" = --version ]; then echo "g++ (of this test{version}) 12.1.0"; exit 0; fi
source=; out=; before=
for word in "$@"; do
  case "$word" in *.cpp) source="$word";; esac
  [ "$before" = -o ] && out="$word"
  before="$word"
done
echo "$source" >> "{log}"
if grep -q "{refused}" "$source"; then
  if [ "{breaks}" ]; then echo "int x;" | g++ -shared -fPIC -x c++ - -o "$out"; exit; fi
  echo "$source:7:3: error: refused here" >&2; exit 1
fi
exec g++ "$@" -O0
"""
REFUSED = "cannot be built: .*error: refused here"


@pytest.fixture
def refuse(fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Callable[[], int]]]:
    """Refuse sources that hold some text; returns what counts how often the compiler was called for any."""
    log = tmp_path / "log"

    def refuse(text: str, breaks: str = "", version: str = "") -> Callable[[], int]:
        script, fields = tmp_path / "refuses", {"log": log, "refused": text, "breaks": breaks, "version": version}
        script.write_text(COMPILER.format(**fields), encoding="utf-8")
        script.chmod(0o755)
        monkeypatch.setenv("TPGEN_CXX", str(script))
        compiler._first_usable_compiler.cache_clear()
        kernels_of.cache_clear()
        return lambda: len(log.read_text().splitlines()) if log.exists() else 0

    yield refuse
    tpgen.caches().clear()  # what is not built here is built for others


def rows(*dims: int, number: int = 6) -> list[Tensor]:
    return [torch.randn(number, dim, dtype=torch.float64) for dim in dims]


INDEX = torch.tensor([0, 1, 1, 0, 2, 1])
EDGES = torch.tensor([0, 1, 2, 3, 4, 5]), torch.tensor([1, 1, 0, 2, 4, 4])
CHANNELS = channelwise("8x0e + 8x1o", "0e + 1o", "8x0e + 8x1o")
Made = tuple[nn.Module, list[Tensor], tuple[Any, ...]]  # a module, operands with gradients, and what stands behind


def product(**options: Any) -> Made:
    made = tpgen.TensorProduct.from_plan(CHANNELS, **options)
    return made, rows(32, 4, made.weight_numel), ()


def mixing(**options: Any) -> Made:
    return tpgen.TensorProduct.from_plan(fully_connected("3x0e + 2x1o", "0e + 1o", "3x1o"), **options), rows(9, 4), ()


def many(**options: Any) -> Made:
    ins = [(n, n, n, "uuu", True) for n in range(33)]
    made = tpgen.TensorProduct("+".join(["4x1o"] * 33), "+".join(["4x1o"] * 33), [(4, "0e")] * 33, ins, **options)
    return made, rows(396, 396), ()


def convolution(**options: Any) -> Made:
    made = tpgen.TensorProductConv.from_plan(CHANNELS, **options)
    return made, rows(32, 4, made.weight_numel), EDGES


def linear(**options: Any) -> Made:
    return tpgen.Linear("8x0e + 4x1o", "4x0e + 8x1o", **options), rows(20), ()


def by_element(**options: Any) -> Made:
    return tpgen.Linear("8x0e + 4x1o", "4x0e + 8x1o", num_elements=3, **options), rows(20), (None, None, INDEX)


def contraction(**options: Any) -> Made:
    made = tpgen.SymmetricContraction("4x0e + 4x1o", "4x0e + 4x1o", 2, num_elements=3, **options)
    return made, [torch.randn(6, 4, 4, dtype=torch.float64)], (INDEX,)


KINDS = {f.__name__: f for f in (product, mixing, many, convolution, linear, by_element, contraction)}


def derivatives(module: nn.Module, operands: Sequence[Tensor], rest: tuple[Any, ...]) -> list[Tensor]:
    """The result, gradients, and gradients of these, by operands and weights."""
    given = [x.detach().requires_grad_() for x in operands]
    leaves = [*given, *module.parameters()]
    found = [module(*given, *rest)]
    for _ in range(2):
        total = torch.stack([x.sin().sum() for x in found[-len(leaves) :]]).sum()
        found += torch.autograd.grad(total, leaves, create_graph=True)
    return [x.detach() for x in found]


ALL, GRADIENTS = "tpgen_kernel", r"opens .*x1\|out.1 ->"  # text of all sources, and of those of gradients


# some seconds of compilation each: the rest are for long runs
BOTH = [(kind, text) for kind in KINDS for text in (ALL, GRADIENTS)]
QUICK = [("product", ALL), ("convolution", GRADIENTS), ("by_element", GRADIENTS), ("contraction", ALL)]


@pytest.mark.parametrize(
    "kind, text", [pytest.param(*both, marks=[] if both in QUICK else pytest.mark.slow) for both in BOTH]
)
def test_graphs_compute_in_the_place_of_any_kernel(kind: str, text: str, refuse) -> None:
    compiled, before = refuse(text), failures_seen()
    module, operands, rest = KINDS[kind]()
    exact, *_ = KINDS[kind](strategy=type(module)._graph)
    module, exact = module.double(), exact.double()
    exact.load_state_dict(module.state_dict())
    assert module.choice.strategy == "kernel"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = derivatives(module, operands, rest)
    wanted = derivatives(exact, operands, rest)
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    said = [str(w.message) for w in caught if "cannot be built" in str(w.message)]
    assert len(said) == failures_seen() - before == 1
    assert "graphs compute this product" in said[0]
    assert "error: refused here" in said[0]
    assert module.plan.digest in said[0]
    count = compiled()
    assert module.choice.strategy == exact.choice.strategy
    assert "refused here" in module.choice.reason
    assert "refused here" in str(module.explain())
    for again in (module, KINDS[kind]()[0].double()):
        assert again.choice == module.choice
        again.load_state_dict(module.state_dict())
        for got, want in zip(derivatives(again, operands, rest), wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    assert compiled() == count


def test_pairs_that_share_weights(refuse) -> None:
    refuse("tpgen_kernel")
    conv = tpgen.TensorProductConv.from_plan(CHANNELS).double()
    x, y, w = rows(32, 4, conv.weight_numel)
    src, dst = torch.cat(EDGES), torch.cat(EDGES[::-1])
    with pytest.warns(UserWarning, match=REFUSED):
        found = conv.forward_pairs(x, torch.cat([y, -y]), w, src, dst)
    torch.testing.assert_close(found, conv(x, torch.cat([y, -y]), torch.cat([w, w]), src, dst))


@pytest.mark.parametrize("broken", ["src", "dst", "index"])
def test_indices_out_of_range_are_named(broken: str, refuse) -> None:
    refuse("tpgen_kernel")
    module, operands, rest = (by_element if broken == "index" else convolution)()
    place = {"src": 0, "dst": 1, "index": 2}[broken]
    rest = (*rest[:place], rest[place] + 100, *rest[place + 1 :])
    for _ in range(2):  # by what stands in for the kernel, and by a graph
        with warnings.catch_warnings(action="ignore"), pytest.raises(InputError, match="run from 0 to"):
            module.double()(*operands, *rest)


def test_a_kernel_whose_trial_fails(refuse) -> None:
    refuse("tpgen_kernel", breaks="1")
    module, operands, _ = product()
    with pytest.warns(UserWarning, match="what the compiler wrote cannot be loaded"):
        found = module.double()(*operands)
    torch.testing.assert_close(found, product(strategy="grouped")[0].double()(*operands))
    assert "cannot be loaded" in module.choice.reason


def test_a_kernel_that_is_asked_for(refuse) -> None:
    refuse("tpgen_kernel")
    module, operands, _ = product(strategy="kernel")
    with pytest.warns(UserWarning, match=REFUSED):
        module.double()(*operands)
    assert str(module.choice).startswith("grouped (a kernel was asked for, and it cannot be built: ")


def test_it_stays_known_until_the_compiler_is_another(refuse, fresh: Path) -> None:
    wanted = kernel_source(CHANNELS).text
    compiled = refuse("tpgen_kernel")
    for _ in range(3):
        with pytest.raises(KernelError, match=r"first error: .*refused here"):
            build.load_kernel(wanted)
        build._refused.clear()  # as in another process
    assert compiled() == 1
    assert len(list(fresh.glob("*.refused"))) == 1
    refuse("tpgen_kernel", version=", mended")
    with pytest.raises(KernelError):
        build.load_kernel(wanted)
    assert compiled() == 2
    cache.clear()
    assert not list(fresh.glob("*.refused"))


def test_what_is_no_fault_of_the_text_is_not_noted_on_disk(refuse, fresh: Path) -> None:
    refuse("tpgen_kernel", breaks="1")
    with pytest.raises(KernelError):
        build.load_kernel(kernel_source(CHANNELS).text)
    assert not list(fresh.glob("*.refused"))


def test_a_polynomial_too_large_for_a_kernel(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, operands, rest = contraction()
    monkeypatch.setattr(polynomials, "LARGEST", module.sweep("forward").operations)  # its derivatives have more
    kernels_of.cache_clear()
    exact = contraction(strategy="einsum")[0].double()
    exact.load_state_dict(module.double().state_dict())
    with pytest.warns(UserWarning, match="operations a row, more than"):
        found = derivatives(module, operands, rest)
    for got, want in zip(found, derivatives(exact, operands, rest), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    tpgen.caches().clear()


# -- functions ---------------------------------------------------------------------------------------------------------


def bend(f: Callable[..., Tensor], *given: Tensor) -> list[Tensor]:
    """A function, its gradients, and gradients of these."""
    leaves = [x.detach().requires_grad_() for x in given]
    found = [f(*leaves)]
    for _ in range(2):
        total = torch.stack([x.sin().sum() for x in found[-len(leaves) :]]).sum()
        found += torch.autograd.grad(total, leaves, create_graph=True)
    return [x.detach() for x in found]


def alike(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def gates() -> tuple[list[Tensor], list[Tensor]]:
    table, (x,) = make_gate_table([("tanh", 1.5, 0, 0, 0), ("silu", 1.0, 1, 2, 3)]), rows(5)
    return bend(lambda x: gate(table, x), x), bend(lambda x: gate_by_torch(table, x), x)


def waves() -> tuple[list[Tensor], list[Tensor]]:
    shape, r, w = CutBessel(1.0, 4.0, 6), torch.rand(7, dtype=torch.float64) + 1, torch.arange(1.0, 4.0).double()

    def definition(r: Tensor, w: Tensor) -> Tensor:
        x, column = r / 4.0, r.unsqueeze(1)
        u = 1 - 28 * x**6 + 48 * x**7 - 21 * x**8
        return torch.sin(w * column) / column * u.unsqueeze(1)

    return bend(lambda r, w: cut_bessel(r, w, shape)[0], r, w), bend(definition, r, w)


def activations() -> tuple[list[Tensor], list[Tensor]]:
    (x,) = rows(1 << 13)
    return bend(silu, x), bend(nn.functional.silu, x)


def seconds() -> tuple[list[Tensor], list[Tensor]]:
    c, g, x = rows(5, 5, 5)
    x.requires_grad_()
    (slope,) = torch.autograd.grad(nn.functional.silu(x), x, g.requires_grad_(), create_graph=True)
    return list(silu_second_grad(c, g.detach(), x.detach())), list(torch.autograd.grad(slope, (g, x), c))


@pytest.mark.parametrize("function", [gates, waves, activations, seconds])
def test_functions_by_torchs_operations(function: Callable[[], Any], refuse) -> None:
    compiled = refuse("tpgen_kernel")
    with pytest.warns(UserWarning, match="kernel of a function " + REFUSED) as caught:
        alike(*function())
    assert len(caught) == 1
    count = compiled()
    alike(*function())  # nothing is said, and nothing compiled
    assert compiled() == count == 1


def test_splines(refuse) -> None:
    refuse("tpgen_kernel")
    make_spline(torch.sin, 0.0, 1.0)
    with pytest.warns(UserWarning, match="kernel of a function " + REFUSED):
        assert not can_run_spline(torch.ones(3, 1))


# -- programs ----------------------------------------------------------------------------------------------------------


def test_a_graph_of_torch_compile(refuse) -> None:
    refuse("tpgen_kernel")
    module, operands, _ = product()
    run = torch.compile(module.double(), backend="aot_eager")
    with pytest.warns(UserWarning, match=REFUSED):
        found = run(*operands)
    torch.testing.assert_close(found, product(strategy="grouped")[0].double()(*operands))


def test_a_program_that_calls_kernels_alone(refuse) -> None:
    refuse("tpgen_kernel")
    kernels = kernels_of(describe(CHANNELS))
    message = r"kernel of 8x0e\+8x1o x 1x0e\+1x1o -> .*error: refused here\n.*write the program again.*TPGEN_CXX"
    with pytest.warns(UserWarning, match=REFUSED), pytest.raises(KernelError, match=message):
        kernels.build_kernels_or_raise("x1 x2 w -> out", torch.float32, ())


class Potential(nn.Module):
    """An energy and its forces."""

    def __init__(self, strategy: str) -> None:
        super().__init__()
        self.product = tpgen.TensorProduct.from_plan(CHANNELS.remade(shared_weights=True), strategy=strategy)
        self.layer = tpgen.Linear(self.product.irreps_out, "5x0e", strategy=strategy)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = x.requires_grad_()
        energy = self.layer(self.product(x, y)).tanh().sum()
        return energy, torch.autograd.grad(energy, x)[0]


@pytest.mark.slow
def test_programs_are_written_again(refuse, tmp_path: Path) -> None:
    refuse("int tpgen_kernel(")
    network, exact = (Potential(strategy).double().eval() for strategy in ("auto", "grouped"))
    exact.load_state_dict(network.state_dict())
    given = rows(32, 4)
    with pytest.warns(UserWarning, match=REFUSED) as said:
        found = tpgen.compile_step(network)(*given)
    assert not [str(w.message) for w in said if "does not compile" in str(w.message)]
    alike([x.detach() for x in found], [x.detach() for x in exact(*given)])
    assert network.product.choice.strategy == "grouped"
    layer = tpgen.Linear("5x0e", "6x0e")
    with pytest.warns(UserWarning, match=REFUSED):
        folder = tpgen.deploy(layer, [torch.randn(7, 5)], tmp_path / "deployed")
    assert not list((folder / "kernels").iterdir())
