"""`tilefarm simulate --trace`: what it prints and returns, and that its numbers are the runtime's."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from simulator.background_load import generate_trace
from simulator.bundle.c_rule import c_library
from simulator.bundle.read import read_model
from simulator.compiled import Compiled
from simulator.contended_runs import load_of
from simulator.controller import EstimatorRule, Oracle, StaticRule
from simulator.npu.container_file import decode
from simulator.npu.level import SHARE_UNIT
from simulator.npu.machine_file import load_machine
from simulator.onnx_container import read_container
from simulator.response import measure_response, prepared_variants, share_grid
from simulator.runtime import Runtime
from tests.c_rules import compiler
from tests.contended import two_variants
from tests.messages import mentions
from tuner.cli import main

EDGE = load_machine("edge")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_variants(tmp_path_factory.mktemp("contended"))


def simulate(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["simulate", *(str(word) for word in words)])
    return code, *capsys.readouterr()


def report(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    code, out, err = simulate(capsys, *words, "--json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def test_the_numbers_are_the_runtimes(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, compiled, "--trace", "bursty:7", "--inferences", "150")
    container = decode(read_container(compiled))
    variants = prepared_variants(Compiled.of(container))
    assert list(variants) == ["none", "severe"]
    response = measure_response(variants, share_grid(EDGE))
    runtime = Runtime(variants, EDGE)
    trace = generate_trace("bursty", 7, load_of(Compiled.of(container), response, 150))
    for key, rule in (("result", EstimatorRule(response, 1)), ("oracle", Oracle())):
        served = runtime.serve(rule, trace, inferences=150)
        assert (found[key]["cycles"], found[key]["switches"]) == (served.cycles, served.switches)
        assert found[key]["variant_cycles"] == served.variant_cycles
    assert (found["controller"], found["level"], found["switch_cycles"]) == ("estimator", None, EDGE.issue_cycles)
    for v, name in enumerate(variants):
        row = found["static"][name]
        served = runtime.serve(StaticRule(v), trace, inferences=150)
        assert row["inferences"] == 150
        assert row["mean_cycles"] * 150 == pytest.approx(row["cycles"]) == served.cycles
        assert row["mean_us"] == pytest.approx(row["mean_cycles"] / 1e3)
        assert row["p50_cycles"] == served.percentile(50) <= row["p99_cycles"] == served.percentile(99)
        assert row["regret"] == pytest.approx(row["cycles"] / found["oracle"]["cycles"] - 1)
    assert found["static"][found["best_static"]]["cycles"] == min(row["cycles"] for row in found["static"].values())


@pytest.mark.parametrize("level", ["none", "slight", "severe"])
def test_constant_trace_is_the_table_of_file(compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], level: str) -> None:
    container = decode(read_container(compiled))
    path = tmp_path / "constant.csv"
    path.write_text(f"cycle,share\n0,{EDGE.contention['severe'].share_units / SHARE_UNIT!r}\n")
    found = report(capsys, compiled, "--trace", path, "--controller", "static", "--level", level, "--inferences", 3)
    assert found["level"] == (container.same_as(level) or level)
    assert found["result"]["cycles"] == 3 * container.variant(level).cycles["severe"]
    assert found["result"]["switches"] == 0


def test_static_without_a_level_is_the_best_one(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, compiled, "--trace", "step:0", "--controller", "static", "--inferences", 130)
    assert found["level"] == found["best_static"]
    assert found["result"] == found["static"][found["best_static"]]


def test_the_oracle_has_no_regret(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, compiled, "--trace", "periodic:0", "--controller", "oracle", "--inferences", 130)
    assert found["result"] == found["oracle"]
    assert found["result"]["regret"] == 0


def test_thresholds_by_hand_and_chosen(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = (compiled, "--trace", "adversarial:0", "--controller", "threshold", "--inferences", 50)
    by_hand = report(capsys, *common, "--t-min", "0.5", "--t-max", "0.75", "--slice", "12345")["thresholds"]
    assert (by_hand["ladder"], by_hand["t_min"], by_hand["t_max"], by_hand["slice_cycles"]) == (["none", "severe"], [0.5], [0.75], 12345)
    chosen = report(capsys, *common)["thresholds"]
    assert chosen["oscillations"] == []
    assert set(chosen["ladder"]) | {merged["variant"] for merged in chosen["merged"]} == {"none", "severe"}
    assert len(chosen["t_min"]) == len(chosen["t_max"]) == len(chosen["ladder"]) - 1


def test_thresholds_that_oscillate_are_said(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (compiled, "--trace", "step:0", "--controller", "threshold", "--inferences", 20, "--t-min", 1000, "--t-max")
    code, out, _ = simulate(capsys, *words, 1001)
    assert code == 0
    assert "warning" not in out  # nothing is ever that much in compute: it stays with the heaviest
    assert "none > severe" in out
    container = decode(read_container(compiled))
    response = measure_response(prepared_variants(Compiled.of(container)), share_grid(EDGE))
    k = response.grid.index(EDGE.contention["slight"].share_units)
    light, heavy = response.balance[:, k]
    assert light < heavy
    _, out, _ = simulate(capsys, *words[:-2], light * 1.0001, "--t-max", heavy * 0.9999)
    assert mentions(out, "oscillates", f"{response.grid[k] / SHARE_UNIT:.3f}")


@pytest.mark.parametrize("words", [("--t-min", "0.5", "--t-max", "0.75", "--slice", "12345"), ("--slice", "12345"), ()])
def test_a_bundle_has_the_rule_that_simulate_has(
    compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    """In its JSON and its C header; nothing else of the table differs, and the bundle is read again."""
    assert main(["export", str(compiled), "--bundle", str(tmp_path / "b"), *words]) == 0
    simulated = report(capsys, compiled, "--trace", "step:1", "--controller", "threshold", "--inferences", "9", *words)["thresholds"]
    table, own = read_model(tmp_path / "b").controller, read_model(compiled).controller
    assert table is not None
    assert own is not None
    assert [table.variants[v].name for v in table.ladder] == simulated["ladder"]
    assert [t / 65536 for t in (*table.t_min, *table.t_max)] == [*simulated["t_min"], *simulated["t_max"]]
    assert table.slice_cycles == simulated["slice_cycles"] == (12345 if words else 0)
    by_hand = {"ladder", "t_min", "t_max"} if "--t-min" in words else set()
    assert table.model_dump(exclude={"slice_cycles", *by_hand}) == own.model_dump(exclude={"slice_cycles", *by_hand})
    header = (tmp_path / "b" / "table.h").read_text()
    assert f"static const uint32_t tilefarm_t_min[] = {{\n    {', '.join(f'{t}u' for t in table.t_min)}\n}};" in header
    rules = re.findall(r"tilefarm_t_max\w*, UINT64_C\((\d+)\)", header)
    assert rules
    assert f"have agreed for {table.slice_cycles} cycles" in (tmp_path / "b" / "README.md").read_text()
    assert set(map(int, rules)) == {table.slice_cycles}
    assert json.loads((tmp_path / "b" / "controller.json").read_text())["slice_cycles"] == table.slice_cycles


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("--t-min", "1"), "--t-min and --t-max: give both"),
        (("--t-min", "2", "--t-max", "1"), "accepted: 0 < t_min < t_max"),
        (("--t-min", "nan", "--t-max", "1"), "thresholds nan and 1.0"),
        (("--slice", "-1"), "--slice"),
        (("--slice", str(1 << 63)), "--slice"),
    ],
)
def test_bad_rule_is_one_line_without_bundle(
    compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], found: str
) -> None:
    capsys.readouterr()
    assert main(["export", str(compiled), "--bundle", str(tmp_path / "b"), *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert found in err.replace("\n", " ")
    assert not (tmp_path / "b").exists()
    assert main(["export", str(compiled), "--out", str(tmp_path / "o.onnx"), "--slice", "3"]) == 2
    assert mentions(capsys.readouterr().err, "--t-min", "--t-max", "--slice", "--bundle")


def test_a_bundle_says_where_its_rule_oscillates(compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    response = measure_response(prepared_variants(Compiled.of(decode(read_container(compiled)))), share_grid(EDGE))
    light, heavy = response.balance[:, response.grid.index(EDGE.contention["slight"].share_units)]
    words = ("--t-min", str(light * 1.0001), "--t-max", str(heavy * 0.9999))
    assert main(["export", str(compiled), "--bundle", str(tmp_path / "b"), *words]) == 0
    assert "warning: oscillates at a share of" in capsys.readouterr().out


def test_text(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = simulate(capsys, compiled, "--trace", "step:4", "--inferences", 130, "--switch-cycles", 250)
    assert (code, err) == (0, "")
    served, variants = out.split("\n\n")
    first, columns, *rows = served.splitlines()
    assert mentions(first, "edge", "step:4", "3 steps", "0.25 to 1", 250)
    assert columns.split()[:2] == ["controller", "inferences"]
    *rows, gain = rows
    assert [row.split("  ")[0].removesuffix(" (best)") for row in rows] == ["estimator", "static none", "static severe", "oracle"]
    assert sum("(best)" in row for row in rows) == 1
    found = report(capsys, compiled, "--trace", "step:4", "--inferences", 130, "--switch-cycles", 250)
    less = 1 - found["result"]["cycles"] / found["static"][found["best_static"]]["cycles"]
    word = "less" if less >= 0 else "more"
    assert mentions(gain, "estimator", f"{abs(less):.1%} {word}", found["best_static"])
    _, out, _ = simulate(capsys, compiled, "--trace", "step:4", "--inferences", 130, "--controller", "static")
    assert "best variant alone" not in out  # it is that one
    title, columns, *rows = variants.splitlines()
    assert "computed per load" in title
    assert columns.split()[-6:] == ["rho", "none", "rho", "slight", "rho", "severe"]
    assert [row.split()[0] for row in rows] == ["none", "severe"]


def test_what_tells_the_variants_apart(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, compiled, "--trace", "step:0", "--inferences", 20)["variants"]
    container = decode(read_container(compiled))
    assert {name: row["levels"] for name, row in found.items()} == {"none": ["none", "slight"], "severe": ["severe"]}
    # the first one has a segment in two blocks, the other the same segments whole
    assert found["none"]["blocks"] == found["severe"]["blocks"] + 1 == found["severe"]["segments"] + 1
    assert found["none"]["halo"] >= found["severe"]["halo"] == 1
    assert found["none"]["operators_per_load"] >= 1
    for v, row in enumerate(found.values()):
        runtime = Runtime(prepared_variants(Compiled.of(container)), EDGE)
        assert row["rho"] == {level: runtime.steady(v, EDGE.contention[level].share_units).balance for level in EDGE.contention}
        assert row["rho"]["none"] > row["rho"]["slight"] > row["rho"]["severe"]


def test_segments_print_traffic_of_their_loads(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    variants = report(capsys, compiled, "--trace", "step:0", "--inferences", 20)["variants"]
    segments = report(capsys, compiled, "--segments")["levels"]
    for name, row in variants.items():
        assert segments[name]["reuse"] == {key: value for key, value in row.items() if key not in ("levels", "rho")}
        assert all(s["blocks_per_load"] is None or s["blocks_per_load"] <= s["operators_per_load"] for s in segments[name]["segments"])


@pytest.mark.parametrize("by_hand", [(), ("--t-min", "0.13", "--t-max", "0.15", "--slice", "9000")])
def test_controllers_in_c_and_python_serve_equally(
    compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], by_hand: tuple[str, ...]
) -> None:
    compiler()
    # to less than any level leaves and back: whatever border the variants have lies between
    trace = tmp_path / "load.csv"
    trace.write_text("cycle,share\n" + "".join(f"{100_000 * k},{(1, 0.13)[k % 2]}\n" for k in range(6)))
    words = (compiled, "--trace", trace, "--inferences", "60", *by_hand, "--controller")
    in_c, in_python = report(capsys, *words, "c"), report(capsys, *words, "threshold")
    assert in_c.pop("controller") == "c"
    assert in_python.pop("controller") == "threshold"
    assert in_c == in_python
    assert in_c["result"]["switches"] > 1


def test_controller_in_c_without_compiler_is_one_line(
    compiled: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    c_library.cache_clear()
    code, out, err = simulate(capsys, compiled, "--trace", "step:1", "--controller", "c")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert mentions(err, "cc, gcc, clang", "--controller threshold")


def test_the_file_has_the_thresholds_of_the_simulation(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, compiled, "--trace", "step:0", "--controller", "threshold", "--inferences", 10)["thresholds"]
    table = decode(read_container(compiled)).controller
    assert table is not None
    assert found["ladder"] == [table.variants[v].name for v in table.ladder]
    assert [(t * 65536) for t in (*found["t_min"], *found["t_max"])] == [*table.t_min, *table.t_max]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("--trace", "nowhere.csv"), "--trace nowhere.csv: no such file; accepted: a CSV or .parquet file, or step:SEED"),
        (("--trace", "step"), "--trace step: expected step:SEED"),
        (("--trace", "step:-1"), "--trace step:-1: expected step:SEED"),
        (("--trace", "bursty:x"), "--trace bursty:x: expected bursty:SEED"),
        (("--trace", "step:1", "--t-min", "1", "--t-max", "2"), "are for --controller threshold, not estimator"),
        (("--trace", "step:1", "--controller", "oracle", "--slice", "9"), "are for --controller threshold, not oracle"),
        (("--trace", "step:1", "--controller", "threshold", "--t-min", "1"), "--t-min and --t-max: give both"),
        (("--trace", "step:1", "--controller", "threshold", "--t-min", "2", "--t-max", "1"), "accepted: 0 < t_min < t_max"),
        (("--trace", "step:1", "--level", "none"), "--level with --trace is for --controller static, not estimator"),
        (("--trace", "step:1", "--controller", "static", "--level", "nil"), "level 'nil': not in the compiled model"),
        (("--trace", "step:1", "--controller", "magic"), "magic"),
        (("--trace", "step:1", "--inferences", "0"), "--inferences"),
        (("--trace", "step:1", "--segments"), "--segments does not go with --trace"),
        (("--controller", "static"), "--controller goes with --trace"),
        (("--slice", "0"), "--slice goes with --trace"),
        (("--inferences", "5"), "--inferences goes with --trace"),
    ],
)
def test_bad_options_are_one_line(compiled: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], found: str) -> None:
    code, out, err = simulate(capsys, compiled, *words)
    assert (code, out) == (2, "")
    assert found in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("controller", ["estimator", "threshold", "static", "oracle"])
def test_a_trace_of_the_inferences(compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], controller: str) -> None:
    words = ("--trace", "bursty:7", "--controller", controller, "--inferences", "150")
    result = report(capsys, compiled, *words)["result"]
    plain, packed = tmp_path / "t.json", tmp_path / "t.json.gz"
    for out in (plain, packed):
        assert main(["trace", str(compiled), *words, "--out", str(out)]) == 0
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    value = json.loads(plain.read_text())
    printed, count = capsys.readouterr().out, sum(event["ph"] in "XiC" for event in value["traceEvents"])
    assert f"150 inferences, {result['cycles']:,} cycles, {result['switches']:,} switches, {count:,} events" in printed
    inferences = [e for e in value["traceEvents"] if e["ph"] == "X"]
    assert len(inferences) == 150
    spent = {name: sum(e["args"]["cycles"] for e in inferences if e["name"] == name) for name in ("none", "severe")}
    assert spent == result["variant_cycles"]
    assert sum(e["ph"] == "i" for e in value["traceEvents"]) == result["switches"]
    assert (controller == "static") == (value["otherData"]["level"] is not None)
    # rho is that of the variant at a share: more bandwidth, more of it
    container = decode(read_container(compiled))
    runtime = Runtime(prepared_variants(Compiled.of(container)), EDGE)
    for event in inferences[:3]:
        whole = runtime.steady(runtime.names.index(event["name"]), SHARE_UNIT).balance
        assert 0 < event["args"]["rho"] <= whole


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("--controller", "oracle"), "--controller goes with --trace"),
        (("--inferences", "3"), "--inferences goes with --trace"),
        (("--t-min", "1", "--t-max", "2"), "--t-min goes with --trace"),
        (("--switch-cycles", "3"), "--switch-cycles goes with --trace"),
        (("--trace", "step:1", "--slice", "3"), "--t-min, --t-max and --slice are for --controller threshold"),
        (("--trace", "step:1", "--level", "none"), "--level with --trace is for --controller static"),
        (("--trace", "step"), "--trace step: expected step:SEED"),
    ],
)
def test_a_trace_says_what_is_wrong(
    compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], found: str
) -> None:
    assert main(["trace", str(compiled), *words, "--out", str(tmp_path / "t.json")]) == 2
    assert found in capsys.readouterr().err
    assert main(["trace", str(compiled), "--trace", "step:1", "--out", str(tmp_path / "t.txt")]) == 2
    assert "a trace is called .pftrace or .json" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_trace_takes_the_controllers_options(compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--trace", "adversarial:0", "--controller", "threshold", "--inferences", "50", "--t-min", "0.5", "--t-max", "0.75")
    words += ("--slice", "12345", "--switch-cycles", "777")
    result = report(capsys, compiled, *words)["result"]
    assert main(["trace", str(compiled), *words, "--out", str(tmp_path / "t.json")]) == 0
    about = json.loads((tmp_path / "t.json").read_text())["otherData"]
    assert (about["cycles"], about["switches"], about["switch_cycles"]) == (result["cycles"], result["switches"], 777)


def test_a_bad_trace_file_is_named(compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "load.csv"
    path.write_text("cycle,share\n0,1\n10,2\n")
    code, _, err = simulate(capsys, compiled, "--trace", path)
    accepted = "a share of the DDR bandwidth from 1/65536, the least that the clock can tell, to 1, what the load leaves"
    assert (code, err) == (2, f"tilefarm: {path}:3: share '2'; accepted: {accepted}\n")
