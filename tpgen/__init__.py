"""Code generator for equivariant tensor products in PyTorch.

Names load at first use: ``import tpgen`` loads neither torch nor e3nn.  If torch is loaded, the import registers kernel
operators.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tpgen._version import __version__ as __version__
from tpgen.base._e3nn_constants import ConstantsOfE3nn
from tpgen.base.public import HOMES, load_public

if TYPE_CHECKING:  # names that are imported "as" themselves are this package's to type checkers
    from tpgen.base.errors import TpgenError as TpgenError
    from tpgen.base.remember import caches as caches
    from tpgen.networks.conversion.adapters import register_adapter as register_adapter
    from tpgen.networks.conversion.convert import conversion_report as conversion_report
    from tpgen.networks.conversion.convert import convert as convert
    from tpgen.networks.conversion.convert import restore as restore
    from tpgen.networks.deployment.deploy import deploy as deploy
    from tpgen.networks.deployment.portable import portable as portable
    from tpgen.networks.served import ready as ready
    from tpgen.networks.step import compile_step as compile_step
    from tpgen.networks.training import compile_training as compile_training
    from tpgen.nn.conv import TensorProductConv as TensorProductConv
    from tpgen.nn.edges import EdgeOrder as EdgeOrder
    from tpgen.nn.from_e3nn import from_e3nn as from_e3nn
    from tpgen.nn.linear import Linear as Linear
    from tpgen.nn.polynomial import Polynomial as Polynomial
    from tpgen.nn.products import ElementwiseTensorProduct as ElementwiseTensorProduct
    from tpgen.nn.products import FullTensorProduct as FullTensorProduct
    from tpgen.nn.products import FullyConnectedTensorProduct as FullyConnectedTensorProduct
    from tpgen.nn.products import TensorSquare as TensorSquare
    from tpgen.nn.symmetric_contraction import SymmetricContraction as SymmetricContraction
    from tpgen.nn.tensor_product import TensorProduct as TensorProduct
    from tpgen.planner.plan import Plan as Plan
    from tpgen.planner.presets import channelwise as channelwise
    from tpgen.planner.product import make_plan as make_plan
    from tpgen.tools.inspection.costs.explain import explain as explain
    from tpgen.tools.inspection.costs.explain_network import explain_network as explain_network
    from tpgen.tools.inspection.costs.memory import estimate_memory as estimate_memory
    from tpgen.tools.inspection.explorer.page import write_explorer as write_explorer
    from tpgen.tools.inspection.report.compile_report import compile_report as compile_report
    from tpgen.tools.inspection.stages.dump import dump_stage as dump_stage
    from tpgen.tools.verification.verify import verify as verify

if not TYPE_CHECKING:  # type checkers read no list that is computed
    __all__ = ["__version__", *HOMES]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = load_public(name)
    return found


sys.meta_path.insert(0, ConstantsOfE3nn())

if "torch" in sys.modules:
    import_module(f"{__name__}.kernels.runtime.ops")


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES})
