"""Model files of MACE, converted and restored; reading a file runs pickled code."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tpgen.base.errors import InputError
from tpgen.networks.conversion.convert import conversion_report
from tpgen.networks.conversion.report import Conversion

_Change = Callable[[nn.Module], nn.Module]


def change_file(source: Path, target: Path, change: _Change) -> Conversion:
    """Apply ``change`` (`convert` or `restore`) to a model's file, and return the report.

    Reads files of ``mace_run_train`` and ``mace_create_lammps_model --format=mliap``.  ``target`` may be ``source``;
    errors write nothing.
    """
    held = _load_pickle_or_explain(source)
    network = change(_get_network_or_input_error(source, held))
    _save_atomically(held, target.resolve())
    return conversion_report(network)


def read_model(source: Path) -> nn.Module:
    return _get_network_or_input_error(source, _load_pickle_or_explain(source))


def _save_atomically(value: Any, target: Path) -> None:
    # the complete file replaces ``target``
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        torch.save(value, beside)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def _load_pickle_or_explain(source: Path) -> Any:
    try:
        return torch.load(source, map_location="cpu", weights_only=False)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"{source} cannot be read here: {error}.  A model file names the classes of the programs that wrote it: "
            "run this where mace-torch is installed, in the versions (of e3nn too) that the model was saved with"
        ) from error
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise InputError(f"{source} is no file that torch.save wrote: {str(error).splitlines()[0]}") from error


def _get_network_or_input_error(source: Path, loaded: Any) -> nn.Module:
    network = loaded if isinstance(loaded, nn.Module) else getattr(loaded, "model", None)
    if isinstance(network, torch.jit.ScriptModule):
        raise InputError(f"{source} holds a compiled model: convert the model that it was made from, then compile that")
    if not isinstance(network, nn.Module):
        raise InputError(
            f"{source} holds no model (its class is {type(loaded).__name__}): give the file ending in .model that "
            "mace_run_train saves (a checkpoint of weights loads into a converted model as into a stock one)"
        )
    return network
