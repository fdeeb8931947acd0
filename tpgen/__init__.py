"""tpgen generates the code of equivariant tensor products for PyTorch."""

from tpgen.errors import TpgenError
from tpgen.nn.products import (
    ElementwiseTensorProduct,
    FullTensorProduct,
    FullyConnectedTensorProduct,
    TensorSquare,
)
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan import Plan, make_plan

__version__ = "0.1.0"

__all__ = [
    "ElementwiseTensorProduct",
    "FullTensorProduct",
    "FullyConnectedTensorProduct",
    "Plan",
    "TensorProduct",
    "TensorSquare",
    "TpgenError",
    "make_plan",
]
