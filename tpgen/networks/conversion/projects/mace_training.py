"""MACE's training with a converted model."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from torch import nn

from tpgen.base.errors import InputError
from tpgen.networks.conversion.convert import conversion_report, convert
from tpgen.networks.conversion.swap import undo_swaps


def run_training(arguments: Sequence[str]) -> None:
    """Run ``mace_run_train`` with a converted model; saved models are stock.

    Raises `InputError` without MACE or for unknown versions.
    """
    program = _import_mace_training()
    with patch.object(sys, "argv", ["mace_run_train", *arguments]), patch_training_program(program):
        program.main()


@contextmanager
def patch_training_program(program: Any) -> Iterator[None]:
    """Let ``program`` convert its model before the optimiser, and restore saved copies."""
    changes = {"get_params_options": _wrap_get_options_to_convert_model, "deepcopy": _wrap_deepcopy_to_restore_models}
    missing = [name for name in changes if not hasattr(program, name)]
    if missing:
        raise InputError(
            f"this version of MACE has no {' and no '.join(missing)} in {program.__name__}, where tpgen converts the "
            "model: update mace-torch or tpgen, or call tpgen.convert(model) in a training program of your own"
        )
    made: dict[str, Any] = {name: change(getattr(program, name)) for name, change in changes.items()}
    with patch.multiple(program, **made):
        yield


def _wrap_get_options_to_convert_model(get_options: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(get_options)
    def convert_and_get_options(args: Any, model: nn.Module) -> Any:
        logging.info("%s", conversion_report(convert(model)))
        return get_options(args, model)

    return convert_and_get_options


def _wrap_deepcopy_to_restore_models(deepcopy: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(deepcopy)
    def copy_and_restore_module(value: Any, *rest: Any) -> Any:
        made = deepcopy(value, *rest)
        if isinstance(made, nn.Module):
            undo_swaps(made)
        return made

    return copy_and_restore_module


def _import_mace_training() -> Any:
    try:
        from mace.cli import run_train
    except ImportError as error:
        raise InputError(f"MACE's training program cannot be loaded ({error}): pip install mace-torch") from error
    return run_train
