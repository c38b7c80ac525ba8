"""What the studies of the search share: networks by name, searches without packaging, tables."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import simulator
from compiler.frontend import load_model, lower
from compiler.frontend.zoo import MADE, PREFIX, resolve
from compiler.tile.features import FEATURE_SET, FEATURES
from compiler.tile.spec import Unit
from compiler.tile.unit import make_unit
from simulator.npu.machine import DataType, load_machine
from tuner.backend import SerialBackend
from tuner.config import load_config
from tuner.evaluate import EvaluatorSpec
from tuner.log import FeatureSet, Origin, RunLog
from tuner.runner import Budget, BudgetSpent, Runner
from tuner.search.champions import Champions
from tuner.search.search import Search
from tuner.training import Trainer

_IDLE_GENERATIONS = 8  # so many without anything new: the space is exhausted


def network(name: str, machine: str) -> Unit:
    """A shipped network (its name, or `light:...`), a built one (`made:...`) or a file, without its weights' values."""
    path, seed = resolve(Path(name if ":" in name or name.endswith(".onnx") else PREFIX + name), None)
    return make_unit(lower(load_model(path, random_weights=seed)), load_machine(machine), DataType.float16).without_values()


def short(name: str) -> str:
    """The name as tables have it."""
    return Path(name.removeprefix(PREFIX).removeprefix(MADE)).name.removesuffix(".onnx")


def searched(unit: Unit, overrides: Sequence[str], seed: int, candidates: int) -> tuple[Champions, Search]:
    """A search of `candidates` measured programs in this process, as `tilefarm tune` does it; overrides: `a.b=c` texts."""
    levels, config = tuple(unit.machine.contention), load_config(None, overrides)
    champions, search = Champions(len(levels)), Search(unit, levels, config, seed, config.level_weights)
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / ".tmp").mkdir()
        (folder / "models").mkdir()
        origin = Origin("study", unit.graph.name, unit.machine.name, simulator.VERSION, seed=seed)
        trainer = Trainer(folder / "models", folder, levels, config.model, seed)
        with RunLog(folder, origin, (FeatureSet(FEATURE_SET, FEATURES),)) as log, SerialBackend(EvaluatorSpec(unit, levels)) as backend:
            runner = Runner(unit, unit.graph.name, levels, backend, log, champions, Budget(candidates))
            idle = 0
            try:
                while idle < _IDLE_GENERATIONS:
                    before = runner.seq
                    for _ in search.step(runner):
                        pass
                    if config.use.cost_model and trainer.due(search):
                        trainer.train(search, log, runner.seq)
                        runner.model_versions = [None if model is None else model.version for model in search.models]
                    idle = idle + 1 if runner.seq == before else 0
            except BudgetSpent:
                pass
    return champions, search


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """CSV; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
