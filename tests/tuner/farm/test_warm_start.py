"""What a run takes from earlier ones is what it would have measured itself, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pyarrow as pa
import pytest

import simulator
from compiler.model import ModelSpec as ModelSource
from compiler.model import lower_model
from compiler.target.target_graph import TargetGraph
from simulator.npu.errors import BadInputError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.messages import mentions
from tests.models import Builder
from tests.rows import write_part
from tests.tuning import assert_equal_runs, quick, sorted_log
from tuner.farm.warm_start import open_warm_start, read_warm_start, sources
from tuner.log.digests import text_digest
from tuner.log.part import read_part
from tuner.log.read import read_log
from tuner.measure.evaluator import Evaluator
from tuner.measure.request import Request
from tuner.platform.local_files import LocalPath
from tuner.runs.folder import read_json
from tuner.search.population import ELITES

LEVELS = ("none", "slight", "severe")
SIMULATED = "tuner.measure.simulator_runner:measure"


def model(path: Path, convolutions: int) -> Path:
    """A chain of convolutions 32 -> 32, then one to 48: chains of any length share segments."""
    b = Builder(np.random.default_rng(0), (1, 32, 12, 12))
    tensor = "x"
    for _ in range(convolutions):
        tensor = b.conv(tensor, 32)
    onnx.save(b.model(b.conv(tensor, 48, kernel=(1, 1), pads=(0, 0, 0, 0))), path)
    return path


def unit_of(path: Path, machine: str = "edge") -> TargetGraph:
    return lower_model(ModelSource(path, load_machine(machine), DataType.float16)).target_graph


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model(tmp_path_factory.mktemp("models") / "short.onnx", 3)


@pytest.fixture(scope="module")
def earlier(short: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "earlier"
    quick(short, run, 24)
    return run


def altered(run: Path, out: Path, **columns: dict[str, object]) -> Path:
    """A copy of a run with other values in all rows of some tasks: column -> task -> value."""
    shutil.copytree(run, out)
    for part in sorted((out / "log").glob("*.parquet")):
        table = read_part(LocalPath(part)).table
        tasks = table["task"].to_pylist()
        for name, values in columns.items():
            column = [values.get(task, value) for task, value in zip(tasks, table[name].to_pylist(), strict=True)]
            field = table.schema.field(name)
            table = table.set_column(table.column_names.index(name), field, pa.array(column, field.type))
        write_part(part, table)
    return out


def test_the_same_network(short: Path, earlier: Path) -> None:
    """Every task that the log has becomes a gene that makes that very task, with its cycles and bytes."""
    target_graph, log = unit_of(short), read_log(earlier)
    found = read_warm_start([earlier], target_graph, LEVELS)
    measured = log[log["kind"].isin(["operator", "segment"]) & (log["status"] == "ok")]
    assert set(found.tasks) == set(measured["task"])
    assert len(found.tasks) > 40
    assert not sum(found.sources[0].left_out.values()) - found.sources[0].left_out["result"]
    evaluator = Evaluator(target_graph, LEVELS)
    for task, gene, moved, cycles in zip(found.tasks, found.genes, found.moved_bytes, found.cycles, strict=True):
        measurement = evaluator.measure(Request("segment", (gene,)))
        kind = "operator" if gene.stop - gene.start == 1 else "segment"
        assert text_digest(f"{kind}:{measurement.payload}") == task
        assert measurement.values is not None
        assert (cycles == measurement.cycles).all()
        assert moved == measurement.values[0, 2:4].sum()
    programs = log[(log["kind"] == "program") & (log["status"] == "ok")]
    best = {level: programs.loc[programs["level"] == level, "cycles"].min() for level in LEVELS}
    measurements = [evaluator.measure(Request("program", genome)).cycles for genome in found.programs]
    assert len(measurements) <= ELITES * len(LEVELS)
    for at, level in enumerate(LEVELS):
        assert min(cycles[at] for cycles in measurements if cycles is not None) == best[level]


def test_another_network_shares_segments(earlier: Path, tmp_path: Path) -> None:
    """A longer chain has the segments of the shorter one, except those at its beginning that see the input's halo as its own."""
    target_graph = unit_of(model(tmp_path / "long.onnx", 5))
    found = read_warm_start([earlier], target_graph, LEVELS)
    source = found.sources[0]
    assert 0 < len(found.tasks) == source.usable < source.tasks
    assert source.left_out["elsewhere"] > 0
    assert not found.programs
    evaluator = Evaluator(target_graph, LEVELS)
    for gene, cycles in zip(found.genes, found.cycles, strict=True):
        assert (evaluator.measure(Request("segment", (gene,))).cycles == cycles).all()
    assert f"{source.usable} of {source.tasks} tasks usable" in next(source.lines())


def test_another_machine(short: Path, earlier: Path) -> None:
    found = read_warm_start([earlier], unit_of(short, "edge:ddr.bytes_per_cycle=32"), LEVELS)
    assert not found.tasks
    assert not found.programs
    assert found.sources[0].left_out["machine"] == found.sources[0].tasks > 0


def test_poisoned_rows_and_other_simulators_are_left_out(short: Path, earlier: Path, tmp_path: Path) -> None:
    target_graph = unit_of(short)
    clean = read_warm_start([earlier], target_graph, LEVELS)
    bad = dict(zip(clean.tasks[:4], (-(1 << 62), None, -7, 0), strict=True))
    old, boards = dict.fromkeys(clean.tasks[4:7], "0-older"), dict.fromkeys(clean.tasks[7:9], "board")
    run = altered(earlier, tmp_path / "altered", cycles=bad, simulator=old, runner=boards)
    found = read_warm_start([run], target_graph, LEVELS)
    assert found.tasks == clean.tasks[9:]
    out, before = found.sources[0].left_out, clean.sources[0].left_out
    assert (out["poisoned"], out["simulator"], out["runner"]) == (4, 3, 2)
    assert out["result"] == before["result"]
    assert found.sources[0].usable == clean.sources[0].usable - 9
    said = list(found.sources[0].lines())
    assert len(said) == 1 + sum(count > 0 for count in out.values())
    name = found.sources[0].run
    assert mentions(said, f"{name}: left out 3", simulator.VERSION)
    assert mentions(said, f"{name}: left out 2", "runner")
    assert f"{name}: left out 4 poisoned" in said


def test_a_damaged_task_is_left_out(short: Path, earlier: Path, tmp_path: Path) -> None:
    target_graph = unit_of(short)
    clean = read_warm_start([earlier], target_graph, LEVELS)
    run = tmp_path / "damaged"
    shutil.copytree(earlier, run)
    for part in sorted((run / "tasks").glob("*.parquet")):
        table = read_part(LocalPath(part)).table
        texts = [text.replace('"blocks":', '"blocks": ') if task == clean.tasks[0] else text
                 for task, text in zip(table["task"].to_pylist(), table["payload"].to_pylist(), strict=True)]  # fmt: skip
        field = table.schema.field("payload")
        write_part(part, table.set_column(table.column_names.index("payload"), field, pa.array(texts, pa.string())))
    found = read_warm_start([run], target_graph, LEVELS)
    assert found.tasks == clean.tasks[1:]
    assert found.sources[0].left_out["poisoned"] == 1


def test_several_runs(short: Path, earlier: Path, tmp_path: Path) -> None:
    """Equal tasks count once; each run is named."""
    target_graph = unit_of(short)
    quick(short, tmp_path / "second", 12, seed=1)
    one, two = (read_warm_start([run], target_graph, LEVELS) for run in (earlier, tmp_path / "second"))
    both = read_warm_start([earlier, tmp_path / "second"], target_graph, LEVELS)
    assert both.tasks == tuple(dict.fromkeys([*one.tasks, *two.tasks]))
    assert len(both.tasks) < len(one.tasks) + len(two.tasks)
    assert both.sources == one.sources + two.sources


def test_a_run_begins_with_them(short: Path, earlier: Path, tmp_path: Path) -> None:
    """Known segments are not in the new log, the earlier champions are its first programs, and a resume comes to the same."""
    warm = (earlier,)
    summary = quick(short, tmp_path / "whole", 24, seed=7, warm_start=warm)
    log, before = read_log(tmp_path / "whole"), read_log(earlier)
    known = set(before.loc[(before["status"] == "ok") & (before["kind"] != "program"), "task"])
    assert known
    assert not known & set(log["task"])
    best = {level: before.loc[(before["kind"] == "program") & (before["level"] == level), "cycles"].min() for level in LEVELS}
    assert all(summary.own_cycles[level] <= best[level] for level in LEVELS)
    first = log[(log["kind"] == "program") & (log["generation"] <= 1)]
    assert all(first.loc[first["level"] == level, "cycles"].min() == best[level] for level in LEVELS)
    assert set(first["proposed_by"]) <= {"baseline", "prediction", "warm start", "shortest path"}
    assert "warm start" in set(first["proposed_by"])
    assert "tasks usable" in summary.warm_start[0]
    assert read_json(tmp_path / "whole" / "run.json")["warm_start"] == [*sources(warm, tmp_path / "x", False)]
    # interrupted, and gone on with: from the checkpoint, whatever became of the earlier run
    gone = tmp_path / "gone"
    shutil.copytree(earlier, gone)
    quick(short, tmp_path / "parts", 12, seed=7, warm_start=(gone,))
    with pytest.raises(BadInputError, match="began with"):
        quick(short, tmp_path / "parts", 24, seed=7, warm_start=(tmp_path / "whole",), resume=True)
    shutil.rmtree(gone)
    quick(short, tmp_path / "parts", 24, seed=7, resume=True)
    assert_equal_runs(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize(("column", "value", "options"), [("simulator", "0-older", {}), ("runner", "simulator", {"runner": SIMULATED})])
def test_a_run_begins_without_what_is_not_usable(
    short: Path, earlier: Path, tmp_path: Path, column: str, value: str, options: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of another version of the simulator, or of the simulator where a board measures: said, counted, and searched as without."""
    every = dict.fromkeys(read_log(earlier)["task"], value)
    old = altered(earlier, tmp_path / "old", **{column: every})
    few = ("segments.measured=2", "segments.candidates=4", "runner.readings=16", "runner.finalists=1")
    summary = quick(short, tmp_path / "warm", 4, *few, seed=7, warm_start=(old,), quiet=False, **options)
    quick(short, tmp_path / "cold", 4, *few, seed=7, **options)
    name, what = read_json(old / "run.json")["run"], "another simulator than" if column == "simulator" else "another runner"
    assert any(mentions(line, name, f"0 of {len(every)} tasks") for line in summary.warm_start)
    assert any(line.startswith(f"warm start: {name}: left out {len(every)} of {what}") for line in summary.warm_start)
    assert summary.warm_start[-1] == "warm start: nothing is usable, the search begins without it"
    assert len(summary.warm_start) == 3
    said = capsys.readouterr().err.splitlines()
    assert set(summary.warm_start) <= set(said)
    logs = [sorted_log(tmp_path / name).drop(columns="run") for name in ("warm", "cold")]
    pd.testing.assert_frame_equal(*logs, check_categorical=False)
    quick(short, tmp_path / "warm", 6, *few, seed=7, resume=True, **options)
    assert read_json(tmp_path / "warm" / "summary.json")["warm_start"] == [*summary.warm_start]


def test_an_earlier_log_that_has_changed(short: Path, earlier: Path, tmp_path: Path) -> None:
    target_graph = unit_of(short)
    said = sources([earlier], tmp_path, False)
    assert open_warm_start([earlier], said, target_graph, LEVELS) is not None
    assert open_warm_start([], (), target_graph, LEVELS) is None
    grown = altered(earlier, tmp_path / "grown", cycles={next(iter(read_log(earlier)["task"])): 5})
    with pytest.raises(BadInputError, match="has changed since"):
        open_warm_start([grown], said, target_graph, LEVELS)
    with pytest.raises(BadInputError, match="before its first checkpoint"):
        open_warm_start([], said, target_graph, LEVELS)


def test_no_run_is_refused(short: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"no run\.json"):
        read_warm_start([tmp_path], unit_of(short), LEVELS)
