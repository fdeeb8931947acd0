"""The model modifier ``enable_tpgen``: NequIP loads this module when it is imported (entry point ``nequip.extension``).

NequIP looks for modifiers among the methods of a model's modules.  This one is a method of none: the search itself is
changed, so that every model has it, also where its classes are Allegro's, or those that a package brings.  NequIP is
half imported when it loads this module, so the search is changed once its own module is imported.
"""

import sys
import warnings
from collections.abc import Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from torch import nn

from tpgen.networks.conversion.convert import convert
from tpgen.networks.conversion.swap import mark_of

_MODULE, _SEARCH = "nequip.model.modify_utils", "get_all_modifiers"


def enable_tpgen(_cls: type, model: nn.Module) -> nn.Module:
    """Let tpgen compute the tensor products of a model, on CPUs; one that is converted stays as it is."""
    return model if any(map(mark_of, model.modules())) else convert(model)


def offer_modifier(module: ModuleType) -> None:
    """Let the search for modifiers in a module of NequIP's find ``enable_tpgen``."""
    search = getattr(module, _SEARCH, None)
    if search is None:
        warnings.warn(
            f"NequIP has no model modifier enable_tpgen: its {_MODULE} has no {_SEARCH}, so tpgen does not know this "
            "version of NequIP; tpgen.convert(model) converts a model",
            stacklevel=2,
        )
        return
    from nequip.nn.model_modifier_utils import model_modifier

    mark = model_modifier(
        persistent=False, private=False, unsupported_devices=["cuda"], supported_compile_modes=["aotinductor"]
    )
    holder: Any = type("Modifier", (), {"enable_tpgen": mark(classmethod(enable_tpgen))})

    @wraps(search)
    def search_with_ours(model: nn.Module, *args: Any, **options: Any) -> dict[str, Any]:
        return {**search(model, *args, **options), "enable_tpgen": holder.enable_tpgen}

    setattr(module, _SEARCH, search_with_ours)


class _Finder(MetaPathFinder):
    """Finds the module of the search as Python does, and changes the search once that is imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == _MODULE else None
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_offer(module: ModuleType) -> None:
                load(module)
                offer_modifier(module)

            spec.loader.exec_module = load_and_offer  # type: ignore[method-assign]
        return spec


if _MODULE in sys.modules:
    offer_modifier(sys.modules[_MODULE])
else:
    sys.meta_path.insert(0, _Finder())
