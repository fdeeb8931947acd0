"""NequIP's own programs from their command lines, on a small model that they train: what each writes, once."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from tests.clients.pages import FOUNDATIONS, snippets

_MODELS = {
    "nequip": """
      _target_: nequip.model.NequIPGNNModel
      num_features: 4
      radial_mlp_depth: 1
      radial_mlp_width: 8
""",
    "allegro": """
      _target_: allegro.model.AllegroModel
      num_tensor_features: 4
      num_scalar_features: 8
      radial_chemical_embed: {_target_: allegro.nn.TwoBodyBesselScalarEmbed, num_bessels: 8}
""",
}
_CONFIG = """
run: [train]
data:
  _target_: nequip.data.datamodule.NequIPDataModule
  seed: 1
  split_dataset:
    dataset:
      _target_: nequip.data.dataset.EMTTestDataset
      transforms:
        - _target_: nequip.data.transforms.ChemicalSpeciesToAtomTypeMapper
          model_type_names: [Cu]
          chemical_species_to_atom_type_map: {Cu: Cu}
        - {_target_: nequip.data.transforms.NeighborListTransform, r_max: 4.0}
      supercell: [2, 2, 2]
      seed: 1
      num_frames: 6
      element: Cu
    train: 4
    val: 2
    test: 0
  train_dataloader: {_target_: torch.utils.data.DataLoader, batch_size: 2}
  val_dataloader: {_target_: torch.utils.data.DataLoader, batch_size: 2}
  stats_manager: {_target_: nequip.data.CommonDataStatisticsManager, type_names: [Cu]}
trainer:
  _target_: lightning.Trainer
  max_epochs: 2
  accelerator: cpu
  logger: false
  enable_progress_bar: false
  callbacks:
    - {_target_: lightning.pytorch.callbacks.ModelCheckpoint, dirpath: ".", filename: best}
training_module:
  _target_: nequip.train.EMALightningModule
  loss:
    _target_: nequip.train.EnergyForceStressLoss
    per_atom_energy: true
    coeffs: {total_energy: 1.0, forces: 1.0, stress: 1.0}
  val_metrics:
    _target_: nequip.train.EnergyForceStressMetrics
    coeffs: {total_energy_mae: 1.0, forces_mae: 1.0, stress_mae: 1.0}
  optimizer: {_target_: torch.optim.Adam, lr: 0.01}
  model:
    _target_: nequip.model.modify
    modifiers: [MODIFIERS]
    model:MODEL
      seed: 1
      model_dtype: float64
      type_names: [Cu]
      r_max: 4.0
      l_max: 1
      parity: true
      num_layers: 1
      avg_num_neighbors: ${training_data_stats:num_neighbors_mean}
      per_type_energy_shifts: ${training_data_stats:per_atom_energy_mean}
      per_type_energy_scales: ${training_data_stats:forces_rms}
"""
ROOT = Path(__file__).parents[2]


def program(name: str, *arguments: str, folder: Path) -> str:
    """Run a program of NequIP's; what it says."""
    command = [str(Path(sys.executable).with_name(name)), *arguments]
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, cwd=folder, env=os.environ | paths, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout + done.stderr


@cache
def trained(model: str, modified: bool = True) -> Path:
    """The checkpoint of ``nequip-train``, with the modifier in its configuration or without."""
    folder = Path(mkdtemp(prefix="tpgen-nequip-"))
    modifier = "{modifier: enable_tpgen}" if modified else ""
    config = _CONFIG.replace("MODIFIERS", modifier).replace("MODEL\n", _MODELS[model].rstrip() + "\n")
    (folder / "config.yaml").write_text(config)
    program("nequip-train", "-cp", str(folder), "-cn", "config", f"hydra.run.dir={folder}/run", folder=folder)
    return folder / "best.ckpt"


@cache
def packaged(model: str) -> Path:
    """The package of ``nequip-package build``, of that checkpoint."""
    checkpoint = trained(model)
    program("nequip-package", "build", "best.ckpt", "model.nequip.zip", folder=checkpoint.parent)
    return checkpoint.with_name("model.nequip.zip")


@cache
def compiled(source: Path) -> Path:
    """The file of ``nequip-compile`` with the modifier, as a page has it, of a checkpoint or a package."""
    name = f"{source.name.partition('.')[0]}.nequip.pt2"
    (line,) = snippets(FOUNDATIONS, "NequIP and Allegro", "sh")
    command, _, _, *asked = shlex.split(line)
    program(command, source.name, name, *asked, folder=source.parent)
    return source.with_name(name)
