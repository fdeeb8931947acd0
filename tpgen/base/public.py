"""tpgen's public names with their modules."""

from __future__ import annotations

from importlib import import_module
from typing import Any

HOMES = {
    "EdgeOrder": "nn.edges",
    "ElementwiseTensorProduct": "nn.products",
    "FullTensorProduct": "nn.products",
    "FullyConnectedTensorProduct": "nn.products",
    "Linear": "nn.linear",
    "Plan": "planner.plan",
    "Polynomial": "nn.polynomial",
    "SymmetricContraction": "nn.symmetric_contraction",
    "TensorProduct": "nn.tensor_product",
    "TensorProductConv": "nn.conv",
    "TensorSquare": "nn.products",
    "TpgenError": "base.errors",
    "caches": "base.remember",
    "channelwise": "planner.presets",
    "compile_report": "tools.inspection.report.compile_report",
    "compile_step": "networks.step",
    "compile_training": "networks.training",
    "conversion_report": "networks.conversion.convert",
    "convert": "networks.conversion.convert",
    "deploy": "networks.deployment.deploy",
    "dump_stage": "tools.inspection.stages.dump",
    "estimate_memory": "tools.inspection.costs.memory",
    "explain": "tools.inspection.costs.explain",
    "explain_network": "tools.inspection.costs.explain_network",
    "from_e3nn": "nn.from_e3nn",
    "make_plan": "planner.product",
    "portable": "networks.deployment.portable",
    "ready": "networks.served",
    "register_adapter": "networks.conversion.adapters",
    "restore": "networks.conversion.convert",
    "verify": "tools.verification.verify",
    "write_explorer": "tools.inspection.explorer.page",
}


def load_public(name: str) -> Any:
    """Load the object of a public name.

    >>> load_public("channelwise").__module__
    'tpgen.planner.presets'
    """
    return getattr(import_module(f"tpgen.{HOMES[name]}"), name)
