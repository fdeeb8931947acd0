"""What the projects themselves offer to make their models faster on a CPU: rivals of a conversion.

Each is a function from a case to a network; what it takes to make it, and for its first call, is part of its price.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.network_symmetrix import Symmetrix
from benchmarks.networks import Case
from tpgen.networks.conversion.convert import convert
from tpgen.networks.step import compile_step
from tpgen.networks.training import compile_training

OURS_COMPILED = "converted, compiled"


def converted(case: Case) -> nn.Module:
    """What all of this is about."""
    return convert(deepcopy(case.model), program=False)


def by_itself(case: Case) -> nn.Module:
    """Converted, with programs that calls take by themselves; the first of them builds one."""
    return convert(deepcopy(case.model), program=True)


def spline(case: Case) -> nn.Module:
    """Converted, with splines in the place of radial networks."""
    return convert(deepcopy(case.model), radial="spline", program=False)


def scripted(case: Case) -> nn.Module:
    """TorchScript, as these projects export for LAMMPS."""
    from e3nn.util import jit

    model = deepcopy(case.model)
    if hasattr(model, "eval_type_map"):  # SevenNet: types are given, as a deployed model has them
        model.eval_type_map = False  # type: ignore[assignment]
    return jit.script(model)


class _Calculated(nn.Module):
    """A compiled MACE, called as its calculator does."""

    def __init__(self, compiled: Any) -> None:
        super().__init__()
        self.compiled = compiled

    def forward(self, data: dict[str, Tensor], training: bool, compute_stress: bool) -> dict[str, Tensor]:
        for name in ("positions", "node_attrs"):
            data[name] = data[name].detach().requires_grad_()
        return self.compiled(data, training=True, compute_stress=compute_stress)


def mace_compiled(case: Case) -> nn.Module:
    """MACE's ``compile_mode``."""
    from mace.tools.compile import prepare
    from mace.tools.scripts_utils import extract_model

    model = prepare(extract_model)(model=deepcopy(case.model), map_location="cpu")
    return _Calculated(torch.compile(model, mode="default", fullgraph=True))


def nequip_compiled(case: Case) -> nn.Module:
    """NequIP's ahead-of-time compilation for single structures, without its command line."""
    from tempfile import mkdtemp

    from nequip.nn.compile import DictInputOutputWrapper
    from nequip.scripts._compile_utils import COMPILE_TARGET_DICT
    from nequip.utils.aot import aot_export_model

    target = COMPILE_TARGET_DICT["ase"]
    data = {name: case.batch[name] for name in target["input"]}
    dims = {name: torch.export.Dim(f"num_{name}s", min=2) for name in ("node", "edge")}
    path = aot_export_model(
        model=deepcopy(case.model).eval(), device="cpu", input_fields=target["input"], output_fields=target["output"],
        data=data, batch_map=target["batch_map_settings"](dims), output_path=f"{mkdtemp()}/model.nequip.pt2",
        inductor_configs={"aot_inductor.metadata": {}},
    )  # fmt: skip
    return DictInputOutputWrapper(torch._inductor.aoti_load_package(path), target["input"], target["output"])


def nequip_converted_compiled(case: Case) -> nn.Module:
    """The same of the converted model: what you take to LAMMPS."""
    return nequip_compiled(replace(case, model=converted(case)))


class _Asked(dict):
    """Results that note which of them are asked for."""

    def __missing__(self, name: str) -> Tensor:
        self[name] = torch.zeros(1)
        return self[name]


class _Listens(nn.Module):
    def forward(self, *args: Any, **options: Any) -> Any:
        self.given, self.results = (args, options), _Asked()
        return self.results


class Programs(nn.Module):
    """A converted model as two programs: energies, forces and stress; and the gradients of their loss."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.model = converted(case)
        self.trained = compile_training(self.model, self._loss)
        self.listens = _Listens()
        case.run(self.listens, True)
        self.names = list(self.listens.results)
        self.step = compile_step(self.model, outputs=self.names)

    def forward(self, *args: Any, **options: Any) -> Any:
        if self.model.training:
            self.model.eval()
        return self.step(*args, **options)

    def train_once(self, case: Case) -> None:
        """A step of training."""
        case.run(self.listens, True)
        args, options = self.listens.given
        if not self.model.training:
            self.model.train()
        self.model.zero_grad()
        self.trained(*args, **options).backward()

    def _loss(self, network: nn.Module, *args: Any, **options: Any) -> Tensor:
        found = network(*args, **options)
        return torch.stack([(found[name] * torch.sin(found[name].detach())).sum() for name in self.names]).sum()


# project -> name of a mode -> how to make it, and whether it can be trained
MODES: dict[str, dict[str, tuple[Callable[[Case], nn.Module], bool]]] = {
    "mace": {
        "scripted": (scripted, True),
        "compiled": (mace_compiled, False),
        "program": (Programs, True),
        "by itself": (by_itself, False),
        "spline": (spline, False),
        "symmetrix": (Symmetrix, False),
    },
    "nequip": {
        "compiled": (nequip_compiled, False),
        OURS_COMPILED: (nequip_converted_compiled, False),
        "program": (Programs, True),
        "by itself": (by_itself, False),
        "spline": (spline, False),
    },
    "sevenn": {
        "scripted": (scripted, True),
        "program": (Programs, True),
        "by itself": (by_itself, False),
        "spline": (spline, False),
    },
    "e3nn": {"by itself": (by_itself, False)},
}
