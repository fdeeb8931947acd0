"""The model modifier ``enable_tpgen``, from entry point ``nequip.extension``, for all models."""

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
from tpgen.networks.conversion.swap import get_swap_mark

_MODULE, _SEARCH = "nequip.model.modify_utils", "get_all_modifiers"


def enable_tpgen(_cls: type, model: nn.Module) -> nn.Module:
    """Convert a model in place unless converted; for CPUs."""
    return model if any(map(get_swap_mark, model.modules())) else convert(model)


def register_enable_tpgen_modifier(module: ModuleType) -> None:
    """Add ``enable_tpgen`` to results of NequIP's search for modifiers."""
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
    def find_modifiers_and_enable_tpgen(model: nn.Module, *args: Any, **options: Any) -> dict[str, Any]:
        return {**search(model, *args, **options), "enable_tpgen": holder.enable_tpgen}

    setattr(module, _SEARCH, find_modifiers_and_enable_tpgen)


class _NequipImportHook(MetaPathFinder):
    """Import hook that registers ``enable_tpgen`` after NequIP's import."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Spec of NequIP's module, whose import adds ``enable_tpgen``; None for other modules."""
        spec = PathFinder.find_spec(name, path) if name == _MODULE else None
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: ModuleType) -> None:
                load(module)
                register_enable_tpgen_modifier(module)

            spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


if _MODULE in sys.modules:
    register_enable_tpgen_modifier(sys.modules[_MODULE])
else:
    sys.meta_path.insert(0, _NequipImportHook())
