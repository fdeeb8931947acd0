"""tpgen generates the code of equivariant tensor products for PyTorch."""

from tpgen._version import __version__
from tpgen.errors import TpgenError
from tpgen.nn.products import (
    ElementwiseTensorProduct,
    FullTensorProduct,
    FullyConnectedTensorProduct,
    TensorSquare,
)
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan import Plan, make_plan

__all__ = [
    "ElementwiseTensorProduct",
    "FullTensorProduct",
    "FullyConnectedTensorProduct",
    "Plan",
    "TensorProduct",
    "TensorSquare",
    "TpgenError",
    "__version__",
    "make_plan",
]
