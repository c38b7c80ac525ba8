"""The example of docs/calibrate.md by the command line, and boards that answer nonsense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.npu.machine_file import load_machine
from tests.docs.fences import ROOT, blocks
from tuner.cli import main

BAD = """
from tuner.measure.runner_api import Reading
from tuner.measure.simulator_runner import measure

class Board:
    count = 0
    def __call__(self, program, level):
        Board.count += 1
        time = measure(program, level).cycles
        return {answer}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_the_example_finds_its_board(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = (block for block in blocks(ROOT / "docs/calibrate.md", "python") if block.file == "hidden_board.py")
    (folder / example.file).write_text(example.text)
    words = [
        "calibrate",
        "--runner",
        "hidden_board:board",
        "--machine",
        "tiny",
        "--out",
        "found.yaml",
        "--readings",
        "8",
        "--quiet",
        "--json",
    ]
    assert main(words) == 0
    said = json.loads(capsys.readouterr().out)
    keys = {each["key"]: each for group in said["classes"] for each in group["keys"]}
    machine = load_machine("found.yaml")
    assert machine.name == "tiny-calibrated"
    assert machine.vector.transcendental_cycles == keys["vector.transcendental_cycles"]["value"]
    assert {each["source"] for each in keys.values()} >= {"calibrated", "given"}
    assert said["check"] is None
    assert 0.02 < said["spread"] < 0.04


@pytest.mark.parametrize(
    ("name", "answer", "text"),
    [
        ("nan", "Reading(float('nan'))", "probe 'one instruction' at none: invalid: nan cycles, expected a whole number above 0"),
        ("negative", "Reading(-time)", "cycles, expected a whole number above 0"),
        ("zero", "Reading(0)", "probe 'one instruction' at none: invalid: 0 cycles, expected a whole number above 0"),
        ("late", "Reading(None, 'timeout', 'no end within 10 s')", "probe 'one instruction' at none: timeout: no end within 10 s"),
        ("broken", "1 // 0", "crash: ZeroDivisionError"),
        ("constant", "Reading(1000)", "takes the same (1,000 cycles, then 1,000); accepted: longer"),
        ("backwards", "Reading(10**9 // time)", "takes less ("),
        ("dice", "Reading(time * 10 ** (Board.count // 2 % 4))", "readings of one program scatter by"),
    ],
)
def test_a_board_that_answers_nonsense_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, answer: str, text: str
) -> None:
    (folder / f"{name}_board.py").write_text(BAD.format(answer=answer))
    runner = f"{name}_board:Board"
    assert main(["calibrate", "--runner", runner, "--machine", "tiny", "--out", "bad.yaml", "--tries", "1", "--quiet"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"tilefarm: --runner {runner}: ")
    assert text in error
    assert error.count("\n") == 1
    assert not Path("bad.yaml").exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--out", "nowhere/found.yaml"], "--out nowhere/found.yaml: folder nowhere does not exist"),
        (["--out", "found.yaml", "--networks", "light:squeezenet"], "--networks goes with --check"),
        (["--out", "found.yaml", "--runner", "no_such"], "--runner no_such: unknown"),
    ],
)
def test_options_that_cannot_be(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str) -> None:
    assert main(["calibrate", "--runner", "simulator", "--machine", "tiny", *words]) == 2
    assert text in capsys.readouterr().err
