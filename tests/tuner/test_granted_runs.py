"""A run on a machine of which a level leaves less memory and fewer cores, from the first program to the summary."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compiler.build import build_variants, measure, measure_plans
from compiler.plan.plan import Plan
from simulator.build_controller_table import with_rule
from simulator.compiled import read_compiled
from simulator.npu.container import ContainerError
from simulator.npu.container_file import decode, encode
from simulator.npu.errors import BadInputError, InfeasibleError
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.thresholds import ManualThresholds
from tests.messages import naming
from tests.tuning import quick, save_small
from tuner.cli import main
from tuner.cli.export_plans import few_plans, run_plans
from tuner.cli.text import print_levels
from tuner.cli.write_file import write_compiled
from tuner.log.read import read_log
from tuner.measure.command_runner import CommandRunner
from tuner.measure.reopen import open_tuned
from tuner.measure.robust_lines import robust_rows
from tuner.measure.runners import find_runner
from tuner.runs.list_runs import baseline_of, open_run
from tuner.selection.finals import contenders
from tuner.verify.check import check_file

LESS = 8192
MACHINE = f"edge:cores=2,contention.severe.l1_bytes={LESS},contention.severe.cores=1"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("granted")
    quick(save_small("residual_block", folder), folder / "run", 24, machine=MACHINE)
    return folder / "run"


@pytest.fixture(scope="module")
def machine() -> Machine:
    return load_machine(MACHINE)


def test_grant_rules_by_hand_are_those_of_table(run: Path) -> None:
    """What is set of nothing is the table of the file, for every grant; a pair and a slice are in every rule."""
    compiled = read_compiled(run / "best.onnx")
    table = compiled.controller
    assert table is not None
    assert table.granted
    same, _ = with_rule(compiled, table, ManualThresholds())
    assert same.controller == table
    made = with_rule(compiled, table, ManualThresholds(0.5, 0.75, 9))[0].controller
    assert made is not None
    assert made.slice_cycles == 9
    for old, new in zip((table, *table.granted), (made, *made.granted), strict=True):
        assert set(new.t_min) <= {0.5 * 65536}
        assert set(new.t_max) <= {0.75 * 65536}
        assert set(old.ladder) <= set(new.ladder), "one pair for all merges nothing"


def test_the_summary_says_what_does_not_fit(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    levels = summary["levels"]
    assert summary["status"] == "done"
    assert levels["severe"]["ddr"] == {"share": 0.25, "latency_cycles": 90, "l1_bytes": LESS, "cores": 1}
    assert all(row["variant_cycles"][level] == row["cycles"] for level, row in levels.items())
    robust = summary["robust"]
    assert robust["one_level"] == "none"
    assert robust["one_level_cycles"]["none"] == robust["own_cycles"]["none"]
    assert robust["one_level_cycles"]["severe"] is None
    assert all(robust["cycles"][level] >= own for level, own in robust["own_cycles"].items())
    assert robust_rows(summary)[-1][:3] == ("severe", None, "does not fit")


def test_every_grant_has_a_baseline(run: Path) -> None:
    """The one of `severe` fits there, is no faster at other levels, and every gain is over the one of its grant."""
    whole, less = (Plan.load(run / "plans" / f"{name}.json") for name in ("baseline", "baseline.severe"))
    assert all(len(segment.operators) == 1 for segment in (*whole.segments, *less.segments))
    opened, _ = open_tuned(run)
    of_less = measure_plans(opened.target_graph, {"none": less, "severe": less})["none"].timings
    summary = json.loads((run / "summary.json").read_text())["levels"]
    assert summary["severe"]["baseline_layerwise_cycles"] == of_less["severe"].cycles
    assert summary["none"]["baseline_layerwise_cycles"] <= of_less["none"].cycles
    assert baseline_of(open_run(run)) == {level: row["baseline_layerwise_cycles"] for level, row in summary.items()}


def test_rows_are_infeasible_where_grants_are_too_small(run: Path) -> None:
    log = read_log(run)
    assert set(log["level_l1_bytes"].dropna()) == {LESS}
    assert log.loc[log["level"] == "severe", "level_l1_bytes"].notna().all()
    assert log.loc[log["level"] != "severe", "level_l1_bytes"].isna().all()
    assert log["level_shared_bytes"].isna().all()
    assert set(log["level_cores"].dropna()) == {1}
    wide = log.pivot(index="seq", columns="level", values="status").astype(str)
    partly = wide[(wide["none"] == "ok") & (wide["severe"] == "infeasible")]
    assert len(partly) > 20
    assert len(wide[(wide == "ok").all(axis=1)]) > 20
    assert not ((wide["none"] != "ok") & (wide["severe"] == "ok")).any(), "what fits less fits all"
    rows = log[log["seq"].isin(partly.index) & (log["level"] == "severe")]
    assert rows["cycles"].isna().all()
    assert set(rows["error"]) == {f"needs more than level severe grants: {LESS:,} B of L1, 1 cores"}


def test_file_has_null_where_a_variant_is_unfit(run: Path, machine: Machine, tmp_path: Path) -> None:
    """Here every level's own: of these the one for `none` needs more than `severe` grants."""
    opened, _ = open_tuned(run)
    report = write_compiled(opened, run_plans(run, machine, folder=run / "plans" / "own"), tmp_path / "own.onnx", "function")
    assert report.values["levels"]["none"]["variant_cycles"]["severe"] is None
    compiled = read_compiled(tmp_path / "own.onnx")
    for level in compiled.levels:
        (program,) = compiled.programs(level)
        assert program.needs.fits(machine.granted(level))
        for at, cycles in compiled.cycles(level).items():
            assert (cycles is not None) == program.needs.fits(machine.granted(at))
    assert compiled.cycles("none")["severe"] is None
    checked = {each.level: each for each in check_file(tmp_path / "own.onnx")}
    assert all(each.ok for each in checked.values())
    assert checked["none"].cycles["severe"] is None


def test_variant_of_a_level_without_room_is_refused(run: Path, machine: Machine, tmp_path: Path) -> None:
    opened, _ = open_tuned(run)
    plans = run_plans(run, machine, folder=run / "plans" / "own")
    with pytest.raises(InfeasibleError, match=r"level severe.* needs [0-9,]+"):
        measure(opened, {**plans, "severe": plans["none"]})
    container = build_variants(opened.packed[0], plans)
    none, severe = container.variant("none"), container.variant("severe")
    for bad, said in (
        ({"severe": replace(none, level="severe", cycles=severe.cycles)}, "variant 'severe' does not fit its level: needs"),
        ({"none": replace(none, cycles={**none.cycles, "severe": 5})}, "variant 'none': 5 cycles at level 'severe', which does not grant"),
        ({"severe": replace(severe, cycles={**severe.cycles, "none": None})}, "None cycles at level 'none', which grants what it needs"),
    ):
        variants = tuple(bad.get(each.level, each) for each in container.variants)
        with pytest.raises(ContainerError, match=said):
            decode(encode(replace(container, variants=variants, controller=None)))


def test_a_trace_grants_what_its_levels_grant(run: Path, machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So nothing runs at a level that it does not fit, and a file that says the same serves the same."""

    def served(*words: object) -> dict[str, Any]:
        capsys.readouterr()
        assert main(["simulate", str(run / "best.onnx"), "--trace", str(trace), "--inferences", "40", *map(str, words), "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    trace, grants = tmp_path / "load.csv", tmp_path / "grants.csv"
    trace.write_text("cycle,share\n0,1\n20000,0.25\n60000,0.5\n")
    found = served()
    assert list(found["static"]) == ["severe"]
    assert [(step["cycle"], step["l1_bytes"]) for step in found["granted"]["steps"]] == [
        (0, machine.buffers_bytes.L1),
        (20000, LESS),
        (60000, machine.buffers_bytes.L1),
    ]
    assert found["result"]["switches"] == 2
    assert found["result"]["cycles"] < found["static"]["severe"]["cycles"]
    grants.write_text(f"cycle,l1_bytes,shared_bytes,cores\n0,,,\n20000,{LESS},,1\n60000,,,\n")
    assert served("--grants", grants) == {**found, "grants": str(grants)}
    capsys.readouterr()
    assert main(["simulate", str(run / "best.onnx"), "--trace", str(trace), "--controller", "threshold", "--inferences", "40"]) == 0
    assert "\nwhere all variants fit, thresholds of rho" in capsys.readouterr().out
    assert main(["simulate", str(run / "best.onnx"), "--trace", str(trace), "--controller", "static", "--level", "none"]) == 2
    assert "variant none does not fit all that the trace by the machine's levels grants" in capsys.readouterr().err


def test_report_and_table_have_grants_of_levels(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run)]) == 0
    page = (run / "report.html").read_text(encoding="utf-8")
    matrix = page[page.index("Every variant at every level") :].partition("</table>")[0]
    assert matrix.count("does not fit") == sum(
        cycles is None
        for row in json.loads((run / "summary.json").read_text())["levels"].values()
        for cycles in row["variant_cycles"].values()
    )
    assert "does not fit" in matrix
    assert "Some levels grant less" in page
    capsys.readouterr()
    print_levels(json.loads((run / "summary.json").read_text()))
    assert capsys.readouterr().out.partition("\n\n")[0].endswith(f"\ngranted at severe {LESS:,} B of L1, 1 cores")


def test_few_variants_leave_no_level_without_a_program(run: Path) -> None:
    opened, _ = open_tuned(run)
    (one,) = {plan.digest for plan in few_plans(run, opened, 1).values()}
    assert one == json.loads((run / "summary.json").read_text())["robust"]["plan"]


def test_equal_seeds_give_equal_runs_even_resumed(run: Path, tmp_path: Path) -> None:
    quick(save_small("residual_block", tmp_path), tmp_path / "run", 12, machine=MACHINE)
    quick(tmp_path / "residual_block.onnx", tmp_path / "run", 24, machine=MACHINE, resume=True)
    one, two = (json.loads((folder / "summary.json").read_text()) for folder in (run, tmp_path / "run"))
    assert one["levels"] == two["levels"]


def test_level_that_no_plan_fits_is_reported_early(tmp_path: Path) -> None:
    model = save_small("conv_chain", tmp_path)
    with pytest.raises(InfeasibleError, match=naming("level severe", "1,024 B of L1")):
        quick(model, tmp_path / "run", 4, machine="edge:contention.severe.l1_bytes=1024")


def test_budget_below_one_program_per_grant_is_refused(tmp_path: Path) -> None:
    model = save_small("conv_chain", tmp_path)
    with pytest.raises(BadInputError, match=naming("1 candidates", 2)):
        quick(model, tmp_path / "run", 1, machine=MACHINE)


@pytest.mark.parametrize("name", ["command:true", "tuner.measure.simulator_runner:SimulatedBoard"])
def test_runner_without_grants_is_refused(name: str, tmp_path: Path) -> None:
    model = save_small("conv_chain", tmp_path)
    said = rf"^runner {name}: level severe grants less than the machine has \({LESS:,} B of L1, 1 cores\), which this runner does not say"
    with pytest.raises(BadInputError, match=said):
        quick(model, tmp_path / "run", 4, f"runner.name={name}", machine=MACHINE)


@pytest.mark.slow
def test_runner_with_grants_measures_at_every_level(run: Path, tmp_path: Path) -> None:
    """The simulator as a runner finds what the simulator finds; each group of levels that grant the same has a race of its own."""
    model = save_small("residual_block", tmp_path)
    quick(model, tmp_path / "run", 24, "use.cost_model=false", "runner.name=tuner.measure.simulator_runner:measure", machine=MACHINE)
    quick(model, tmp_path / "same", 24, "use.cost_model=false", machine=MACHINE)
    summary, same = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("run", "same"))
    for level, row in summary["levels"].items():
        assert row["cycles"] == same["levels"][level]["cycles"]
        assert row["baseline_layerwise_cycles"] == same["levels"][level]["baseline_layerwise_cycles"]
        assert row["variant_cycles"][level] == row["cycles"]
    assert summary["levels"]["severe"]["variant_cycles"]["none"] is None
    finalists = summary["runner"]["finalists"]
    apart = [each for each in finalists if "severe" not in each["simulated_cycles"]]
    assert apart
    assert not any("severe" in each["cycles"] or "severe" in each["standing"] for each in apart)
    assert [each["standing"] for each in finalists[-2:]] == [{}, {}], "a baseline of either grant"
    for level in summary["levels"]:
        assert [each["standing"][level] for each in finalists if level in each["standing"]].count("champion") == 1
    log = read_log(tmp_path / "run")
    assert ((log["level"] == "severe") & (log["status"] == "infeasible") & (log["kind"] == "program")).any()


BOARD = """
import json, sys
from pathlib import Path
from simulator.npu.container import program
from simulator.npu.container_file import decode
from simulator.npu.grant import Grant
from simulator.timing import simulate
container, level, granted = decode(Path(sys.argv[1]).read_bytes()), sys.argv[2], Grant(**json.loads(sys.argv[3]))
stream = program(container, level)
if not stream.needs.fits(granted):
    sys.exit(f"{stream.needs} at {granted}")
with open(sys.argv[0] + ".said", "a") as said:
    print(level, *granted, file=said)
print(json.dumps({"cycles": simulate(stream, container.machine, container.machine.contention[level]).cycles}))
"""


def test_a_command_is_told_what_the_level_grants(run: Path, machine: Machine, tmp_path: Path) -> None:
    board = tmp_path / "board.py"
    board.write_text(BOARD)
    runner = find_runner(f"command+grants:{sys.executable} {board}", 100.0)
    assert isinstance(runner, CommandRunner)
    opened, _ = open_tuned(run)
    plan = run_plans(run, machine, folder=run / "plans" / "own")["severe"]
    (one,) = contenders(opened.packed[0], [plan], tuple(machine.contention))
    for level in ("none", "severe"):
        assert runner(one.program, level).cycles == one.simulated[level]
    assert board.with_name("board.py.said").read_text().splitlines() == [f"none {1 << 20} 0 2", f"severe {LESS} 0 1"]
