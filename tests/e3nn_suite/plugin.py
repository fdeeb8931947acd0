"""A pytest plugin that runs e3nn's own tests with tpgen's classes in the place of e3nn's.

With a checkout of e3nn beside you, from the root of this repository::

    PYTHONPATH=. python -m pytest -p tests.e3nn_suite.plugin -n 2 \\
        path/to/e3nn/tests/o3/tensor_product_test.py path/to/e3nn/tests/o3/tensor_product_sub_test.py \\
        path/to/e3nn/tests/o3/linear_test.py

Two things are adapted, nothing else: e3nn's tests of products catch ``AssertionError`` where tpgen raises its own
`TpgenError`, and they read back two private flags of e3nn's code generator.
"""

from __future__ import annotations

from typing import Any

import e3nn.o3
from e3nn.util.jit import compile_mode

import tpgen

_FLAGS = ("_specialized_code", "_optimize_einsums")


def _adapted(cls: type, asserts: bool = True) -> type:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            cls.__init__(self, *args, **kwargs)
        except tpgen.TpgenError as error:
            if not asserts:
                raise
            raise AssertionError(str(error)) from error
        for flag in _FLAGS:
            if flag in kwargs:
                setattr(self, flag, kwargs[flag])

    # a class of its own for each, under e3nn's name: TorchScript and pickle look them up by module and name
    adapted = type(cls.__name__, (cls,), {"__init__": __init__, "__module__": __name__, "__doc__": cls.__doc__})
    return compile_mode("script")(adapted)


for _name in (
    "TensorProduct",
    "FullyConnectedTensorProduct",
    "ElementwiseTensorProduct",
    "FullTensorProduct",
    "TensorSquare",
):
    globals()[_name] = _adapted(getattr(tpgen, _name))
    setattr(e3nn.o3, _name, globals()[_name])

# e3nn's tests of its linear layer catch the classes of errors that tpgen raises
Linear = _adapted(tpgen.Linear, asserts=False)
e3nn.o3.Linear = Linear
