"""`compile --dump`: stages to stdout and into a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from compiler.compiler_stages import DUMPED
from tests.piece_models import IN_PIECES, piece_model
from tests.tuning import ROOT


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


def test_every_stage_to_stdout_and_into_files(cli, model, tmp_path):
    code, out, err = cli("compile", model, "--machine", "edge", "--dump", "all")
    assert (code, err) == (0, "")
    parts = out.split("# --- ")[1:]
    assert [part.partition(" ---\n")[0] for part in parts] == list(DUMPED)
    written, bodies = tmp_path / "new" / "dump", [part.partition(" ---\n")[2] for part in parts]
    arguments = ("--dump", "records,unit", "--dump", "plan, graph,segments", "--dump-to", written, "--out", tmp_path / "out.onnx")
    code, report, _ = cli("compile", model, "--machine", "edge", *arguments)
    assert (code, "operators, " in report) == (0, True)
    assert texts(written) == {f"{stage}.txt": body for stage, body in zip(DUMPED, bodies, strict=True)}
    assert onnx.load(tmp_path / "out.onnx").graph.node
    assert str(model.parent) not in out


def test_text_does_not_depend_on_the_hash_seed(cli, model):
    words = ["compile", str(model), "--machine", "edge", "--dump", "all"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-m", "tuner", *words], env=env, capture_output=True, text=True, check=True)
    assert cli(*words)[1] == done.stdout  # under another seed: pytest's own, which is drawn


def test_one_form_with_plan_show_and_disasm(cli, model, compiled, tmp_path):
    layers = ("compile", model, "--machine", "edge", "--layerwise")
    assert cli(*layers, "--dump", "plan,records", "--dump-to", tmp_path / "dump")[:2] == (0, "")
    shown = texts(tmp_path / "dump")
    records = [line for line in cli("disasm", compiled)[1].splitlines() if not line.startswith("#")]
    assert records == [line for line in shown["records.txt"].splitlines() if not line.startswith("#")]
    assert cli(*layers, "--dump", "plan")[1] == "# --- plan ---\n" + shown["plan.txt"]


def test_plans_of_levels(cli, model, plans, tmp_path):
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, plan in zip(paths, plans, strict=True):
        path.write_text(plan.to_json())
    given = [f"none={paths[0]}", f"slight={paths[1]}", f"severe={paths[0]}"]
    words = ["compile", model, "--machine", "edge", *(word for each in given for word in ("--plan", each)), "--dump", "graph,plan"]
    code, out, _ = cli(*words)
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("# ---")] == [
        "# --- graph ---",
        "# --- plan none, severe ---",
        "# --- plan slight ---",
    ]
    assert cli("plan", "show", paths[1])[1] == out.partition("# --- plan slight ---\n")[2]
    assert cli(*words, "--dump-to", tmp_path / "dump")[0] == 0
    written = texts(tmp_path / "dump")
    assert set(written) == {"graph.txt", "none.plan.txt", "slight.plan.txt", "severe.plan.txt"}
    assert written["none.plan.txt"] == written["severe.plan.txt"] != written["slight.plan.txt"]


def test_every_piece(cli, tmp_path):
    onnx.save(piece_model("chain"), tmp_path / "m.onnx")
    assert cli("compile", tmp_path / "m.onnx", "--machine", "edge", "--layerwise", "--dump", "all", "--dump-to", tmp_path / "dump")[0] == 0
    written = texts(tmp_path / "dump")
    pieces = sorted({name.removesuffix(".graph.txt") for name in written if name.endswith(".graph.txt")})
    assert len(pieces) == len(IN_PIECES["chain"].pieces)
    assert set(written) == {"plan.txt", *(f"{piece}.{stage}.txt" for piece in pieces for stage in DUMPED if stage != "plan")}
    assert [f"piece {piece}: " in written["plan.txt"] for piece in pieces] == [True] * len(pieces)


def test_unfit_plan_is_shown_up_to_its_fault(cli, model, plans, tmp_path):
    first = plans[0].segments[0]
    large = first.model_copy(update={"tilings": (first.tilings[0].model_copy(update={"tile_m": 1 << 16}),)})
    (tmp_path / "p.json").write_text(plans[0].model_copy(update={"segments": (large, *plans[0].segments[1:])}).to_json())
    code, out, err = cli("compile", model, "--machine", "edge", "--plan", tmp_path / "p.json", "--dump", "all")
    assert (code, err.count("\n")) == (3, 1)
    assert "does not fit edge: segment 0" in err
    assert [line for line in out.splitlines() if line.startswith("# ---")] == [f"# --- {stage} ---" for stage in DUMPED[:-1]]
    assert "  does not fit: segment 0" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--dump", "graph,ir"), "--dump graph,ir: no stage 'ir'; expected graph, unit, plan, segments, records or all"),
        (("--dump", ""), "--dump : no stage ''; expected graph, unit, plan, segments, records or all"),
        (("--dump-to", "dump", "--out", "o.onnx"), "--dump-to dump: goes with --dump"),
        (("--dump", "graph", "--json"), "--json: with --dump it goes with --dump-to and --out"),
        (("--dump", "graph", "--dump-to", "file"), "--dump-to file: cannot be made: File exists"),
        ((), "--out: missing; expected where to write the compiled ONNX file, or --dump STAGE"),
    ],
)
def test_what_is_refused(cli, model, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert cli("compile", model, "--machine", "edge", *words) == (2, "", f"tilefarm: {message}\n")
    assert os.listdir() == ["file"]


def test_json_is_the_report(cli, model, tmp_path):
    arguments = ("--dump", "plan", "--dump-to", tmp_path / "dump", "--out", tmp_path / "o.onnx", "--json")
    code, out, _ = cli("compile", model, "--machine", "edge", *arguments)
    assert (code, json.loads(out)["out"]) == (0, str(tmp_path / "o.onnx"))
