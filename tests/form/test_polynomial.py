"""Polynomials as values: their algebra, and the form of a plan."""

from __future__ import annotations

import random

import pytest
import torch

from tests.polynomials import PLANS, along, components, operands_of, slow
from tpgen.form.polynomial import (
    Monomial,
    PolynomialForm,
    Variable,
    collect_like_terms,
    make_polynomial,
    make_scalar_form,
)


def sample(seed: int = 0) -> PolynomialForm:
    rng = random.Random(seed)
    return collect_like_terms(
        Monomial(
            rng.uniform(-1, 1), tuple(Variable(rng.choice("xy"), rng.randrange(3)) for _ in range(rng.randrange(4)))
        )
        for _ in range(20)
    )


def point(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(3, dtype=torch.float64, generator=generator) for name in "xyvw"}


def test_gradient_is_autograds() -> None:
    at = point()
    at["x"].requires_grad_()
    (expected,) = torch.autograd.grad(sample().at(at), at["x"])
    found = sample().gradient("x")
    torch.testing.assert_close(torch.stack([torch.as_tensor(found[i].at(at)) for i in range(3)]), expected)


def test_along_is_the_directional_derivative() -> None:
    at = point()
    _, tangent = torch.func.jvp(lambda x: sample().at(at | {"x": x}), (at["x"],), (at["v"],))
    torch.testing.assert_close(along(sample(), "x", "v").at(at), tangent)


def test_directions_commute() -> None:
    both = [along(along(sample(), "x", a), "x", b) for a, b in ("vw", "wv")]
    torch.testing.assert_close(both[0].at(point()), both[1].at(point()))


def test_euler() -> None:
    """Along itself, a polynomial homogeneous of degree n is n times itself."""
    cubic = make_polynomial({(("x", 0), ("x", 1), ("x", 1)): 2.0, (("x", 2),) * 3: -1.0})
    assert along(cubic, "x", "x") == PolynomialForm(tuple(Monomial(3 * c, f) for c, f in cubic.monomials))
    assert cubic.degree("x") == 3
    assert cubic.degree("y") == 0


def test_what_cancels_is_left_out() -> None:
    assert str(make_polynomial({(("x", 0),): 1.0, (): 0.0})) == "x0"
    assert str(collect_like_terms([Monomial(1.0, (Variable("x", 0),)), Monomial(-1.0, (Variable("x", 0),))])) == "0"


@pytest.mark.parametrize("name", PLANS)
def test_the_form_is_linear_in_the_output_and_its_gradient_is_the_output(name: str) -> None:
    plan = PLANS[name]()
    tensors = operands_of(plan, 2, 2, 1, grad=False)
    expected = components(plan.out, slow(plan, tensors))[:, 0]
    form = make_scalar_form(plan)
    assert form.degree("out") == 1
    values = {
        o.name: x[:, :, 0].T if o.weights else components(o, x)[:, 0].T
        for o, x in zip(plan.operands, tensors, strict=False)
    }
    gradient = form.gradient("out")
    found = torch.stack([torch.as_tensor(gradient[k].at(values)) for k in range(plan.out.dim)], -1)
    torch.testing.assert_close(found, expected)
