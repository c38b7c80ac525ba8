"""The harness of the studies, and every study over it on a small network: what their tables say follows from their rows."""

from __future__ import annotations

import csv
import json
import math
import pickle
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from compiler.frontend import lower
from compiler.ops.lower_graph import make_unit
from scripts import judge_presets, study_champions, study_levels, study_prior, study_settings
from scripts.studies import Arm, Pair, Study, Table, conduct, interval, machine_with, markdown, medians, network_list, short
from scripts.study import STUDIES, load_study
from scripts.study_champions import macs_of_network
from scripts.study_settings import differences
from simulator.npu.errors import BadInputError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests import tuning
from tests.compiler.frontend.test_channel_affine import scaled
from tests.compiler.ops.test_contract import graph_of
from tests.integers import with_integers
from tests.scripting import run_script
from tests.tuning import save_small
from tuner.config import load_config
from tuner.selection.robustness_filter import TOLERANCE

LEVELS = ("none", "slight", "severe")
RECORD_BYTES = 128
FEW = (*tuning.FEW, "farm.checkpoint_every_s=100")  # nobody interrupts these
SET = [word for text in FEW for word in ("--set", text)]


def of_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def study(name: str, folder: Path, model: str, *words: object, csv_name: str | None = None) -> tuple[list[dict[str, Any]], str]:
    """Rows of a study with tiny searches, and the lines below its table."""
    network = model if ":" in model else save_small(model, folder)
    done = run_script("study", name, "--networks", network, "--out", folder / "out", "--json", *words, *SET, cwd=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(of_csv(folder / "out" / f"{csv_name or name}.csv")) == len(found["rows"])
    return found["rows"], "\n".join(part for part in found["shown"] if isinstance(part, str))


# --- the harness ------------------------------------------------------------------------------------------------------------------


def spent(pair: Pair) -> list[dict[str, Any]]:
    """What each arm measured, and knows."""
    return [
        {"arm": name, "programs": int((found.log["kind"] == "program").sum()) // len(found.levels), "levels": " ".join(found.levels)}
        for name, found in pair.results.items()
    ]


@pytest.mark.parametrize("name", [name for name, entry in STUDIES.items() if not entry.module.endswith(".main")])
def test_a_study_can_be_sent_to_processes(name: str, tmp_path: Path) -> None:
    made = load_study(name)
    if name in ("begin", "levels", "prior", "settings"):
        made = made.options(replace(made, out=tmp_path), **({"earlier": made.networks} if name == "prior" else {}))
    assert pickle.loads(pickle.dumps(made)).name == name


def test_networks_times_seeds_times_arms(tmp_path: Path) -> None:
    """An arm has its settings, its share of the budget and its levels; several processes change nothing."""
    arms = {"a": Arm(), "half": Arm(("use.window=false",), times=0.5), "own": Arm(("budget.candidates=3",)), "one": Arm(levels=("severe",))}
    tiny = Study("spent", arms, spent, study_settings.compared, candidates=4, overrides=FEW)
    models = [str(save_small(name, tmp_path)) for name in ("vector_chain", "conv_chain")]
    one = conduct(replace(tiny, out=tmp_path / "1", networks=",".join(models), seeds=1)).rows
    two = conduct(replace(tiny, out=tmp_path / "2", networks=models[0], seeds=2), processes=2).rows
    assert one[: len(arms)] == two[: len(arms)]
    assert [(row["network"], row["seed"]) for row in one[:: len(arms)]] == [("vector_chain", 0), ("conv_chain", 0)]
    assert [(row["network"], row["seed"]) for row in two[:: len(arms)]] == [("vector_chain", 0), ("vector_chain", 1)]
    assert [(row["arm"], row["programs"], row["levels"]) for row in one[: len(arms)]] == [
        ("a", 4, " ".join(LEVELS)), ("half", 2, " ".join(LEVELS)), ("own", 3, " ".join(LEVELS)), ("one", 4, "severe"),
    ]  # fmt: skip
    assert [row["programs"] for row in of_csv(tmp_path / "1/spent.csv")] == [str(row["programs"]) for row in one]


def test_present_pair_is_not_computed_again(tmp_path: Path) -> None:
    """Unless something that its rows follow from is another."""
    model = str(save_small("vector_chain", tmp_path))
    tiny = Study("spent", {"a": Arm()}, spent, study_settings.compared, model, candidates=2, seeds=1, overrides=FEW, out=tmp_path)

    def cells(study: Study = tiny) -> int:
        found = conduct(study)
        assert found.cpu_s > 0
        return len([*(tmp_path / "spent").iterdir()])

    others = ({"candidates": 3}, {"inputs": (7,)}, {"arms": {"a": Arm(times=2)}})
    assert [cells(), cells(), *(cells(replace(tiny, **other)) for other in others)] == [1, 1, 2, 3, 4]
    (cell,) = [path for path in (tmp_path / "spent").iterdir() if json.loads(path.read_text())["rows"][0]["programs"] == 3]
    cell.write_text(json.dumps({"rows": [{"arm": "mine"}], "cpu_s": 5.0}))
    assert conduct(replace(tiny, candidates=3)).rows == [{"arm": "mine", "network": "vector_chain", "machine": "edge"}]


def test_networks_of_a_study(tmp_path: Path) -> None:
    """A name that is wrong ends a study at once, not after the hours of those before it."""
    path = save_small("residual_block", tmp_path)
    names = ["squeezenet", "made:randwire,nodes=16,channels=20", "light:vgg19", str(path)]
    assert network_list(",".join(names)) == names
    for name in ("bvlc_alexnet", "made:nothing", "made:randwire,knots=3", str(tmp_path / "none.onnx")):
        with pytest.raises(typer.BadParameter, match=name.split(",")[0].replace(".", r"\.")):
            network_list(f"squeezenet,{name}")
    assert [short(name) for name in ("light:vgg19", "made:mobilenet_v1", "a/b.onnx", "vgg19")] == ["vgg19", "mobilenet_v1", "b", "vgg19"]


def test_medians_over_seeds() -> None:
    rows = [
        {"network": "a", "seed": seed, "cycles": cycles, "gain": gain} for seed, (cycles, gain) in enumerate(((5, 2.0), (9, 0.5), (6, 1.5)))
    ]
    assert medians([*rows, {**rows[0], "network": "b"}], "network") == [
        {"network": "a", "cycles": 6, "gain": 1.5}, {"network": "b", "cycles": 5, "gain": 2.0},
    ]  # fmt: skip


def test_columns_of_a_table() -> None:
    rows = [{"name": "a", "cycles": 7, "gain": 1.25, "bytes": 2_000_000}, {"name": "b", "gain": None}]
    table = Table.from_rows(rows, "<name", "cycles", "x=gain:.1fx", "over one=gain:-1+.0%", "MB=bytes:.1fM")
    assert table.columns == ["<name", "cycles", "x", "over one", "MB"]
    assert table.rows == [["a", 7, "1.2x", "+25%", "2.0"], ["b", "", "", "", ""]]


def test_the_interval_holds_the_statistic() -> None:
    values = np.random.default_rng(1).normal(10.0, 1.0, 400)
    low, high = interval(values, np.mean)
    assert low < values.mean() < high
    assert high - low == pytest.approx(4 / np.sqrt(len(values)), rel=0.25)
    assert interval(np.full(5, 3.0), np.median) == (3.0, 3.0)


# --- studies ----------------------------------------------------------------------------------------------------------------------


def test_fusion(tmp_path: Path) -> None:
    rows, text = study("fusion", tmp_path, "residual_block", "--candidates", 6, "--seeds", 1)
    assert all(row[f"{stage}_stream"] % RECORD_BYTES == 0 < row[f"{stage}_stream"] for row in rows for stage in study_champions.STAGES)
    assert [row["level"] for row in rows] == list(LEVELS)
    for row in rows:
        stages = [row[f"{stage}_cycles"] for stage in study_champions.STAGES]
        roofline = row["baseline_cycles"] / row["ceiling"]
        assert min(stages) == pytest.approx(row["best_over_roofline"] * roofline)
        assert min(stages) >= roofline
        assert row["residency"] == pytest.approx(row["baseline_cycles"] / stages[0])
    assert f"| residual_block | {rows[0]['window']:.2f} ({rows[0]['ceiling']:.2f}) |" in text
    off = [set(study_champions.stage_arm(stage).settings) for stage in study_champions.STAGES]
    assert all(later < earlier for earlier, later in pairwise(off)), "stages are cumulative"
    assert not off[-1]


def test_types(tmp_path: Path) -> None:
    """Figures of each type, beside what types allow; planes of 32 channels may be emptier than those of 16, so less is not asserted."""
    rows, text = study("types", tmp_path, "made:mobilenet_v2-small", "--machine", "ascend310", "--candidates", 2, "--seeds", 1)
    assert [row["level"] for row in rows] == list(LEVELS)
    for row in rows:
        assert row["macs"] > 0.9
        assert row["in_int8"] > 0.9
        assert 1.5 < row["roof"] <= 2
        assert 0.4 < row["least"] < 0.8
        assert row["faster"] == row["float16_cycles"] / row["int8_cycles"]
        assert row["of_bytes"] == row["int8_bytes"] / row["float16_bytes"] > row["least"] / 2
        assert min(row["float16_gain"], row["int8_gain"]) >= 1
    assert "none: " in text
    assert "geometric mean of 1" in text


def test_types_of_a_machine_of_integers(tmp_path: Path) -> None:
    rows, text = study("types", tmp_path, "made:mobilenet_v2-small", "--machine", "ethos-u65-512", "--candidates", 1, "--seeds", 1)
    assert [row["level"] for row in rows] == list(LEVELS)
    for row in rows:
        assert row["in_int8"] == 1
        assert row["int8_gain"] >= 1
        assert not row.keys() & {"float16_cycles", "float16_gain", "faster", "macs"}
    assert "integers alone" in text
    assert "geometric mean" not in text


def test_stand_in_products_are_no_work_of_networks() -> None:
    machine = with_integers(load_machine("tiny"))
    target_graph = make_unit(lower(scaled(1)[0]), machine, DataType.float16)
    assert target_graph.macs == 2 * 70 * 9 * 7
    assert macs_of_network(target_graph) == 0
    depthwise = make_unit(graph_of("depthwise, of bytes"), machine, DataType.float16)
    assert macs_of_network(depthwise) == depthwise.macs > 0


def test_shared_memory(tmp_path: Path) -> None:
    """Arms differ in the machine alone, and bytes are those of each level's program."""
    rows, text = study("shared_memory", tmp_path, "light:squeezenet", "--candidates", 4, "--seeds", 1)
    assert all(row[key] % RECORD_BYTES == 0 < row[key] for row in rows for key in ("with_stream", "without_stream"))
    assert [row["level"] for row in rows] == list(LEVELS)
    for row in rows:
        assert row["machine"] == "ascend310-l2"
        assert row["faster"] == row["without_cycles"] / row["with_cycles"]
        assert row["of_bytes"] == row["with_bytes"] / row["without_bytes"] <= 1
        assert row["with_cycles"] <= row["with_baseline"]
    assert rows[0]["of_bytes"] < 1
    assert text.count("geometric mean of 1") == len(LEVELS)
    assert machine_with("edge", "") == "edge"
    assert (machine_with("edge", "shared=null"), machine_with("edge:cores=2", "shared=null")) == (
        "edge:shared=null",
        "edge:cores=2,shared=null",
    )


def test_levels(tmp_path: Path) -> None:
    """Losses are against the fewest of the cell, and the page has the table that is printed."""
    words = ("--candidates", 8, "--seeds", 1, "--machine", "edge")
    rows, text = study("levels", tmp_path, "conv_chain", *words)
    assert all(row[key] % RECORD_BYTES == 0 < row[key] for row in rows for key in ("own_stream", "robust_stream"))
    assert [row["level"] for row in rows] == list(LEVELS)
    names = [*(f"only_{level}" for level in LEVELS), "robust"]
    for row in rows:
        fewest = min(value for key, value in row.items() if key.endswith("_cycles"))
        for name in names:
            assert row[name] == row[f"{name}_cycles"] / fewest
        assert row["own"] == row[f"own_{row['level']}_cycles"] / fewest
        assert min(row[f"only_{row['level']}"], row["own"]) == 1
        assert row["robust_cycles"] >= row[f"own_{row['level']}_cycles"]
        assert row["own"] <= row["two"]
        assert row["changed"] == (row["changed_over"] > 0)
    assert f"robust {max(row['robust'] for row in rows):.3f} (conv_chain)" in text
    page = (tmp_path / "out" / "levels.md").read_text()
    assert f"| {max(row['robust'] for row in rows):.3f} |" in page


def test_what_the_guard_costs_and_insures(tmp_path: Path) -> None:
    rows, text = study("levels", tmp_path, "inception_block", "--guard", "2,8", "--seeds", 1, "--machine", "edge", csv_name="guard")
    assert [(row["candidates"], row["level"]) for row in rows] == [(budget, level) for budget in (2, 8) for level in LEVELS]
    for row in rows:
        assert row["nominal_without"] == 0, "a champion is the fastest by the description"
        assert 0 <= row["nominal_with"] <= TOLERANCE
        assert row["out_mean_without"] <= row["out_worst_without"]
        if row["displaced"]:
            assert row["nominal_with"] < row["out_worst_without"] - row["out_worst_with"]
            assert f"{row['level']}: costs {row['nominal_with']:.2%}, and loses {row['out_worst_with']:.2%} at most" in text
        else:
            assert (row["nominal_with"], row["out_worst_with"]) == (0, row["out_worst_without"])
    page = (tmp_path / "out" / "guard.md").read_text()
    assert (
        f"| 8 | 1 | with | {sum(row['displaced'] for row in rows[3:])} of 3 | {np.mean([row['nominal_with'] for row in rows[3:]]):.2%} |"
        in page
    )
    done = run_script("study", "levels", "--guard", "8,x", "--out", "out", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")


def test_levels_that_grant_less_memory(tmp_path: Path) -> None:
    """What was tuned where all of L1 is granted does not fit half of a little one: no loss there, and the table counts it."""
    model, machine = str(save_small("conv_chain", tmp_path)), "edge:contention.severe.l1_bytes=16384"
    small = {"networks": model, "machines": (machine,), "candidates": 8, "seeds": 1, "overrides": FEW, "out": tmp_path}
    rows = conduct(replace(study_levels.STUDY, **small)).rows
    assert [[row[f"only_{level}"] is None for level in LEVELS] for row in rows] == [[False] * 3, [False] * 3, [True, True, False]]
    for row in rows:
        fewest = min(value for key, value in row.items() if key.endswith("_cycles") and value is not None)
        for name in (*(f"only_{level}" for level in LEVELS), "robust"):
            assert (row[name] is None) == (row[f"{name}_cycles"] is None)
            assert row[name] is None or row[name] == row[f"{name}_cycles"] / fewest
        assert row["robust"] >= row["two"] >= row["own"] >= 1
    (cell,) = study_levels.cells(rows)
    assert cell["unfit"] == 2
    assert cell["only"] == max(row[f"only_{level}"] for row in rows for level in LEVELS if row[f"only_{level}"] is not None)
    assert 1 < cell["pay"] == pytest.approx(max(row["robust_cycles"] / row[f"own_{row['level']}_cycles"] for row in rows))
    assert f"| {cell['own']:.3f} | {cell['pay']:.3f} | 2 of 6 | {cell['changed']} of 3 |" in markdown(study_levels.show(rows))


def test_placement(tmp_path: Path) -> None:
    rows, text = study("placement", tmp_path, "inception_block", "--candidates", 8, "--seeds", 1)
    assert [(row["cores"], row["ddr"]) for row in rows] == [(2, 134), (4, 268)]
    for row in rows:
        one, every, placed = (row[f"{mode}_cycles"] for mode in ("one", "all", "placed"))
        assert (row["over_one"], row["over_all"]) == (one / placed, every / placed)
        assert placed < 1.1 * min(one, every), "it knows their segments; one round of exploring decides on so few programs"
        assert max(row[f"{bound}_share"] for bound in ("work", "path", "bandwidth")) == pytest.approx(1 / (1 + row["gap"]))
        assert row["gap"] >= 0, "nothing is below the bound of its segments"
    assert f"least over all cores: {min(row['over_all'] for row in rows):.3f}" in text
    assert "28.98%" in text


def test_window(tmp_path: Path) -> None:
    rows, text = study("window", tmp_path, "inception_block", "--candidates", 4, "--seeds", 1)
    assert [(row["seed"], row["level"]) for row in rows] == [(0, level) for level in LEVELS]
    for row in rows:
        assert row["searched_cycles"] <= min(row[f"{kind}_cycles"] for kind in ("sequence", "formula", "unlimited", "own"))
        assert row["formula_peak_l1_bytes"] <= load_machine("edge").buffers_bytes.L1
        assert row["unlimited_segments"] <= row["sliding_segments"] <= row["segments"]
        assert row["greedy_over_formula_bytes"] >= 1
        assert row["search"] == row["without_cycles"] / row["searched_cycles"]
    for part in ("of a search without windows", "geometric means", "never slower"):
        assert part in text


def test_prior(tmp_path: Path) -> None:
    """Only the first arm has all readings; who remembers begins better, and the earlier run is made once."""
    words = ("--earlier", save_small("conv_chain", tmp_path), "--measurements", 120, "--seeds", 1)
    rows, text = study("prior", tmp_path, "residual_block", *words)
    assert [row["arm"] for row in rows] == [arm for arm in ("all", *study_prior.QUARTER) for _ in LEVELS]
    for row in rows:
        assert row["readings"] <= (120 if row["arm"] == "all" else 30)
        assert row["arm"] != "all" or row["over"] == 1
    over = [math.log(row["over"]) for row in rows if row["arm"] == "warm"]
    mean = math.exp(sum(over) / len(over))
    assert f"goal, 1.01 with a quarter of the readings, warm: {mean:.4f}, {'reached' if mean <= 1.01 else 'missed'}" in text
    assert "unrelated networks" not in text
    runs = tmp_path / "out/runs"
    assert sorted(path.suffix for path in runs.iterdir()) == ["", ".model"]
    (tmp_path / "out/prior").rename(tmp_path / "first")
    before = next(runs.glob("*/run.json")).stat().st_mtime_ns
    again, _ = study("prior", tmp_path, "residual_block", *words)
    assert [row["over"] for row in again] == [row["over"] for row in rows]
    assert next(runs.glob("*/run.json")).stat().st_mtime_ns == before


def test_prior_tells_related_networks_from_others() -> None:
    rows = [
        {"network": network, "seed": seed, "arm": arm, "level": level, "over": over, "readings": 1, "cpu_s": 1.0}
        for network, worse in (("resnet101", 1.0), ("shufflenet", 1.2))
        for seed in (0, 1)
        for arm, over in (("all", 1.0), ("quarter", 1.1), ("warm", worse * 1.005))
        for level in LEVELS
    ]
    shown = list(study_prior.show(rows))
    (goal,) = [part for part in shown if isinstance(part, str) and part.startswith("goal")]
    assert goal == "goal, 1.01 with a quarter of the readings, warm: 1.0050, reached"
    _, related, other = [part for part in shown if not isinstance(part, str)]
    assert [row[-1] for row in related.rows] == ["1.100 (1.100 .. 1.100)", "1.005 (1.005 .. 1.005)"]
    assert [row[-1] for row in other.rows] == ["1.100 (1.100 .. 1.100)", "1.206 (1.206 .. 1.206)"]


def test_rewrites(tmp_path: Path) -> None:
    words = ["--networks", "made:mobilenet_v2-small", "--out", tmp_path, "--json"]
    rows = {row["rule"]: row for row in json.loads(run_script("study", "rewrites", *words).stdout)["rows"]}
    assert list(rows)[-1] == "all rules"
    whole = rows["all rules"]
    assert whole["kernels"] == 54  # 52 convolutions, the mean, the classifier
    # a ReLU6 for each convolution but the 17 that end a block, and a sum for each block of equal size: one pass each that reads and writes
    assert rows["fuse-limit"]["kernels_saved"] == rows["fuse-limit"]["fired"] == 35
    assert rows["fuse-residual"]["kernels_saved"] == rows["fuse-residual"]["fired"]
    for rule in ("fuse-limit", "fuse-residual"):
        assert rows[rule]["ddr_bytes_saved"] > 0
        assert all(0 < rows[rule][f"cycles_{level}"] < whole[f"cycles_{level}"] for level in LEVELS)


def test_settings_are_compared_pair_by_pair(tmp_path: Path) -> None:
    rows, _ = study("settings", tmp_path, "conv_chain", "--seeds", 2, "--candidates", 4, "--only", "no prefetch")
    assert len(rows) == 2 * 2 * len(LEVELS)
    logs = [math.log(row["over_default"]) for row in rows if row["settings"] != "default"]
    assert any(logs), "that switch is not without effect"
    assert {row["over_default"] for row in rows if row["settings"] == "default"} == {1.0}
    (_, by_pair, title, table) = study_settings.compared(rows)
    assert isinstance(title, str)
    other = [row for row in rows if row["settings"] != "default"]
    for seed, row in enumerate(by_pair.rows):  # type: ignore[union-attr]
        mine = [each for each in other if each["seed"] == seed]
        mean = math.exp(sum(math.log(each["over_default"]) for each in mine) / len(LEVELS))
        assert row[3:-3] == (*(f"{each['over_default']:.4f}" for each in mine), f"{mean:.4f}")
        assert float(row[-2]) == pytest.approx(mine[0]["cpu_s"], abs=0.06)
    ((name, pairs, over, span, *_, verdict),) = table.rows  # type: ignore[union-attr]
    assert (name, pairs, over) == ("no prefetch", 2, f"{math.exp(sum(logs) / len(logs)):.4f}")
    low, high = map(float, str(span).split(" .. "))
    assert verdict == ("helps" if low > 1 else "harms" if high < 1 else "no difference shown")


def test_settings_have_their_own_budget_and_clock(tmp_path: Path) -> None:
    words = ("--seeds", 1, "--candidates", 6, "--settings", "search.lag=4 budget.candidates=3")
    rows, _ = study("settings", tmp_path, "conv_chain", *words)
    assert {(row["settings"], row["programs"]) for row in rows} == {("default", 6), ("search.lag=4 budget.candidates=3", 3)}
    assert all(row["cpu_s"] > 0 for row in rows)
    slower, _ = study("settings", tmp_path, "conv_chain", *words, "--clock", "edge:ddr.latency_cycles=2000")
    assert all(late["cycles"] > row["cycles"] for late, row in zip(slower, rows, strict=True))


def test_a_configuration_is_what_it_changes(tmp_path: Path) -> None:
    machine_with = load_config().replaced({"search.proposed": 0.25, "search.moves": ["shift_border"], "budget.candidates": 9})
    (tmp_path / "best.yaml").write_text(machine_with.to_yaml())
    texts = differences(str(tmp_path / "best.yaml"))
    assert load_config(None, texts).digest == machine_with.digest
    assert not any(text.startswith("budget") for text in texts)
    (tmp_path / "same.yaml").write_text("budget: {candidates: 9}\n")
    with pytest.raises(BadInputError, match="changes nothing"):
        differences(str(tmp_path / "same.yaml"))


@pytest.mark.parametrize("name", study_settings.SWITCHED)
def test_a_switch_changes_the_default(name: str) -> None:
    """One that is gone is refused hours later, when its turn comes."""
    assert load_config(None, study_settings.SWITCHED[name]).digest != load_config().digest


def test_preset_ships_where_its_interval_is_below_one(tmp_path: Path) -> None:
    """Areas between curves at equal readings: of settings that cripple the search above 1."""
    worse = tmp_path / "worse.yaml"
    worse.write_text("use: {segmentations: false, prefetch: false, block_fusion: false}\n")
    model, words = save_small("inception_block", tmp_path), ("--measurements", 240, "--points", 4, "--seeds", 1, "--json", *SET)
    done = run_script("judge_presets", "--networks", model, "--config", worse, "--out", tmp_path / "out", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    by = {(row["settings"], row["seed"], row["level"]): row for row in rows}
    assert len(by) == 2 * len(LEVELS)
    for (name, seed, level), row in by.items():
        base = by["default", seed, level]
        assert row["last"] == pytest.approx(row["cycles"] / base["cycles"])
        assert (row["area"] == 1) if name == "default" else min(row["area"], row["last"]) > 1, (seed, level)

    def verdict(areas: list[float], last: float = 1.0) -> object:
        head = {"network": "n", "machine": "m", "level": "none", "cycles": 1, "cpu_s": 1.0}
        found = [
            {**head, "settings": name, "seed": seed, "area": area, "last": area * last}
            for seed, better in enumerate(areas)
            for name, area in (("default", 1.0), ("short", better))
        ]
        (table,) = [part for part in judge_presets.show_arms(found) if not isinstance(part, str)]
        return table.rows[0][-1]

    assert verdict([0.95, 0.97, 0.96, 0.99]) == "ships"
    assert verdict([0.95, 0.97, 0.96, 0.99], last=1.1) == "ends behind"
    assert verdict([0.95, 1.04, 0.96, 1.03]) == "no difference shown"
    assert verdict([1.05, 1.04, 1.06, 1.03]) == "is worse"


@pytest.mark.parametrize("name", ["rewrites", *(pytest.param(name, marks=pytest.mark.slow) for name in STUDIES if name != "rewrites")])
def test_a_glance_at_every_study(tmp_path: Path, name: str) -> None:
    done = run_script("study", "all", "--quick", "--only", name, "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out/studies.md").read_text()
    assert text.startswith(f"# Studies\n\n## {name}\n\n`python scripts/study.py {name} --")
    assert "\n| " in text
    assert re.search(r"^CPU: \d+\.\d\d hours$", text, re.MULTILINE)


def test_a_study_that_there_is_not(tmp_path: Path) -> None:
    done = run_script("study", "all", "--only", "fusion,nothing", "--out", "out", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no study nothing; there are gain, fusion, levels," in " ".join(done.stderr.replace("│", " ").split())


def test_every_file_of_studies_is_listed() -> None:
    files = {path.stem.removeprefix("study_") for path in (Path(__file__).parents[2] / "scripts").glob("study_*.py")}
    assert files == {entry.module.partition(".")[0] for entry in STUDIES.values()}
    assert all(len(entry.summary.split()) >= 6 for entry in STUDIES.values())
