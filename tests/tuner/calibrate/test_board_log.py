"""Values of a machine file from the log of a board: those of a hidden machine are found, rows of another shape are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compiler.ethosu.driver_file import write_raw
from compiler.ethosu.level_streams import LevelStreams
from compiler.ethosu.machine_clock import StreamClock
from compiler.ethosu.network_parts import compile_network
from compiler.ethosu.segments import single_operators
from compiler.frontend.tflite.network import read_network
from simulator.npu.errors import BadInputError
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from tests.compiler.ethosu.models import model
from tuner.calibrate.board_log import calibrate_log, open_clock
from tuner.calibrate.keys import read_value, with_values
from tuner.cli import main

MACHINE = "ethos-u65-256"


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    network = read_network(model("keyword_spotting").data)
    path = tmp_path_factory.mktemp("streams") / "keyword.u65"
    compiled = compile_network(network, single_operators(len(network.operators)), 384 << 10)
    path.write_bytes(write_raw(LevelStreams((compiled,), {"none": 0}, {"none": 0}, ())))
    return path


def write_log(path: Path, streams: Path, board: Machine, noise: float, seed: int) -> Path:
    """What a board of these values logs, each operation three times, some cycles off."""
    rng, lines = np.random.default_rng(seed), ["stream,word,cycles"]
    for (stream, word), cycles in StreamClock(streams.read_bytes()).cycles(board).items():
        for factor in rng.normal(1, noise, 3):
            lines.append(f"{stream},{'' if word is None else word},{max(1, round(cycles * factor))}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(("noise", "seed"), [(0, 0), (0.003, 1)])
def test_a_hidden_board_is_found(tmp_path, streams, noise, seed):
    given = load_machine(MACHINE)
    hidden = with_values(given, {"ddr.bytes_per_cycle": 7.3, "ddr.latency_cycles": 420})
    log = write_log(tmp_path / "board.csv", streams, hidden, noise, seed)
    calibration = calibrate_log(given, open_clock(given, streams), log)
    findings = {finding.key.path: finding for finding in calibration.findings}
    for key in ("ddr.bytes_per_cycle", "ddr.latency_cycles"):
        assert findings[key].value == pytest.approx(read_value(hidden, key), rel=0.02), findings[key]
        assert findings[key].source == "calibrated"
    assert not calibration.classes[0].unexplained


def test_the_command_writes_a_machine_file(tmp_path, streams, capsys):
    hidden = with_values(load_machine(MACHINE), {"ddr.bytes_per_cycle": 6})
    log = write_log(tmp_path / "board.csv", streams, hidden, 0, 0)
    out = tmp_path / "fitted.yaml"
    words = ["calibrate", "--log", str(log), "--streams", str(streams), "--machine", MACHINE, "--out", str(out)]
    assert main(words) == 0
    assert "ddr.bytes_per_cycle" in capsys.readouterr().out
    fitted = load_machine(str(out))
    assert read_value(fitted, "ddr.bytes_per_cycle") == pytest.approx(6, rel=0.02)
    assert "ddr.bytes_per_cycle" in str(fitted.provenance)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n", "columns a, b: expected stream, word, cycles"), ("stream,word,cycles\n", "no rows: expected at least one"),
        ("stream,word,cycles\n0,1\n", "line 2: expected 3 values"), ("stream,word,cycles\n0,x,5\n", "word 'x': expected an integer"),
        ("stream,word,cycles\n0,,0\n", "expected a stream, and at least one cycle"),
        ("stream,word,cycles\n0,1,7\n", "stream 0, word 1: no operation of the streams begins there"),
        ("stream,word,cycles\n9,,7\n", "stream 9: no operation"),
    ],
)  # fmt: skip
def test_a_log_of_another_shape_is_refused(tmp_path, streams, text, message):
    given, path = load_machine(MACHINE), tmp_path / "board.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInputError, match=message):
        calibrate_log(given, open_clock(given, streams), path)


def test_machines_without_streams_are_refused(streams):
    with pytest.raises(BadInputError, match="machine edge has no streams of its own; expected ethos-u65-256"):
        open_clock(load_machine("edge"), streams)


def test_another_file_is_refused(tmp_path):
    (tmp_path / "x.u65").write_bytes(b"else")
    with pytest.raises(BadInputError, match=r"x\.u65: begins with b'else': expected b'U65S'"):
        open_clock(load_machine(MACHINE), tmp_path / "x.u65")


@pytest.mark.parametrize("words", [[], ["--log", "a.csv"], ["--runner", "simulator", "--log", "a.csv", "--streams", "b.u65"]])
def test_either_a_runner_or_a_log(tmp_path, words, capsys):
    assert main(["calibrate", "--machine", MACHINE, "--out", str(tmp_path / "out.yaml"), *words]) == 2
    assert "expected --runner, or --log with --streams" in capsys.readouterr().err
