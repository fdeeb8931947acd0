"""Rewrites that make einsums cheaper."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

from tpgen.form.contraction import BATCH, Contraction, Coupling, Delta, Factor, Ones


def drop_scalar_leg(c: Contraction) -> Contraction:
    """Replace a coupling with a scalar leg: ``C[0,j,k] = delta[j,k] / sqrt(2 l + 1)``.

    >>> c = Contraction((Factor("x1", "zui"), Factor("x2", "zj"), Factor(Coupling(1, 0, 1), "ijk")), "zuk",
    ...                 (("u", 8), ("i", 3), ("j", 1), ("k", 3)))
    >>> drop_scalar_leg(c).equation
    'zui,zj,ik->zuk'
    """
    found = c.find(Coupling)
    if found is None or not isinstance(found.source, Coupling):
        return c
    degrees = (found.source.l1, found.source.l2, found.source.l3)
    if 0 not in degrees:
        return c
    scalar = degrees.index(0)
    rest = [a for n, a in enumerate(found.letters) if n != scalar]
    size = 2 * max(degrees) + 1
    changed = c.drop_factor(found, coefficient=c.coefficient / sqrt(size))
    return replace(changed, factors=(*changed.factors, Factor(Delta(size), "".join(rest))))


def unify_deltas(c: Contraction) -> Contraction:
    """Merge two letters of a delta, unless the output has both.

    >>> factors = (Factor("x1", "zui"), Factor("x2", "z"), Factor(Delta(3), "ik"))
    >>> c = Contraction(factors, "zuk", (("u", 8), ("i", 3), ("k", 3)))
    >>> unify_deltas(c).equation
    'zuk,z->zuk'
    """
    for factor in c.factors:
        if isinstance(factor.source, Delta) and not set(factor.letters) <= set(c.output):
            kept, dropped = tuple(factor.letters)
            if dropped in c.output:
                kept, dropped = dropped, kept
            return unify_deltas(c.drop_factor(factor).rename_axes({dropped: kept}))
    return c


def drop_unit_axes(c: Contraction) -> Contraction:
    """Drop axes of size one, except those of couplings.

    >>> c = Contraction((Factor("x1", "zui"), Factor("x2", "zvj")), "zuvij", (("u", 8), ("v", 1), ("i", 3), ("j", 3)))
    >>> drop_unit_axes(c).equation
    'zui,zj->zuij'
    """
    kept = {a for f in c.factors if not isinstance(f.source, (str, Delta, Ones)) for a in f.letters}
    units = {a: "" for a, n in c.sizes if n == 1 and a not in kept and a != BATCH}
    trivial = [f for f in c.factors if isinstance(f.source, (Delta, Ones)) and set(f.letters) <= set(units)]
    for factor in trivial:
        c = c.drop_factor(factor)
    return c.rename_axes(units)


def simplify_contraction(c: Contraction) -> Contraction:
    """Apply all rewrites."""
    for rewrite in (drop_scalar_leg, unify_deltas, drop_unit_axes):
        c = rewrite(c)
    return c
