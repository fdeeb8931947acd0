"""tpgen generates the code of equivariant tensor products for PyTorch.

Names are imported when they are asked for: ``import tpgen`` alone loads neither torch nor e3nn, so that the command
line answers at once, and a program that only runs products loads nothing that inspects them.  Where torch is loaded
already, the operators of kernels are registered, so that scripted and exported programs that hold them can be loaded.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tpgen._moved import OldNames
from tpgen._version import __version__

if TYPE_CHECKING:
    from tpgen.conversion.adapters import register_adapter
    from tpgen.conversion.convert import conversion_report, convert, restore
    from tpgen.deployment.deploy import deploy
    from tpgen.deployment.portable import portable
    from tpgen.errors import TpgenError
    from tpgen.inspection.costs.explain import explain
    from tpgen.inspection.costs.explain_network import explain_network
    from tpgen.inspection.costs.memory import estimate_memory
    from tpgen.inspection.explorer.page import write_explorer
    from tpgen.inspection.report.compile_report import compile_report
    from tpgen.inspection.stages.dump import dump_stage
    from tpgen.networks.step import compile_step
    from tpgen.networks.training import compile_training
    from tpgen.nn.conv import TensorProductConv
    from tpgen.nn.edges import EdgeOrder
    from tpgen.nn.from_e3nn import from_e3nn
    from tpgen.nn.linear import Linear
    from tpgen.nn.polynomial import Polynomial
    from tpgen.nn.products import (
        ElementwiseTensorProduct,
        FullTensorProduct,
        FullyConnectedTensorProduct,
        TensorSquare,
    )
    from tpgen.nn.symmetric_contraction import SymmetricContraction
    from tpgen.nn.tensor_product import TensorProduct
    from tpgen.planner.plan import Plan
    from tpgen.planner.presets import channelwise
    from tpgen.planner.product import make_plan
    from tpgen.remember import caches
    from tpgen.verification.verify import verify

__all__ = [
    "EdgeOrder",
    "ElementwiseTensorProduct",
    "FullTensorProduct",
    "FullyConnectedTensorProduct",
    "Linear",
    "Plan",
    "Polynomial",
    "SymmetricContraction",
    "TensorProduct",
    "TensorProductConv",
    "TensorSquare",
    "TpgenError",
    "__version__",
    "caches",
    "channelwise",
    "compile_report",
    "compile_step",
    "compile_training",
    "conversion_report",
    "convert",
    "deploy",
    "dump_stage",
    "estimate_memory",
    "explain",
    "explain_network",
    "from_e3nn",
    "make_plan",
    "portable",
    "register_adapter",
    "restore",
    "verify",
    "write_explorer",
]

# Where each name is defined; the imports above say the same to type checkers, and a test compares the two.
_HOMES = {
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
    "TpgenError": "errors",
    "caches": "remember",
    "channelwise": "planner.presets",
    "compile_report": "inspection.report.compile_report",
    "compile_step": "networks.step",
    "compile_training": "networks.training",
    "conversion_report": "conversion.convert",
    "convert": "conversion.convert",
    "deploy": "deployment.deploy",
    "dump_stage": "inspection.stages.dump",
    "estimate_memory": "inspection.costs.memory",
    "explain": "inspection.costs.explain",
    "explain_network": "inspection.costs.explain_network",
    "from_e3nn": "nn.from_e3nn",
    "make_plan": "planner.product",
    "portable": "deployment.portable",
    "register_adapter": "conversion.adapters",
    "restore": "conversion.convert",
    "verify": "verification.verify",
    "write_explorer": "inspection.explorer.page",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


sys.meta_path.append(OldNames())

if "torch" in sys.modules:
    import_module(f"{__name__}.kernels.runtime.ops")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
