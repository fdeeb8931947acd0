"""Parameters that are zero before training."""

from __future__ import annotations

from dataclasses import replace

import torch

from tpgen.tools.verification.subject import Subject

_SIZE = 0.1  # of the random numbers in place of zeros
_SHOWN = 4  # names of parameters in a message


def with_random_zeros(subject: Subject) -> tuple[Subject, list[str]]:
    """Fill a copy's zero parameters; return their names too."""
    module = subject.fresh_copy()
    zeros = {n: p for n, p in module.named_parameters() if p.requires_grad and p.numel() and not p.detach().any()}
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for p in zeros.values():
            p.copy_(_SIZE * torch.randn(p.shape, dtype=torch.float64, generator=generator))
    return replace(subject, module=module), list(zeros)


def names_of_zeros(names: list[str]) -> str:
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest
