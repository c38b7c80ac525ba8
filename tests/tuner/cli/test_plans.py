"""`plan show`, `plan diff` and `export`: plans as files, and files from plans."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import onnx

from compiler.build import package
from compiler.dump.primitives import parse as parse_schedule
from compiler.model import ModelSpec, lower_model
from compiler.plan.plan import parse_plan
from simulator.bundle.read import read_bundle
from simulator.compiled import Compiled, read_compiled
from simulator.npu.container_file import decode, encode
from simulator.npu.machine_file import load_machine
from simulator.onnx_container import read_container
from tests.models import small_model
from tests.rows import Row, put
from tuner.log.writer import Origin, RunLog
from tuner.platform.local_files import LocalPath
from tuner.platform.real import REAL


def test_plan_show(cli, tmp_path, plans):
    path = tmp_path / "plan.json"
    path.write_text(plans[0].to_json())
    out = cli("plan", "show", path)[1]
    assert plans[0].digest in out
    raw = json.loads(cli("plan", "show", path, "--json")[1])
    digest = raw.pop("digest")
    assert parse_plan(json.dumps(raw)).digest == digest == plans[0].digest


def test_plan_show_primitives(cli, run_folder, model, tmp_path, plans):
    """By the run in whose folder the plan lies, or by model and machine; every text is the tiling of the plan."""
    code, out, _ = cli("plan", "show", run_folder / "plans" / "slight.json", "--primitives")
    assert code == 0
    parts = out.split("# segment ")[1:]
    assert parts[0].splitlines()[0].endswith(", the largest of 2 blocks")
    operators = [(name, t) for segment in plans[1].segments for name, t in zip(segment.operators, segment.tilings, strict=True)]
    assert [parse_schedule("# " + part) for part in parts] == [t for _, t in operators]
    (run_folder / "plans" / "own").mkdir()
    own = run_folder / "plans" / "own" / "slight.json"
    own.write_text(plans[1].to_json())
    assert cli("plan", "show", own, "--primitives") == (0, out, "")
    copy = tmp_path / "copy.json"
    copy.write_text(plans[1].to_json())
    assert cli("plan", "show", copy, "--primitives", "--model", model, "--machine", "edge") == (0, out, "")
    raw = json.loads(cli("plan", "show", copy, "--primitives", "--model", model, "--machine", "edge", "--json")[1])
    assert [row["operator"] for row in raw] == [name for name, _ in operators]
    assert parse_schedule("\n".join(raw[0]["primitives"])) == operators[0][1]
    code, _, err = cli("plan", "show", copy, "--primitives")
    assert (code, "lies in no run folder, so give --model and --machine" in err) == (2, True)
    code, _, err = cli("plan", "show", copy, "--primitives", "--model", model)
    assert (code, "--model and --machine go together" in err) == (2, True)
    code, _, err = cli("plan", "show", copy, "--model", model)
    assert (code, "--model goes with --primitives" in err) == (2, True)


def test_plan_diff(cli, tmp_path, plans):
    same, other, merged = (tmp_path / f"{name}.json" for name in ("same", "other", "merged"))
    same.write_text(plans[0].to_json())
    other.write_text(plans[1].to_json())
    assert cli("plan", "diff", same, same, "--exit-code") == (0, "", "")
    code, out, _ = cli("plan", "diff", same, other)
    assert (code, out) == (0, f"segment 0, {plans[0].segments[0].operators[0]}:\n  blocks: 1 -> 2\n")
    assert cli("plan", "diff", same, other, "--exit-code")[0] == 1
    raw = json.loads(cli("plan", "diff", same, other, "--json")[1])
    assert (raw["equal"], raw["a"], raw["b"]) == (False, plans[0].digest, plans[1].digest)
    assert raw["changes"][0]["changed"] == {"blocks": [1, 2]}
    a, b, *rest = plans[0].segments
    joined = a.model_copy(update={"operators": a.operators + b.operators, "tilings": a.tilings + b.tilings})
    merged.write_text(plans[0].model_copy(update={"segments": (joined, *rest)}).to_json())
    first, second = a.operators[0], b.operators[-1]
    assert cli("plan", "diff", same, merged)[1].splitlines() == [
        f"{first}..{second}: cut in other places",
        f"  - segment 0, {first}: 1 block, prefetch 2, window 1",
        f"  - segment 1, {second}: 1 block, prefetch 2, window 1",
        f"  + segment 0, {first}..{second}: 1 block, prefetch 2, window 1",
    ]
    moved = other.read_text().replace(plans[0].machine, "0" * 32)
    other.write_text(moved)
    assert cli("plan", "diff", merged, other)[1].splitlines()[0] == f"machine: {plans[0].machine} -> {'0' * 32}"


def test_export_gives_the_bytes_of_the_run(cli, run_folder, tmp_path, plans):
    code, _, err = cli("export", run_folder, "--out", tmp_path / "out.onnx")
    assert (code, err) == (0, "")
    assert (tmp_path / "out.onnx").read_bytes() == (run_folder / "best.onnx").read_bytes()
    assert cli("export", run_folder, "--plan", plans[1].digest[:8], "--out", tmp_path / "one.onnx", "--style", "epcontext")[0] == 0
    assert {v.plan_digest for v in decode(read_container(tmp_path / "one.onnx")).variants} == {plans[1].digest}
    code, _, err = cli("export", run_folder, "--plan", "0" * 32, "--out", tmp_path / "two.onnx")
    assert code == 2
    assert "has no such plan" in err


def test_export_finds_a_plan_in_the_tasks(cli, run_folder, tmp_path, plans):
    other = plans[0].model_copy(
        update={"segments": (*plans[0].segments[:-1], plans[0].segments[-1].model_copy(update={"blocks": 1, "window": 2}))}
    )
    payload = json.dumps({"unit": "u", "plan": other.model_dump(mode="json")})
    with RunLog(LocalPath(run_folder), REAL, Origin("r", "net", "tiny", "1")) as log:
        put(log, Row(0, {}), Row(1, json.loads(payload), kind="program"))
    assert cli("export", run_folder, "--plan", other.digest, "--out", tmp_path / "out.onnx")[0] == 0
    assert decode(read_container(tmp_path / "out.onnx")).variants[0].plan_digest == other.digest


def test_export_refuses_a_model_that_changed(cli, run_folder, tmp_path, model):
    onnx.save(small_model("conv_chain", seed=1), tmp_path / model.name)
    code, _, err = cli("export", run_folder, "--out", tmp_path / "out.onnx")
    assert code == 2
    assert "changed since the run" in err
    (tmp_path / model.name).unlink()
    assert "is not there any more" in cli("export", run_folder, "--out", tmp_path / "out.onnx")[2]
    assert not (tmp_path / "out.onnx").exists()


# --- bundles -------------------------------------------------------------------------------------------------------------------------


def encoded(compiled: Compiled) -> list[bytes]:
    return [encode(piece.container) for piece in compiled.pieces]


def test_bundles_of_run_and_its_file_are_equal(cli, run_folder, tmp_path):
    of_run, of_file = tmp_path / "a", tmp_path / "b"
    code, out, err = cli("export", run_folder, "--bundle", of_run)
    assert (code, err) == (0, "")
    assert re.search(r"^\S+/a: a bundle of \d+ parts, [\d,]+ bytes; its README.md says how to link it$", out, re.MULTILINE)
    assert "best.onnx" not in out
    code, out, err = cli("export", run_folder / "best.onnx", "--bundle", of_file)
    assert (code, err, out.count("\n")) == (0, "", 1)
    files = sorted(p.relative_to(of_run) for p in of_run.rglob("*") if p.is_file())
    assert files == sorted(p.relative_to(of_file) for p in of_file.rglob("*") if p.is_file())
    assert all((of_run / name).read_bytes() == (of_file / name).read_bytes() for name in files)
    assert encoded(read_bundle(of_run)) == encoded(read_compiled(run_folder / "best.onnx"))


def test_a_bundle_beside_the_file(cli, run_folder, tmp_path, plans):
    words = ("export", run_folder, "--plan", plans[1].digest, "--bundle", tmp_path / "b", "--json")
    raw = json.loads(cli(*words, "--out", tmp_path / "o.onnx")[1])
    assert raw["out"] == str(tmp_path / "o.onnx")
    assert raw["bundle"]["folder"] == str(tmp_path / "b")
    manifest = json.loads((tmp_path / "b/manifest.json").read_text())
    assert raw["bundle"]["parts"] == len(manifest["parts"])
    assert raw["bundle"]["bytes"] == sum((tmp_path / "b" / part["path"]).stat().st_size for part in manifest["parts"])
    assert encoded(read_bundle(tmp_path / "b")) == encoded(read_compiled(tmp_path / "o.onnx"))
    (tmp_path / "b").rename(tmp_path / "c")
    raw = json.loads(cli(*words)[1])
    assert (raw["out"], raw["file_bytes"], raw["container_bytes"]) == (None, None, None)
    assert json.loads(cli("export", tmp_path / "o.onnx", "--bundle", tmp_path / "d", "--json")[1])["bundle"]["folder"] == str(
        tmp_path / "d"
    )


def test_what_takes_a_compiled_file_takes_a_bundle(cli, run_folder, tmp_path):
    file, bundle = run_folder / "best.onnx", tmp_path / "b"
    assert cli("export", file, "--bundle", bundle)[0] == 0
    for words in (
        ("simulate", "--json"),
        ("simulate", "--segments", "--json"),
        ("disasm", "--level", "slight"),
        ("run", "--input", "random"),
    ):
        name, *rest = words
        code, out, err = cli(name, bundle, *rest)
        assert (code, err) == (0, "")
        assert out.replace(str(bundle), "F") == cli(name, file, *rest)[1].replace(str(file), "F")
    assert cli("trace", bundle, "--out", tmp_path / "t.json")[0] == 0
    code, _, err = cli("run", bundle, "--input", "random", "--check")
    assert (code, err) == (
        2,
        f"tilefarm: --check: {bundle} is a bundle, which has no model to compare with; check the compiled ONNX file\n",
    )


def test_what_cannot_be_a_bundle_is_one_line(cli, run_folder, compiled, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("")
    bare = tmp_path / "bare.onnx"
    container = replace(decode(read_container(compiled)), controller=None)
    package(lower_model(ModelSpec(tmp_path / "conv_chain.onnx", load_machine("edge"))), [container], bare)
    before = sorted(tmp_path.rglob("*"))
    for words, said in (
        ((run_folder,), "--out: missing; expected where to write the compiled ONNX file, or --bundle DIR"),
        ((run_folder, "--bundle", tmp_path / "full"), "full: is not empty; expected a new folder, or an empty one"),
        ((run_folder, "--bundle", bare), "bare.onnx: is a file; expected a new folder, or an empty one"),
        ((compiled, "--bundle", tmp_path / ("x" * 300)), "cannot be written: File name too long"),
        ((run_folder, "--bundle", tmp_path / "no/b"), "no does not exist"),
        ((compiled, "--bundle", tmp_path / "b", "--out", tmp_path / "o"), "--out: .* is compiled already; it goes with a run folder"),
        ((compiled, "--bundle", tmp_path / "b", "--plan", "ab"), "--plan: .* is compiled already"),
        ((compiled, "--bundle", tmp_path / "b", "--style", "function"), "--style: .* is compiled already"),
        ((compiled, "--out", tmp_path / "o"), "no such run folder"),
        (
            (bare, "--bundle", tmp_path / "b"),
            "bare.onnx: has no controller's table, so it cannot be switched at run time; compile it again",
        ),
        ((tmp_path / "conv_chain.onnx", "--bundle", tmp_path / "b"), "holds no container: compile it first"),
        ((tmp_path / "nothing", "--bundle", tmp_path / "b"), "nothing: no such run folder"),
    ):
        code, out, err = cli("export", *words)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert re.search(said, err), err
    assert sorted(tmp_path.rglob("*")) == before
    code, _, err = cli("simulate", tmp_path / "full")
    assert (code, err.count("\n")) == (2, 1)
    assert "full: no manifest.json; expected a bundle" in err
    for words in (("simulate", "x" * 300), ("export", "x" * 300, "--out", tmp_path / "x.onnx")):
        code, _, err = cli(*words)
        assert (code, err.count("\n")) == (2, 1)
