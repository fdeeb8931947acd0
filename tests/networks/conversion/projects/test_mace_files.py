"""MACE's files and its training program, on stand-ins; tests/clients runs MACE itself."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from click.testing import CliRunner
from e3nn import o3
from torch import nn

from tests.networks.conversion.networks import Layer
from tpgen.base.errors import InputError
from tpgen.networks.conversion.projects.mace_files import change_file
from tpgen.networks.conversion.projects.mace_training import patch_training_program, run_training
from tpgen.networks.conversion.swap import get_swap_mark
from tpgen.tools.cli.app import main


def command(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["mace-convert", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def test_a_file_is_converted_and_restored(tmp_path: Path) -> None:
    stock, there, back = (tmp_path / name for name in ("stock.model", "converted.model", "back.model"))
    torch.save(Layer(), stock)
    assert "Layer: 2 modules compute with tpgen" in command(stock, there, "--strategy", "grouped")
    assert "Layer: 0 modules compute with tpgen, 2 can be converted" in command("--restore", there, back)
    first, middle, last = (torch.load(file, weights_only=False) for file in (stock, there, back))
    assert type(last.product) is o3.FullyConnectedTensorProduct
    assert get_swap_mark(middle.product) is not None
    inputs = torch.randn(3, 6), torch.randn(3, 3)
    assert torch.equal(last(*inputs), first(*inputs))
    torch.testing.assert_close(middle(*inputs), first(*inputs))


def test_a_file_that_is_there_is_replaced_only_when_asked(tmp_path: Path) -> None:
    model, other = tmp_path / "my.model", tmp_path / "other.model"
    torch.save(Layer(), model)
    other.write_text("mine")
    stock = model.read_bytes()
    for target in (model, other):
        assert f"{target} is there already: name another TARGET, or replace it by --force" in command(
            model, target, code=2
        )
    assert model.read_bytes() == stock
    assert other.read_text() == "mine"
    for target in (other, model):
        command("--force", "--strategy", "grouped", model, target)
        assert get_swap_mark(torch.load(target, weights_only=False).product) is not None


class Wrapper:
    """As LAMMPS's Python interface holds a model; no module itself."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model


def test_what_lammps_reads_holds_a_converted_model(tmp_path: Path) -> None:
    source, target = tmp_path / "stock.pt", tmp_path / "converted.pt"
    torch.save(Wrapper(Layer()), source)
    command(source, target, "--strategy", "grouped")
    held = torch.load(target, weights_only=False)
    assert isinstance(held, Wrapper)
    assert get_swap_mark(held.model.product) is not None


def _weights(file: Path) -> None:
    torch.save(Layer().state_dict(), file)


def _scripted(file: Path) -> None:
    torch.jit.save(torch.jit.script(nn.Linear(1, 1)), file)


def _elsewhere(file: Path) -> None:
    module = ModuleType("no_such_project")
    there = type("Potential", (), {"__module__": "no_such_project"})
    module.Potential = there
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "no_such_project", module)
        torch.save(there(), file)


@pytest.mark.filterwarnings("ignore:.*torch.load.*TorchScript:UserWarning")
@pytest.mark.parametrize(
    "write, why",
    [
        (_weights, r"holds no model \(its class is OrderedDict\): .*a checkpoint of weights loads"),
        (_scripted, "holds a compiled model: convert the model that it was made from"),
        (_elsewhere, "cannot be read here: No module named 'no_such_project'.*where mace-torch is installed"),
        (lambda file: file.write_text("no"), "is no file that torch.save wrote"),
    ],
)
def test_a_file_without_a_model_is_named(write, why: str, tmp_path: Path) -> None:
    source, target = tmp_path / "in.model", tmp_path / "out.model"
    write(source)
    with pytest.raises(InputError, match=why):
        change_file(source, target, deepcopy)
    assert not target.exists()


def test_what_cannot_be_changed_is_not_written(tmp_path: Path) -> None:
    source, target = tmp_path / "in.model", tmp_path / "out.model"
    torch.save(Layer(), source)
    assert "error: Layer holds nothing that tpgen.convert has converted" in command("--restore", source, target, code=2)
    assert not target.exists()


def test_a_file_that_is_half_written_takes_no_model_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "only.model"
    torch.save(Layer(), file)
    before = file.read_bytes()

    def full(_held: object, where: Path) -> None:
        Path(where).write_bytes(b"half")
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(
            "tpgen.networks.conversion.projects.mace_files.torch",
            SimpleNamespace(load=torch.load, save=full, jit=torch.jit),
        )
        with pytest.raises(OSError, match="no space left"):
            change_file(file, file, deepcopy)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]
    command(file, file, "--force", "--strategy", "grouped")
    assert get_swap_mark(torch.load(file, weights_only=False).product) is not None


def test_where_nothing_can_be_written_nothing_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, made = tmp_path / "in.model", tmp_path / "new" / "out.model"
    torch.save(Layer(), source)
    with monkeypatch.context() as patch:
        patch.setattr("tpgen.tools.cli.projects.change_file", lambda *_: pytest.fail("work was begun"))
        assert "is a file, not a folder" in command(source, source / "out.model", code=2)
    command(source, made, "--strategy", "grouped")
    assert made.exists(), "a folder that is not there is made"


# --- training -------------------------------------------------------------------------------------------------------


def program() -> SimpleNamespace:
    """As much of MACE's program as is patched: it asks for options, computes, and copies to save."""
    found = SimpleNamespace(
        __name__="mace.cli.run_train",
        get_params_options=lambda args, model: list(model.parameters()),
        deepcopy=deepcopy,
    )

    def run(model: nn.Module) -> tuple[list, type, nn.Module]:
        options = found.get_params_options(None, model)
        return options, type(model.product), found.deepcopy(model)

    found.run = run
    return found


def test_training_computes_with_tpgen_and_saves_stock(caplog: pytest.LogCaptureFixture) -> None:
    model, run_train = Layer(), program()
    parameters = list(model.parameters())
    with patch_training_program(run_train), caplog.at_level("INFO"):
        options, trained, saved = run_train.run(model)
    assert all(a is b for a, b in zip(options, parameters, strict=True))
    assert trained.__name__ == "ConvertedFullyConnectedTensorProduct"
    assert type(saved.product) is o3.FullyConnectedTensorProduct
    assert "Layer: 2 modules compute with tpgen" in caplog.text
    assert run_train.deepcopy is deepcopy, "the program is as it was"
    assert run_train.deepcopy([model])[0] is not model


def test_another_version_of_the_program_is_named() -> None:
    run_train = program()
    del run_train.get_params_options
    with pytest.raises(InputError, match=r"has no get_params_options in mace.cli.run_train.*tpgen.convert\(model\)"):
        patch_training_program(run_train).__enter__()


def test_training_needs_mace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mace", None)
    with pytest.raises(InputError, match=r"training program cannot be loaded .*pip install mace-torch"):
        run_training([])
    assert "pip install mace-torch" in CliRunner().invoke(main, ["mace-run-train", "--name", "x"]).output
