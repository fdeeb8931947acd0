"""Train a small potential on energies and forces: tpgen's products on e3nn's pieces, data made on the spot.

    python docs/examples/train_potential.py --out out/training
    torchrun --nproc-per-node 2 docs/examples/train_potential.py --out out/training --parallel ddp

The network and the data stand in alloy_potential.py beside this file.
"""

from __future__ import annotations

import argparse
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from alloy_potential import Batch, Potential, collated, structures
from rich.progress import track
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

# --- training ---------------------------------------------------------------------------------------------------------


ENERGY_WEIGHT = 20.0  # of energies beside forces, in the loss


@dataclass(frozen=True)
class Options:
    """What a run is; its checkpoint can be resumed by one with other ``epochs`` and ``parallel``."""

    out: Path
    epochs: int = 60
    train: int = 256
    valid: int = 32
    batch: int = 16
    channels: int = 16
    lmax: int = 1
    rate: float = 0.01
    average: float = 0.99  # decay of the moving average of the weights
    parallel: str = "none"
    autocast: bool = False
    budget: float = 0.05
    strategy: str = "auto"
    resume: bool = False


class CheckpointError(Exception):
    """A checkpoint that cannot be resumed, and what to do."""


@dataclass
class Run:
    """Everything that a checkpoint holds."""

    model: nn.Module
    averaged: nn.Module  # the moving average of the weights
    optimizer: torch.optim.Optimizer
    epoch: int = 0
    updates: int = 0
    history: list[list[float]] = field(default_factory=list)  # losses of training and of validation

    def state(self) -> dict[str, Any]:
        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        model, optimizer = get_state_dict(self.model, self.optimizer, options=whole)
        averaged, _ = get_state_dict(self.averaged, [], options=whole)
        return {
            "model": model,
            "optimizer": optimizer,
            "averaged": averaged,
            "epoch": self.epoch,
            "updates": self.updates,
            "history": self.history,
        }

    def load(self, state: dict[str, Any]) -> None:
        whole = StateDictOptions(full_state_dict=True)
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=whole,
        )
        set_state_dict(self.averaged, [], model_state_dict=state["averaged"], optim_state_dict={}, options=whole)
        self.epoch, self.updates, self.history = state["epoch"], state["updates"], state["history"]


def save(state: dict[str, Any], path: Path) -> None:
    """Write a checkpoint beside its place and move it there: it is the old one or the new one, never half of one."""
    beside = path.with_suffix(".writing")
    with beside.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def load(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise CheckpointError(f"{path} is not there: leave --resume out to begin, or name the folder of the run")
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except (RuntimeError, EOFError, pickle.UnpicklingError, OSError) as error:
        said = str(error).splitlines()[0]
        raise CheckpointError(
            f"{path} cannot be read ({said}): it was copied or written in part.  Nothing was changed: copy it again, "
            "or leave --resume out to begin anew"
        ) from error


def prepared(options: Options, data: list[Batch], device: torch.device) -> Run:
    """The network on every process, with its average and its optimiser."""
    torch.manual_seed(0)
    model = Potential(options.channels, lmax=options.lmax, strategy=options.strategy)
    model.start_from(collated(data))
    model.to(device)
    averaged = deepcopy(model)
    if options.parallel == "fsdp":
        for network in (model, averaged):
            fully_shard(network)
    wrapped = DistributedDataParallel(model) if options.parallel == "ddp" else model
    return Run(wrapped, averaged, torch.optim.Adam(wrapped.parameters(), lr=options.rate, amsgrad=True))


def batches(data: list[Batch], options: Options, epoch: int) -> Iterator[Batch]:
    """The batches of an epoch, in an order that the epoch alone decides; each process takes its share of each."""
    generator = torch.Generator().manual_seed(epoch)
    order = torch.randperm(len(data), generator=generator).tolist()
    rank, world = place()
    for start in range(0, len(order) - options.batch + 1, options.batch):
        yield collated([data[n] for n in order[start : start + options.batch][rank::world]])


def loss_of(found: tuple[Tensor, Tensor], batch: Batch) -> Tensor:
    """Mean squares of the errors of forces, and of energies per atom, which are smaller numbers and weigh more."""
    energy, forces = found
    atoms = torch.bincount(batch.structure).to(energy)
    of_energies = ((energy - batch.energy) / atoms).square().mean()
    return ENERGY_WEIGHT * of_energies + (forces - batch.forces).square().mean()


def train_epoch(run: Run, data: list[Batch], options: Options, device: torch.device) -> float:
    run.model.train()
    losses = []
    for group in run.optimizer.param_groups:  # a long decay, the same however often a run is interrupted
        group["lr"] = options.rate * 0.98**run.epoch
    for batch in batches(data, options, run.epoch):
        on_device = batch.to(device)
        with rounding(options, device):
            found = run.model(on_device)
        loss = loss_of(found, on_device)
        run.optimizer.zero_grad()
        loss.backward()
        run.optimizer.step()
        average(run, options.average)
        losses.append(loss.detach())
    return mean_over_processes(torch.stack(losses).mean())


def average(run: Run, decay: float) -> None:
    model = run.model.module if isinstance(run.model, DistributedDataParallel) else run.model
    run.updates += 1
    decay = min(decay, run.updates / (10 + run.updates))  # at first the average follows: it starts from random weights
    with torch.no_grad():
        for mean, now in zip(run.averaged.parameters(), model.parameters(), strict=True):
            mean.lerp_(now, 1.0 - decay)


def evaluated(run: Run, batch: Batch, options: Options) -> tuple[Tensor, Tensor]:
    """Energies and forces of the averaged network; autocast ones are compared with those in full precision."""
    run.averaged.eval()
    exact = tuple(x.detach() for x in run.averaged(batch))
    if options.autocast:
        with rounding(options, batch.positions.device):
            rounded = run.averaged(batch)[1].detach()
        error = float((rounded - exact[1]).norm() / exact[1].norm())
        if error > options.budget:
            raise SystemExit(
                f"bfloat16 changes the forces by {error:.1%} of their size, and the budget is {options.budget:.1%}: "
                "leave --autocast out, or raise --budget"
            )
    return exact[0], exact[1]


def rounding(options: Options, device: torch.device) -> Any:
    return torch.autocast(device.type, torch.bfloat16) if options.autocast else nullcontext()


# --- processes --------------------------------------------------------------------------------------------------------


def place() -> tuple[int, int]:
    """The number of this process, and how many there are."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def mean_over_processes(x: Tensor) -> float:
    if dist.is_initialized():
        dist.all_reduce(x)
    return float(x) / place()[1]


def join(options: Options) -> torch.device:
    """Join the other processes that torchrun has started; the device of this one."""
    number = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", number) if torch.cuda.is_available() else torch.device("cpu")
    if options.parallel != "none":
        if "RANK" not in os.environ:
            raise SystemExit(
                f"--parallel {options.parallel} needs torchrun: torchrun --nproc-per-node 2 {__file__} ..."
            )
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        if options.batch % place()[1]:
            raise SystemExit(f"--batch {options.batch} must be a multiple of the {place()[1]} processes")
    return device


def main(arguments: Sequence[str] | None = None) -> Run:
    options = parsed(arguments)
    device = join(options)
    try:
        return trained(options, device, first=place()[0] == 0)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def trained(options: Options, device: torch.device, first: bool) -> Run:
    options.out.mkdir(parents=True, exist_ok=True)
    data, valid = structures(options.train, seed=1), collated(structures(options.valid, seed=2)).to(device)
    run, checkpoint = prepared(options, data, device), options.out / "checkpoint.pt"
    if options.resume:
        run.load(load(checkpoint))
    for _ in track(range(run.epoch, options.epochs), "training", disable=not first or not os.isatty(2)):
        before = train_epoch(run, data, options, device)
        after = float(loss_of(evaluated(run, valid, options), valid))
        run.history.append([before, after])
        run.epoch += 1
        state = run.state()  # every process has a part in it
        if first:
            save(state, checkpoint)
    found = evaluated(run, valid, options)
    if first:
        plot(run.history, found, valid, options.out)
        print(summary(found, valid))
    return run


def summary(found: tuple[Tensor, Tensor], valid: Batch) -> str:
    atoms = torch.bincount(valid.structure)
    energies, spread = (found[0] - valid.energy) / atoms, (valid.energy / atoms).std()
    energy, forces, size = (1e3 * x.square().mean().sqrt() for x in (energies, found[1] - valid.forces, valid.forces))
    return (
        f"errors (root mean square): energy {energy:.1f} meV/atom of a spread of {1e3 * spread:.0f}, "
        f"forces {forces:.0f} meV/Å of a size of {size:.0f}"
    )


def plot(history: list[list[float]], found: tuple[Tensor, Tensor], valid: Batch, folder: Path) -> None:
    """The losses of every epoch, and what was found beside what is."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for values, name in zip(zip(*history, strict=True), ("training", "validation, averaged weights"), strict=False):
        axes[0].semilogy(range(1, len(values) + 1), values, label=name)
    axes[0].set(xlabel="epoch", ylabel="loss")
    axes[0].legend(frameon=False)
    pairs = {"energy, eV": (valid.energy, found[0]), "forces, eV/Å": (valid.forces, found[1])}
    for ax, (name, (wanted, got)) in zip(axes[1:], pairs.items(), strict=True):
        ax.plot(wanted.flatten().cpu(), got.flatten().cpu(), ".", alpha=0.6)
        ax.axline((float(wanted.mean()), float(wanted.mean())), slope=1.0, color="0.6", lw=1.0)
        ax.set(xlabel=f"{name}, EMT", ylabel="found")
    figure.savefig(folder / "training.png", dpi=120)
    pyplot.close(figure)


def parsed(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder of checkpoint and plot")
    for name, kind, about in _NUMBERS:
        parser.add_argument(f"--{name}", type=kind, default=getattr(Options, name), help=f"{about} (%(default)s)")
    parser.add_argument("--parallel", choices=("none", "ddp", "fsdp"), default="none", help="under torchrun")
    parser.add_argument("--strategy", default="auto", help="of tpgen's products")
    parser.add_argument("--autocast", action="store_true", help="matrix products in bfloat16")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in the folder")
    return Options(**vars(parser.parse_args(arguments)))


_NUMBERS: tuple[tuple[str, Callable, str], ...] = (
    ("epochs", int, "epochs in all"),
    ("train", int, "structures to train on"),
    ("valid", int, "structures to validate on"),
    ("batch", int, "structures in a batch, of all processes together"),
    ("channels", int, "copies of each irrep"),
    ("lmax", int, "highest degree"),
    ("rate", float, "learning rate"),
    ("average", float, "decay of the average of weights"),
    ("budget", float, "what bfloat16 may change of the forces"),
)


if __name__ == "__main__":
    main()
