"""tpgen generates the code of equivariant tensor products for PyTorch."""

from typing import Any

import torch.serialization

with torch.serialization.safe_globals([slice]):  # e3nn 0.4 keeps one in the file of constants that it loads
    import e3nn.o3  # noqa: F401

from tpgen._version import __version__
from tpgen.conversion.adapters import register_adapter
from tpgen.conversion.convert import conversion_report, convert, restore
from tpgen.errors import TpgenError
from tpgen.inspection.costs.explain import explain
from tpgen.nn.conv import TensorProductConv
from tpgen.nn.from_e3nn import from_e3nn
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
    "TensorProductConv",
    "TensorSquare",
    "TpgenError",
    "__version__",
    "compile_report",
    "conversion_report",
    "convert",
    "explain",
    "from_e3nn",
    "make_plan",
    "register_adapter",
    "restore",
]

# The method belongs to the module, what it does to inspection, which imports the module: the package root, which
# always runs, is the one place that may know both.
TensorProduct.explain = explain  # type: ignore[attr-defined]


def __getattr__(name: str) -> Any:
    """`compile_report` is imported when it is asked for: most programs never do."""
    if name == "compile_report":
        from tpgen.inspection.report.compile_report import compile_report

        return compile_report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
