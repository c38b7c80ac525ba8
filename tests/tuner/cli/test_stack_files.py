"""Command streams of a `.tflite` model: what `compile` and `tune` write, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compiler.ethosu.driver_file import write_tflite
from compiler.ethosu.network_parts import compile_network
from compiler.ethosu.segments import single_operators
from compiler.frontend.tflite.network import read_network
from simulator.ethosu.executor import execute
from simulator.ethosu.raw_streams import read_raw_file
from tests.compiler.ethosu.models import model
from tests.compiler.ethosu.test_driver_file import raw_stream, run_raw
from tests.tuning import FEW, quick
from tuner.cli import main

MACHINE = "ethos-u65-256"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    out = tmp_path / "network.tflite"
    out.write_bytes(model("table_activations").data)
    return out


def assert_right(raw: Path) -> None:
    source = model("table_activations")
    for level in read_raw_file(raw.read_bytes()).levels:
        for output, expected in zip(run_raw(raw.read_bytes(), source, level.name), source.outputs, strict=True):
            np.testing.assert_array_equal(output, expected.ravel())


def moved(raw: Path) -> dict[str, int]:
    """Bytes of DRAM by channel, from the words of a file."""
    data = raw.read_bytes()
    stream, regions = raw_stream(data, model("table_activations"), "severe")
    return {channel.channel: count.bytes for channel, count in execute(stream.words, regions, 0).bytes.items() if channel.memory == "dram"}


def test_compile_writes_a_tflite_file_and_raw_words(path, capsys):
    out = path.parent / "out.tflite"
    assert main(["compile", str(path), "--machine", MACHINE, "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "operators 0 to 14: " in text
    assert text.splitlines()[-1] == f"{out}: {out.stat().st_size:,} bytes"
    assert b"ethos-u" in out.read_bytes()
    assert_right(out.with_suffix(".u65"))
    assert "tilefarm_rules[TILEFARM_RULES]" in out.with_suffix(".h").read_text(encoding="utf-8")


def test_compile_of_layers_writes_streams_that_are_completed(path, capsys):
    """A segment for each operator: neighbours become one, as in other plans."""
    out = path.parent / "layers.tflite"
    assert main(["compile", str(path), "--machine", MACHINE, "--layerwise", "--out", str(out)]) == 0
    none = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("none "))
    assert int(none.split()[3]) == 13
    assert_right(out.with_suffix(".u65"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--machine", "edge"], "machine edge has no such files; expected ethos-u65-256"),
        (["--machine", MACHINE, "--check"], "--check: "),
    ],
)
def test_what_does_not_go_together_is_refused(path, words, message, capsys):
    out = path.parent / "out.tflite"
    assert main(["compile", str(path), *words, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_a_run_has_them_beside_its_onnx_file(path):
    out = path.parent / "run"
    summary = quick(path, out, 3, *FEW, machine=MACHINE)
    assert summary.status == "done"
    assert summary.packaged is not None
    assert (summary.packaged.files, summary.packaged.on_processor) == (("best.tflite", "best.u65", "best.h"), ())
    assert {channel: count for channel, count in summary.packaged.moved.items() if count} == moved(out / "best.u65")
    assert (out / "best.tflite").stat().st_size > 10_000
    assert_right(out / "best.u65")
    assert main(["export", str(out), "--out", str(path.parent / "again.tflite")]) == 0
    assert (path.parent / "again.tflite").read_bytes() == (out / "best.tflite").read_bytes()


@pytest.mark.parametrize(
    ("machine", "code", "message"),
    [(MACHINE, 2, "a custom operator 'ethos-u': expected a file"), (f"{MACHINE}:buffers_bytes.L1=1024", 3, "no plan fits level none")],
)
def test_impossible_files_are_one_line(path, machine, code, message, capsys):
    """A file that is compiled already, and a part with too little SRAM."""
    streams = path.parent / "streams.tflite"
    network = read_network(path.read_bytes())
    streams.write_bytes(write_tflite(compile_network(network, single_operators(len(network.operators)), 384 << 10)))
    source = streams if machine == MACHINE else path
    assert main(["compile", str(source), "--machine", machine, "--out", str(path.parent / "out.tflite")]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
