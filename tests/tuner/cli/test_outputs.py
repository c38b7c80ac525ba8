"""No command writes over what it reads: every output against every input of every command, by whatever links."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import pytest
import typer

from compiler.api import compile
from simulator.command import run_command
from simulator.npu.errors import BadInputError
from simulator.outputs import check_out, files_beside
from tests.models import small_model
from tests.tuner.cli.conftest import Run
from tuner.cli import COMMANDS, app
from tuner.cli.group import PathUse, path_uses

# text that is no path; a store, a mirror and a study's storage are written and read by whoever shares them
NO_PATHS = {
    "address", "dtype", "fail_if_slower", "level", "level_weights", "mirror", "name", "overrides", "resource", "runner", "shape", "storage",
    "store", "strategy", "tag", "target", "url", "dump", "workers",
}  # fmt: skip
NAMED_OUTPUTS = {"out", "bundle", "dump_to"}


class Declared(NamedTuple):
    words: tuple[str, ...]
    options: dict[str, Any]
    texts: set[str]
    uses: dict[str, PathUse]


def _declared() -> Iterator[Declared]:
    group: Any = typer.main.get_command(app)
    for name in COMMANDS:
        made = group.commands[name]
        for entry in import_module(f"tuner.cli.{name}").app.registered_commands:
            signature = inspect.signature(entry.callback, eval_str=True)
            texts = {key for key, one in signature.parameters.items() if "str" in str(getattr(one.annotation, "__origin__", ""))}
            below = getattr(made, "commands", None)
            word = entry.name or entry.callback.__name__
            command = made if below is None else below[word]
            words = (name,) if below is None else (name, word)
            yield Declared(words, {option.name: option for option in command.params}, texts, path_uses(entry.callback))


DECLARED = list(_declared())
PAIRS = [
    pytest.param(one, out, given, id=f"{'-'.join(one.words)}-{out}-{given}")
    for one in DECLARED
    for out, written in one.uses.items()
    for given, read in one.uses.items()
    if written.writes and not read.writes
]


def _command_line(one: Declared, paths: dict[str, str]) -> list[str]:
    words = list(one.words)
    for name, option in one.options.items():
        if name not in paths and not option.required:
            continue
        text = paths.get(name, "missing")
        words += [text] if option.param_type_name == "argument" else [option.opts[0], text]
    return words


def test_every_path_of_a_command_is_known():
    assert len(PAIRS) >= 40
    for one in DECLARED:
        for name in NAMED_OUTPUTS & one.options.keys():
            assert one.uses[name].writes, (one.words, name)
        if any(use.writes for use in one.uses.values()):
            assert one.texts - one.uses.keys() <= NO_PATHS | ({"plan"} if one.words == ("export",) else set()), one.words


@pytest.mark.parametrize(("one", "out", "given"), PAIRS)
def test_no_output_over_an_input(one: Declared, out: str, given: str, cli: Run, tmp_path: Path):
    folder = tmp_path / "input"
    folder.mkdir()
    file = folder / "part.json"
    file.write_bytes(b"{}")
    if one.uses[out].folder:
        inputs, outputs = [folder], [folder, tmp_path / "link"]
        outputs[1].symlink_to(folder)
    else:
        inputs, outputs = [file, folder], [file, tmp_path / "link", tmp_path / "hard"]
        outputs[1].symlink_to(file)
        os.link(file, outputs[2])
    for read in inputs:
        for written in outputs:
            code, _, err = cli(*_command_line(one, {out: str(written), given: str(read)}))
            assert (code, len(err.splitlines())) == (2, 1)
            assert f"{written}: is the input {read}" in err
            assert file.read_bytes() == b"{}"


def test_forms_of_paths(compiled: Path, cli: Run, tmp_path: Path):
    plan = tmp_path / "plan.onnx"
    plan.write_bytes(b"{}")
    code, _, err = cli("compile", "made:drawn,seed=1", "--machine", "tiny", "--plan", f"none={plan}", "--out", plan)
    assert code == 2
    assert "is the input" in err
    assert "is the input" in cli("report", f"file://{tmp_path}", "--out", plan)[2]
    assert cli("calibrate", "--runner", "simulator", "--machine", "tiny", "--networks", f"made:x,{plan}", "--out", plan)[2].count(
        "is the input"
    )
    page = tmp_path / "report.html"  # made of a folder, in it: may be made anew
    page.write_bytes(b"")
    check_out(page, [tmp_path])


def test_files_beside_a_model(compiled: Path, cli: Run, tmp_path: Path):
    """External data, by their name or a hard link, and the containers of a compiled file."""
    (tmp_path / "data").mkdir()
    onnx.save(small_model("conv_chain"), tmp_path / "m.onnx", save_as_external_data=True, location="data/w.bin", size_threshold=0)
    data, hard, other = tmp_path / "data/w.bin", tmp_path / "hard", tmp_path / "other"
    os.link(data, hard)
    other.write_bytes(b"")
    for out in (data, hard):
        code, _, err = cli("compile", tmp_path / "m.onnx", "--machine", "tiny", "--out", out)
        assert code == 2
        assert f"{out}: is the input {data}, of {tmp_path / 'm.onnx'}" in err
    check_out(other, [tmp_path / "m.onnx", compiled])
    model = compile(small_model("conv_chain"), "tiny", layerwise=True)
    model.save(tmp_path / "c.onnx", style="epcontext-external")
    assert list(files_beside(tmp_path / "c.onnx")) == [tmp_path / "c_tilefarm.bin"]
    code, _, err = cli("disasm", tmp_path / "c.onnx", "--out", tmp_path / "c_tilefarm.bin")
    assert code == 2
    assert "is the input" in err


def test_a_program_writes_over_no_model(tmp_path: Path):
    onnx.save(small_model("conv_chain"), tmp_path / "m.onnx")
    with pytest.raises(BadInputError, match="is the input"):
        compile(tmp_path / "m.onnx", "tiny", layerwise=True).save(tmp_path / "m.onnx")


@pytest.mark.parametrize("words", [("compiler", "m.onnx", "--machine", "tiny"), ("simulator", "c.onnx", "--input", "m.onnx")])
def test_the_modules_write_over_no_input(words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    onnx.save(small_model("conv_chain"), tmp_path / "m.onnx")
    command, *rest = (str(tmp_path / word) if word.endswith(".onnx") else word for word in words)
    module = import_module(f"{command}.__main__")
    assert run_command(module.app, command, [*rest, "--out", str(tmp_path / "m.onnx")]) == 2
    assert "is the input" in capsys.readouterr().err


@pytest.mark.parametrize("style", ["function", "epcontext", "epcontext-external"])
def test_a_compiled_file_is_no_model(style: Any, cli: Run, tmp_path: Path):
    compile(small_model("conv_chain"), "tiny", layerwise=True).save(tmp_path / "c.onnx", style=style)
    for command in ("compile", "tune"):
        code, _, err = cli(command, tmp_path / "c.onnx", "--machine", "tiny", "--out", tmp_path / "o")
        assert code == 2
        assert "c.onnx: is compiled already, by tilefarm; expected the model that it was made of" in err
        assert len(err.splitlines()) == 1
