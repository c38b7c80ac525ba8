"""What a run takes from an earlier one of a network with other channels: segments to try first, and what they may take."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from compiler.cost.features import expected_cycles
from compiler.source import Source, open_source
from compiler.space.forms import Forms, runs
from compiler.unit.unit import Unit
from simulator.npu.errors import BadInputError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.models import Builder
from tests.tuning import assert_equal_runs, quick
from tuner.farm.warm_start import WarmStart, lines, read_warm_start, sources, taken
from tuner.measure.evaluate import Evaluator
from tuner.measure.measurement import Request
from tuner.store.read import read_log
from tuner.store.runfolder import read_json

LEVELS = ("none", "slight", "severe")
ELITES = 4
KERNELS = (3, 3, 1, 3, 1)


def model(path: Path, channels: int, size: int = 24, kernels: tuple[int, ...] = KERNELS, behind: int = 0) -> Path:
    """A chain of convolutions, half of them with a ReLU.  behind: channels of as many more."""
    b = Builder(np.random.default_rng(0), (1, channels, size, size))
    tensor = "x"
    for width in (channels, *([behind] if behind else ())):
        for at, kernel in enumerate(kernels):
            tensor = b.conv(tensor, width * (1 + at % 2), kernel=(kernel, kernel), pads=(kernel // 2,) * 4)
            tensor = b.relu(tensor) if at % 2 else tensor
    onnx.save(b.model(tensor), path)
    return path


def unit_of(path: Path) -> Unit:
    return open_source(Source(path, load_machine("edge"), DataType.float16)).unit


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model(tmp_path_factory.mktemp("models") / "narrow.onnx", 32)


@pytest.fixture(scope="module")
def wide(narrow: Path) -> Path:
    return model(narrow.with_name("wide.onnx"), 80)


@pytest.fixture(scope="module")
def earlier(narrow: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "earlier"
    quick(narrow, run, 48)
    return run


def read(run: Path, unit: Unit) -> WarmStart:
    return read_warm_start([run], unit, LEVELS, ELITES)


def test_forms_know_all_but_channels(tmp_path: Path) -> None:
    def forms(*of: object) -> list[str]:
        unit = unit_of(model(tmp_path / "m.onnx", *of))  # type: ignore[arg-type]
        found = Forms(unit)
        return [found.form(*run) for run in runs(unit)]

    mine = forms(32)
    assert forms(80) == mine
    assert not set(forms(32, 20)) & set(mine), "other rows"
    other = forms(32, 24, (3, 1, 1, 3, 1))
    assert [a == b for a, b in zip(other, mine, strict=True)] == [
        not start <= 1 < stop for start, stop in runs(unit_of(tmp_path / "m.onnx"))
    ]


def test_hints_fit_and_take_about_what_is_expected(wide: Path, earlier: Path) -> None:
    unit = unit_of(wide)
    found = read(earlier, unit)
    assert not found.tasks
    assert not found.programs
    assert len(found.hints) == found.sources[0].alike > 20
    evaluator, off, estimated = Evaluator(unit, LEVELS), [], []
    for gene, expected in found.hints:
        measurement = evaluator.measure(Request("segment", (gene,)))
        assert measurement.cycles is not None, "it fits"
        assert measurement.features is not None
        estimate = [expected_cycles(measurement.features[None], unit.machine.contention[level])[0] for level in LEVELS]
        off.append(np.abs(np.log(measurement.cycles / expected)))
        estimated.append(np.abs(np.log(measurement.cycles / estimate)))
    assert np.mean(off) < 0.7 * np.mean(estimated)
    assert len({evaluator.structures.key(hint.gene) for hint in found.hints}) == len(found.hints)
    said = list(lines(found))
    assert said[-1] == f"warm start: 0 segments are known, 0 programs are measured first, {len(found.hints)} segments are tried first"


def test_only_where_nothing_equal_is_known(narrow: Path, earlier: Path, tmp_path: Path) -> None:
    """Of the same network nothing is alike; of one that begins with the same layers, what comes behind in other sizes."""
    assert not read(earlier, unit_of(narrow)).hints
    longer = unit_of(model(tmp_path / "longer.onnx", 32, behind=80))
    found, evaluator = read(earlier, longer), Evaluator(longer, LEVELS)

    def structures(genes: object) -> set[str]:
        return {evaluator.structures.structure(gene.start, gene.stop) for gene in genes}  # type: ignore[attr-defined]

    assert found.genes
    assert found.hints
    assert not structures(found.genes) & structures(hint.gene for hint in found.hints)


@pytest.mark.usefixtures("local_ray")
def test_a_run_begins_with_hints(wide: Path, earlier: Path, tmp_path: Path) -> None:
    """They come before anything evolves; two workers and a resume come to the same."""
    quick(wide, tmp_path / "whole", 24, seed=7, warm_start=(earlier,))
    first = read_log(tmp_path / "whole").query("generation == 1")
    programs = first[first["kind"] == "program"]
    untuned = read_log(tmp_path / "whole").query("generation == 0")
    for level in LEVELS:
        assert programs.loc[programs["level"] == level, "cycles"].min() < untuned.loc[untuned["level"] == level, "cycles"].min()
    hints = first[(first["kind"] != "program") & first["predicted_cycles"].notna()]
    assert len(hints) > 3
    quick(wide, tmp_path / "two", 24, seed=7, warm_start=(earlier,), backend="ray", workers=2)
    assert_equal_runs(tmp_path / "whole", tmp_path / "two")
    gone = tmp_path / "gone"
    shutil.copytree(earlier, gone)
    quick(wide, tmp_path / "parts", 12, seed=7, warm_start=(gone,))
    shutil.rmtree(gone)
    quick(wide, tmp_path / "parts", 24, seed=7, resume=True)
    assert_equal_runs(tmp_path / "whole", tmp_path / "parts")


def test_a_model_that_is_gone(narrow: Path, wide: Path, earlier: Path, tmp_path: Path) -> None:
    """Nothing is alike without it, and the run's identity says so; a model of the same name that computes something else is none."""
    unit, there = unit_of(wide), sources([earlier], tmp_path, False)
    assert read_json(earlier / "source.json")["model"] == str(narrow)
    kept = narrow.read_bytes()
    try:
        narrow.unlink()
        gone = sources([earlier], tmp_path, False)
        assert (gone[0].split()[:2], gone[0].split()[2]) == (there[0].split()[:2], "-")
        assert not read(earlier, unit).hints
        with pytest.raises(BadInputError, match="its log or its model has changed"):
            taken([earlier], there, unit, LEVELS, ELITES)
        model(narrow, 48)
        assert sources([earlier], tmp_path, False) not in (gone, there)
        assert not read(earlier, unit).hints
    finally:
        narrow.write_bytes(kept)
    assert read(earlier, unit).hints
