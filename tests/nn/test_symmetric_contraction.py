"""`SymmetricContraction`: MACE's formula, its parameters and checkpoints, symmetry, and a well-behaved module."""

from __future__ import annotations

import pytest
import torch
from e3nn import o3
from torch import Tensor

from tests.machine import KERNEL
from tpgen.base.errors import EmitError, InputError, PlanError
from tpgen.nn.symmetric_contraction import SymmetricContraction
from tpgen.planner.generalized import generalized_couplings

ONE = "0e + 1o + 2e"
STRATEGIES = ["einsum", "unrolled", KERNEL]
INDEX = torch.tensor([0, 2, 1, 1, 0])


def module(channels: int = 4, strategy: str = "einsum", **options: object) -> SymmetricContraction:
    irreps = "+".join(f"{channels}x{ir}" for ir in ONE.split(" + "))
    out = f"{channels}x0e + {channels}x1o"
    options = {"correlation": 3, "num_elements": 3} | options
    return SymmetricContraction(irreps, out, strategy=strategy, **options).double()


def features(channels: int = 4) -> Tensor:
    return torch.randn(5, channels, 9, dtype=torch.float64)


def formula(contraction: SymmetricContraction, x: Tensor, y: Tensor) -> Tensor:
    """The polynomial as MACE defines it, degree by degree, with dense couplings and one-hot rows."""
    outs = []
    for part, ir in zip(contraction.contractions, ("0e", "1o"), strict=True):
        total = 0.0
        for nu, w in zip((3, 2, 1), (part.weights_max, *part.weights), strict=True):
            u = torch.from_numpy(generalized_couplings([ONE] * nu, ir))
            letters = "abc"[:nu]
            powers = ",".join(f"zx{a}" for a in letters)
            total = total + torch.einsum(f"k{letters}p,epx,ze,{powers}->zxk", u, w, y, *[x] * nu)
        outs.append(total.flatten(1))
    return torch.cat(outs, 1)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_is_maces_formula(strategy: str) -> None:
    contraction, x = module(strategy=strategy), features()
    y = torch.nn.functional.one_hot(INDEX, 3).double()
    torch.testing.assert_close(contraction(x, y), formula(contraction, x, y))
    torch.testing.assert_close(contraction(x, INDEX), contraction(x, y))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_three_derivatives_are_those_of_the_formula(strategy: str) -> None:
    """By features and weights, against autograd over the formula, both in float64."""
    contraction, y = module(2, strategy), torch.nn.functional.one_hot(INDEX, 3).double()
    x = features(2).requires_grad_()
    given = [x, *contraction.parameters()]
    found = []
    for function in (contraction, lambda x, y: formula(contraction, x, y)):
        total = function(x, y).sin().sum()
        derivatives = [total]
        for _ in range(3):
            parts = torch.autograd.grad(derivatives[-1], given, create_graph=True)
            derivatives += [*parts, torch.stack([part.cos().sum() for part in parts]).sum()]
        found.append(derivatives)
    torch.testing.assert_close(*found)


# One row, one channel, two elements, every weight 1, computed from the formula by hand in exact arithmetic:
# correlation 2 of 0e+1o at x = (s, v): 0e: s + (s^2 + v.v / sqrt 3), 1o: v + (s v) (1 + 1)
def test_numbers_of_the_formula() -> None:
    contraction = SymmetricContraction("1x0e+1x1o", "1x0e+1x1o", 2, num_elements=2, strategy="einsum").double()
    for p in contraction.parameters():
        torch.nn.init.ones_(p)
    s, v = 2.0, torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    found = contraction(torch.cat([torch.tensor([s]), v]).reshape(1, 1, 4), torch.tensor([1]))
    scalar = s + s**2 + float(v @ v) / 3**0.5
    expected = torch.cat([torch.tensor([scalar], dtype=torch.float64), v + 2 * s * v])
    torch.testing.assert_close(found, expected.unsqueeze(0))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_is_equivariant(strategy: str) -> None:
    contraction, x = module(strategy=strategy), features()
    for parity in (1, -1):
        rotation = (parity * o3.rand_matrix()).double()
        before = contraction(x @ o3.Irreps(ONE).D_from_matrix(rotation).double().T, INDEX)
        after = contraction(x, INDEX) @ contraction.irreps_out.D_from_matrix(rotation).double().T
        torch.testing.assert_close(before, after, rtol=1e-4, atol=1e-4)  # e3nn's matrices are float32


def test_parameters_have_maces_names_and_shapes() -> None:
    contraction = module()
    shapes = {name: tuple(p.shape) for name, p in contraction.named_parameters()}
    assert shapes == {
        "contractions.0.weights_max": (3, 11, 4),
        "contractions.0.weights.0": (3, 3, 4),
        "contractions.0.weights.1": (3, 1, 4),
        "contractions.1.weights_max": (3, 21, 4),
        "contractions.1.weights.0": (3, 4, 4),
        "contractions.1.weights.1": (3, 1, 4),
    }
    assert set(contraction.state_dict()) == set(shapes)


@pytest.mark.parametrize("degree", [2, 3])
def test_degrees_whose_couplings_all_vanish_keep_maces_shapes(degree: int) -> None:
    """No scalar, vector and tensor squared make a 1e, but MACE has a weight for each of its chains."""
    contraction = SymmetricContraction("2x0e+2x1o+2x2e", "2x0e+2x1e", degree, num_elements=3, strategy="einsum")
    for n, ir in enumerate(("0e", "1e")):
        part = contraction.contractions[n]
        for nu, w in zip(range(degree, 0, -1), (part.weights_max, *part.weights), strict=True):
            chains = generalized_couplings(["0e+1o+2e"] * nu, ir).shape[-1]
            assert w.shape == (3, max(1, chains), 2)
    assert not contraction.contractions[1].weights[-1].requires_grad


def checkpoint(contraction: SymmetricContraction, sign: float = 1.0) -> dict[str, Tensor]:
    """A state_dict as MACE writes it; with a sign for the first path of highest degree, whose weights have it too."""
    state = {key: value.clone() for key, value in contraction.state_dict().items()}
    for n, ir in enumerate(("0e", "1o")):
        for nu in (1, 2, 3):
            u = torch.from_numpy(generalized_couplings([ONE] * nu, ir)).float()
            if nu == 3:
                u[..., 0] *= sign
                state[f"contractions.{n}.weights_max"][:, 0] *= sign
            state[f"contractions.{n}.U_matrix_{nu}"] = u[0] if ir == "0e" else u
        state[f"contractions.{n}.weights_max_zeroed"] = torch.tensor(False)
        state[f"contractions.{n}.weights_0_zeroed"] = torch.tensor(False)
    return state


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_maces_checkpoints_load(sign: float) -> None:
    """Also where another version of e3nn has other signs in its Wigner 3j symbols."""
    theirs, ours = module(), module()
    state = checkpoint(theirs, sign)
    ours.load_state_dict(state)
    for a, b in zip(theirs.parameters(), ours.parameters(), strict=True):
        assert torch.equal(a, b)
    assert "contractions.0.U_matrix_1" in state  # the caller's dictionary is as it was


def test_checkpoints_of_other_shapes_are_refused() -> None:
    state = checkpoint(module())
    state["contractions.1.U_matrix_3"] = state["contractions.1.U_matrix_3"][..., :12]
    with pytest.raises(PlanError, match=r"contractions\.1\.weights_max: the checkpoint's.*use_red"):
        module().load_state_dict(state)
    state = checkpoint(module())
    state["contractions.1.U_matrix_3"] = state["contractions.1.U_matrix_3"].flip(-1)
    with pytest.raises(PlanError, match="are none of"):
        module().load_state_dict(state)
    with pytest.raises(
        InputError, match=r"0\.weights\.1: the checkpoint has .* \(3, 1, 4\), and .* \(4, 1, 4\): construct"
    ):
        module(num_elements=4).load_state_dict(module().state_dict())


def test_checkpoints_of_other_numbers_of_elements_are_refused() -> None:
    other = SymmetricContraction("4x0e+4x1o", "4x0e+4x1o", 3, num_elements=7, strategy="einsum").double()
    with pytest.raises(InputError, match=r"weights\.1:.*\(3, 1, 4\).*\(7, 1, 4\)"):
        other.load_state_dict(checkpoint(module()))


def test_a_degree_without_paths_keeps_its_place() -> None:
    contraction = SymmetricContraction("2x1o", "2x0e", 3, num_elements=1, strategy="einsum")
    assert contraction.contractions[0].weights[1].shape == (1, 1, 2)  # no vector is a scalar
    assert not contraction.contractions[0].weights[1].requires_grad
    assert contraction(torch.randn(3, 2, 3), torch.zeros(3, dtype=torch.int64)).shape == (3, 2)


def test_degrees_by_output() -> None:
    contraction = SymmetricContraction("2x0e+2x1o", "2x0e+2x1o", {"0e": 3, "1o": 1}, strategy="einsum")
    assert contraction.degrees == [3, 1]
    assert contraction(torch.randn(3, 2, 4)).shape == (3, 8)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_weights_from_outside(strategy: str) -> None:
    """Shared by all rows, or one set for each."""
    contraction = module(strategy=strategy, internal_weights=False, num_elements=None)
    x = features()
    assert not list(contraction.parameters())
    rows = [torch.randn(5, *shape, dtype=torch.float64) for shape in contraction.weight_shapes]
    each = contraction(x, weights=rows)
    for n in range(5):
        one = contraction(x[n : n + 1], weights=[w[n : n + 1] for w in rows])
        torch.testing.assert_close(each[n : n + 1], one)


def test_auto_takes_a_kernel_where_there_is_one() -> None:
    contraction = module(strategy="auto")
    assert contraction.choice.strategy in ("kernel", "einsum")
    assert contraction.half().choice.strategy == "einsum"
    assert "not in float16" in contraction.choice.reason


def test_auto_says_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpgen.compiler.autotune.warn_once_of_missing_kernels", lambda missing, remedy: None)
    monkeypatch.setenv("TPGEN_CXX", "none")
    contraction = module(strategy="auto")
    assert contraction.choice.strategy == "einsum"
    assert "TPGEN_CXX=none forbids one" in contraction.choice.reason


def test_stages_print_themselves() -> None:
    contraction = module()
    assert "w0_3 0:11" in str(contraction.plan)
    assert contraction.form.degree("x") == 3
    assert str(contraction.sweep()).startswith("x w0_3")
    assert "out.1 ->" in str(contraction.sweep("backward"))
    assert "tpgen_kernel" in contraction.code().text
    assert "matmul" in contraction.graph.code
    assert "einsum (asked for)" in repr(contraction)


BAD = {
    "one multiplicity throughout": {"irreps_in": "4x0e+3x1o"},
    "from 1 to 4, got 0": {"correlation": 0},
    "from 1 to 4, got 5": {"correlation": 5},
    "from 1 to 4, got True": {"correlation": True},
    "must map output irreps such as '1o' to degrees, got '0q'": {"correlation": {"0q": 2}},
    "correlation: unknown output irrep '2e'; known output irreps: 0e, 1o": {"correlation": {"0e": 2, "1o": 2, "2e": 2}},
    "correlation: 0e is there twice": {"correlation": {"0e": 2, "1o": 2, o3.Irrep("0e"): 1}},
    "and 1o has none": {"correlation": {"0e": 2}},
    "reduced basis": {"use_reduced_cg": True},
    "num_elements must be 1 or more": {"num_elements": 0},
    "unknown irrep_normalization": {"irrep_normalization": "mine"},
    "unknown path_normalization": {"path_normalization": "mine"},
    "check the parities": {"irreps_in": "4x0e", "irreps_out": "4x0o"},
}


@pytest.mark.parametrize("message", BAD)
def test_what_cannot_be_planned(message: str) -> None:
    options = {"irreps_in": "4x0e+4x1o", "irreps_out": "4x0e+4x1o", "correlation": 2, "num_elements": 2} | BAD[message]
    with pytest.raises(PlanError, match=message):
        SymmetricContraction(**options)


def test_unknown_strategy() -> None:
    with pytest.raises(EmitError, match="unknown strategy 'grouped'; known strategies: einsum, unrolled, kernel, auto"):
        module(strategy="grouped")


def test_bad_tensors_say_what_is_wrong() -> None:
    contraction, x = module(), features()
    hot = torch.nn.functional.one_hot(INDEX, 3).double()
    with pytest.raises(InputError, match=r"x: must have shape \(rows, 4, 9\)"):
        contraction(x.transpose(1, 2), INDEX)
    with pytest.raises(InputError, match=r"x: the module is torch\.float64"):
        contraction(x.float(), INDEX)
    with pytest.raises(InputError, match="x: must be a tensor"):
        contraction([1.0], INDEX)
    with pytest.raises(InputError, match="y: weights of 3 elements need the element of every row"):
        contraction(x)
    with pytest.raises(InputError, match=r"y: must be one-hot \(rows, 3\)"):
        contraction(x, hot[:, :2])
    with pytest.raises(InputError, match="y: every row must have a single one"):
        contraction(x, hot * 2)
    with pytest.raises(InputError, match="y: every row must have a single one"):
        contraction(x, torch.zeros_like(hot))
    with pytest.raises(InputError, match="has no gradient"):
        contraction(x, hot.requires_grad_())
    with pytest.raises(InputError, match="a row for each of the 5 rows of x, got 4"):
        contraction(x, INDEX[:4])
    with pytest.raises(InputError, match="y: this module has no elements: leave it out"):
        module(num_elements=None)(x, INDEX)
    outside = module(internal_weights=False, num_elements=None)
    with pytest.raises(InputError, match=r"weights: give 6.*weight_shapes, got NoneType"):
        outside(x)
    with pytest.raises(InputError, match="give 6 tensors, one for each of weight_shapes, got 1"):
        outside(x, weights=[x])
    with pytest.raises(InputError, match=r"weights\[0\]:.*\(1 or 5, 11, 4\)"):
        outside(x, weights=[x] * 6)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("wrong", [3, -1])
def test_elements_out_of_range(strategy: str, wrong: int) -> None:
    index = INDEX.clone()
    index[2] = wrong
    with pytest.raises(InputError, match=f"y: elements run from 0 to 2, got {min(wrong, 0)} to {max(wrong, 2)}"):
        module(strategy=strategy)(features(), index)
