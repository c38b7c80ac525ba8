"""Names that a terminal would obey: whatever file they come from, they are shown."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from simulator.terminal import escape_json, escape_line
from tests.tuning import ROOT, quick
from tuner.cli import main

TITLE = "\x1b]0;owned\x07"
CONV, RELU, OUT = f"conv{TITLE}", "relu\n\x9b31m\u202eexe", "y\r\u2066\u2028"
RAW = {"Cc", "Cs", "Zl", "Zp"}
DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def obeyed(text: str) -> list[str]:
    """Characters that a terminal obeys, but for the ends of lines."""
    return [c for c in text if c != "\n" and (unicodedata.category(c) in RAW or unicodedata.bidirectional(c) in DIRECTIONS)]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a model with such names, in a folder with such a name, with such a tag."""
    folder = tmp_path_factory.mktemp("hostile") / f"a{TITLE}"
    folder.mkdir()
    weights = numpy_helper.from_array(np.random.default_rng(0).standard_normal((8, 3, 3, 3), dtype=np.float32), f"w{TITLE}")
    nodes = [
        helper.make_node("Conv", ["x", weights.name], [f"m{TITLE}"], name=CONV),
        helper.make_node("MaxPool", [f"m{TITLE}"], [OUT], name=RELU, kernel_shape=[2, 2], strides=[2, 2]),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [1, 3, 12, 12]), (OUT, [1, 8, 5, 5]))]
    graph = helper.make_graph(nodes, f"g{TITLE}", ports[:1], ports[1:], [weights])
    model = folder / f"m{TITLE}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    quick(model, folder / "run", 4, tag=f"k={TITLE}")
    return folder


def test_every_command_shows_names(cli, hostile):
    run, out = hostile / "run", hostile / "out.onnx"
    model, plan = hostile / f"m{TITLE}.onnx", run / "plans" / "severe.json"
    commands = [
        ("compile", model, "--machine", "edge", "--plan", plan, "--out", out),
        ("compile", model, "--machine", "edge", "--dump", "all"),
        ("run", out, "--input", "random", "--check"),
        ("simulate", out),
        ("simulate", out, "--segments"),
        ("simulate", out, "--trace", "step:0", "--inferences", 10),
        ("trace", out, "--out", hostile / "t.json"),
        ("disasm", out),
        ("plan", "show", plan),
        ("plan", "show", plan, "--primitives"),
        ("plan", "diff", plan, run / "plans" / "baseline.json"),
        ("ls", hostile),
        ("best", run),
        ("status", run),
        ("compare", run, run),
        ("log", "verify", run),
        ("export", run, "--out", hostile / "export.onnx"),
        ("report", run),
    ]
    said = ""
    for words in commands:
        code, text, err = cli(*words)
        assert (code, err) == (0, ""), words
        assert obeyed(text) == [], words
        said += text
    for name in (CONV, RELU, OUT, str(run)):
        assert escape_line(name) in said
    page = (run / "report.html").read_text()
    body = re.sub("<script>.*?</script>", "", page, flags=re.DOTALL)
    assert [c for c in obeyed(body) if c != "\t"] == []
    assert escape_line(CONV) in body
    events = json.loads((hostile / "t.json").read_text())["traceEvents"]
    assert {CONV, RELU} <= {event["args"]["operator"] for event in events if "operator" in event.get("args", {})}


def test_errors_show_names(cli, hostile, tmp_path):
    for words in (
        ("plan", "show", hostile / "none.json"),
        ("compile", hostile / f"m{TITLE}.onnx", "--machine", f"edge{TITLE}", "--out", tmp_path / "o.onnx"),
        ("run", hostile / "run" / "best.onnx", "--input", "random", "--level", TITLE),
        (TITLE,),
        ("machines", f"--{TITLE}"),
        ("tune", hostile / f"m{TITLE}.onnx", "--machine", "edge", "--out", hostile, "--backend", "serial"),
    ):
        code, _, err = cli(*words)
        assert code == 2, words
        assert obeyed(err) == [], words
        assert escape_line(TITLE) in err, words
        assert err.count("\n") == 1, words


def test_json_has_the_names_as_they_are(cli, hostile):
    text = cli("simulate", hostile / "run" / "best.onnx", "--segments", "--json", "--level", "none")[1]
    assert obeyed(text) == []
    chain = json.loads(text)["levels"]["none"]["longest_chain"]
    assert {CONV, RELU} <= {link["operator"] for link in chain}
    assert json.loads(escape_json(json.dumps("é\x7f\x85\u202e\ud800", ensure_ascii=False))) == "é\x7f\x85\u202e\ud800"


def test_progress_shows_names(hostile, tmp_path, capsys):
    model = hostile / f"m{TITLE}.onnx"
    words = ["tune", model, "--machine", "edge", "--out", tmp_path / TITLE, "--backend", "serial", "--candidates", 2]
    assert main([*map(str, words), "--set", "segments.measured=1", "--set", "segments.candidates=1"]) == 0
    out, err = capsys.readouterr()
    assert obeyed(out) == obeyed(err) == []
    assert escape_line(f"m{TITLE}") in err


def test_a_terminal_without_the_letters(tmp_path):
    """A name in no encoding, and one that the terminal's has no letters for."""
    folder = tmp_path / os.fsdecode("é\udcff".encode("utf-8", "surrogateescape"))
    folder.mkdir()
    words = [sys.executable, "-m", "tuner", "ls", str(folder)]
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path}/\\xe9\\udcff: no run here or below\n"
