"""`simulate`, `trace` and `disasm`: what they tell of a compiled file."""

from __future__ import annotations

import gzip
import json
import re

import numpy as np
import onnx
import pytest
import yaml

from compiler.frontend.partition.macs import model_macs
from simulator.npu import isa
from simulator.npu.asm import parse
from simulator.npu.container import program
from simulator.npu.container_file import decode
from simulator.npu.machine_file import configs_folder, load_machine
from simulator.onnx_container import read_container
from tests.perfetto_reader import read_perfetto
from tuner.measure.macs import program_macs

LEVELS = ("none", "slight", "severe")


def test_simulate_shows_every_level(cli, compiled):
    rows = json.loads(cli("simulate", compiled, "--json")[1])["levels"]
    assert tuple(rows) == LEVELS
    assert rows["none"]["cycles"] < rows["slight"]["cycles"] < rows["severe"]["cycles"]
    assert rows["none"]["balance"] > rows["severe"]["balance"] > 0
    for row in rows.values():
        assert row["latency_us"] == pytest.approx(row["cycles"] / 1e3)  # edge: 1 GHz
        assert 0 < max(row["engine_utilisation"].values()) <= 1
        assert row["ddr_read_bytes"] > row["ddr_write_bytes"] > 0
    code, out, _ = cli("simulate", compiled, "--level", "slight")
    assert code == 0
    assert "slight" in out
    assert "severe" not in out


def test_simulate_by_segments(cli, compiled):
    container = decode(read_container(compiled))
    names = [operator.name for operator in container.operators]
    levels = json.loads(cli("simulate", compiled, "--segments", "--json")[1])["levels"]
    assert tuple(levels) == LEVELS
    for level, found in levels.items():
        rows, total = found["segments"], json.loads(cli("simulate", compiled, "--level", level, "--json")[1])["levels"][level]
        assert [row["segment"] for row in rows] == list(range(len(names)))  # layer by layer
        assert [row["first_operator"] for row in rows] == [row["last_operator"] for row in rows] == names
        assert [row["blocks"] for row in rows] == [segment.blocks for segment in container.variant(level).segments]
        for key in ("ddr_read_bytes", "ddr_write_bytes"):
            assert sum(row[key] for row in rows) == total[key]
        assert sum(row["own_cycles"] for row in rows) == found["cycles"] == total["cycles"]
        assert sum(row["macs"] for row in rows) == program_macs(program(container, level))
        assert all(row["utilisation"][row["bound"]] == max(row["utilisation"].values()) for row in rows)
        assert {row["halo"] for row in rows if row["macs"]} == {1.0}  # nothing is computed twice
        chain = found["longest_chain"]
        assert sum(link["cycles"] for link in chain) == found["cycles"]
        assert {link["operator"] for link in chain} <= {*names, None}
        assert [link["cycles"] for link in chain] == sorted((link["cycles"] for link in chain), reverse=True)
    code, out, _ = cli("simulate", compiled, "--segments", "--level", "severe")
    assert code == 0
    assert all(name in out for name in names)
    assert "the longest chain" in out
    assert "level none" not in out


def test_operators_of_a_container_are_the_model(compiled, model):
    container = decode(read_container(compiled))
    assert sum(operator.macs for operator in container.operators) == model_macs(onnx.shape_inference.infer_shapes(onnx.load(model)))
    for variant in container.variants:
        tags = variant.streams[0][:, isa.TAG]
        assert set((tags & 0xFFFF).tolist()) == set(range(len(container.operators)))
        assert set((tags >> 16).tolist()) == set(range(len(variant.segments)))


def test_trace(cli, compiled, tmp_path):
    plain, packed = tmp_path / "t.json", tmp_path / "t.json.gz"
    code, out, _ = cli("trace", compiled, "--level", "severe", "--out", plain)
    assert code == 0
    value = json.loads(plain.read_text())
    assert f"level severe, {value['otherData']['cycles']:,} cycles" in out
    assert f"{sum(event['ph'] in 'XbC' for event in value['traceEvents']):,} events" in out
    assert value["otherData"]["level"] == "severe"
    names = {event["args"]["operator"] for event in value["traceEvents"] if event.get("cat") == "CUBE"}
    assert names <= {operator.name for operator in decode(read_container(compiled)).operators}
    assert names
    assert cli("trace", compiled, "--level", "severe", "--out", packed)[0] == 0
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    protobuf = tmp_path / "t.pftrace"
    assert cli("trace", compiled, "--level", "severe", "--out", protobuf)[1].replace("t.pftrace", "t.json").split(" events")[0] in out
    read = read_perfetto(protobuf.read_bytes())
    assert sum(map(len, read.slices.values())) == sum(event["ph"] in "Xb" for event in value["traceEvents"])
    first = tmp_path / "first.json"
    assert cli("trace", compiled, "--out", first)[0] == 0
    assert json.loads(first.read_text())["otherData"]["level"] == "none"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--out", "t.txt"), "a trace is called .pftrace or .json"),
        (("--out", "t.gz"), "a trace is called .pftrace or .json"),
        (("--out", "missing/t.json"), "missing"),
        (("--level", "heavy", "--out", "t.json"), "none, slight, severe"),
    ],
)
def test_trace_says_what_is_wrong(cli, compiled, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = cli("trace", compiled, *arguments)
    assert code == 2
    assert message in err
    assert not list(tmp_path.iterdir())


def test_disasm_parses_back(cli, compiled, tmp_path):
    code, out, _ = cli("disasm", compiled, "--level", "slight")
    stream = decode(read_container(compiled)).variant("slight").streams[0]
    assert code == 0
    np.testing.assert_array_equal(parse(out), stream)
    assert cli("disasm", compiled, "--core", 0, "--out", tmp_path / "text")[:2] == (0, "")
    np.testing.assert_array_equal(parse((tmp_path / "text").read_text()), stream)


def test_machines_prints_provenance_or_that_nothing_is_said(cli, tmp_path):
    raw = yaml.safe_load((configs_folder() / "machines" / "ascend310.yaml").read_text())
    sources = raw["provenance"]["sources"]
    raw["provenance"] = {"sources": sources, "documented": {"ddr": "tiling"}}
    path = tmp_path / "m.yaml"
    path.write_text(yaml.safe_dump(raw))
    out = cli("machines", path)[1]
    assert re.search(r"^ddr\.outstanding +8  transfers of a queue  documented  tiling$", out, re.M)
    assert re.search(r"^cores +2 +not said$", out, re.M)
    assert re.search(r"^matrix\.kind +cube$", out, re.M)
    assert re.search(r"^source: stub +the chip that CANN", out, re.M)
    shown = json.loads(cli("machines", path, "--json")[1])
    machine = load_machine(str(path))
    assert shown["sources"] == sources
    assert shown["provenance"].keys() == machine.values.keys()
    for key, origin in shown["provenance"].items():
        assert origin == ({"kind": "documented", "text": "tiling"} if key.startswith("ddr.") else None)


def test_machines_prints_another_level_and_delivered_ddr(cli):
    code, out, _ = cli("machines", "edge:contention.half=0.5")
    assert code == 0
    rows = {line.split()[0]: line.split(maxsplit=1)[1].split("  ") for line in out.splitlines() if line}
    cells = {key: [cell.strip() for cell in row if cell.strip()] for key, row in rows.items()}
    assert cells["contention.half.share"] == ["0.5", "of deliverable DDR", "given", "on the command line"]
    assert cells["contention.severe.latency_cycles"][:3] == ["90", "cycles", "derived"]
    assert cells["paths.DDR->L1.engine"] == ["MTE2"]
    assert cells["paths.DDR->L1.bytes_per_cycle"][:3] == ["64", "B/cycle", "assumed"]
    assert out.splitlines()[-4:-2] == [
        "ddr, one long run          60.56 B/cycle",
        "ddr, reads beside writes   47.97 B/cycle",
    ]
    table = cli("machines")[1]
    assert re.search(r"^edge .* 64 +60\.56 +none=1 slight=0\.5\+30 severe=0\.25\+90", table, re.M)
    code, _, err = cli("machines", "edge:ddr.bytes_per_cycle=256")
    assert code == 2
    assert "paths.*DDR*.bytes_per_cycle" in err
