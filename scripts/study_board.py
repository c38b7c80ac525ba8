"""Study of cost models on a board: searches with and without a model, at equal numbers of readings.

The board is a hidden machine: the preset with every value that `calibrate` fits changed by a random factor of 0.7 to 1.4, behind readings
with normal noise.  So its description is wrong, as for a real board, but the true cycles of a program can be simulated without noise.
Each arm searches with the same number of readings, including finals and canary:

| arm          | machine file                       | predicts                                                              |
|--------------|------------------------------------|-----------------------------------------------------------------------|
| `off`        | the preset                         | the built-in estimate                                                 |
| `on`         | the preset                         | the estimate, or a model of the run's own rows, whichever is better   |
| `packaged`   | the preset                         | the same, and the packaged model from the beginning                   |
| `calibrated` | fitted to the board by `calibrate` | the estimate; readings of the probes are extra, once for all networks |

Gain: cycles of the untuned program over those of the champions, both of the hidden machine without noise; the geometric mean over levels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer
import yaml

from compiler.build import default_plan
from compiler.model import ModelSpec
from compiler.plan.plan import Infeasible, Plan
from scripts.studies import PAIR, Pair, Row, Study, Table, geometric, groups, model_named, span
from simulator.npu.files import atomic_write
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from tuner.calibrate.hidden import hidden_machine
from tuner.calibrate.identify import calibrate_board
from tuner.calibrate.readings import ProbedBoard
from tuner.calibrate.write import name_calibrated
from tuner.driver import tune
from tuner.measure.npu_target import Npu
from tuner.measure.runner_api import Bench, Encoded, Reading
from tuner.measure.simulator_runner import SimulatedBoard
from tuner.tune_request import TuneRequest
from tuner.zoo.load import open_network
from tuner.zoo.names import resolve_model

ARMS = {
    "off": ("use.cost_model=false",),
    "on": ("use.cost_model=true", "use.packaged_model=false"),
    "packaged": ("use.cost_model=true", "use.packaged_model=true"),
    "calibrated": ("use.cost_model=false",),
}
BASE = "off"
HIDDEN: dict[str, Any] = {}
"""What is behind the runner of this process."""


class Board:
    """The hidden machine as a runner."""

    grants = True

    def __init__(self) -> None:
        self._board = SimulatedBoard(HIDDEN["machine"], HIDDEN["noise"], HIDDEN["seed"])

    def board(self) -> tuple[str, str]:
        return f"hidden-{HIDDEN['seed']}", "1"

    def __call__(self, program: Encoded, level: str) -> Reading:
        return self._board(program, level)


def cell(network: str, arm: str, nominal: Machine, fitted: Machine, seed: int, measurements: int, settings: Sequence[str]) -> Row:
    """Row of one search by the board, with the true cycles of its champions."""
    described = fitted if arm == "calibrated" else nominal
    model, weights = resolve_model(model_named(network), None)
    with TemporaryDirectory() as folder:
        machine, run = Path(folder) / "machine.yaml", Path(folder) / "RUN"
        atomic_write(machine, [yaml.safe_dump(described.model_dump(mode="json")).encode()])
        request = TuneRequest(
            model, str(machine), run, measurements=measurements, seed=seed, overrides=(*settings, *ARMS[arm]), backend="serial",
            random_weights=weights, runner="scripts.study_board:Board",
        )  # fmt: skip
        summary = tune(request)
        plans = {level: Plan.load(run / "plans" / "own" / f"{level}.json") for level in summary.levels}
        target_graph = open_network(ModelSpec.named(model, load_machine(str(machine)), "float16", {}, weights)).target_graph
        untuned_unit = open_network(ModelSpec.named(model, nominal, "float16", {}, weights)).target_graph
    tuned, untuned = (Npu(graph, tuple(plans), clock=HIDDEN["machine"]) for graph in (target_graph, untuned_unit))
    gains = []
    for position, (level, plan) in enumerate(plans.items()):
        base = default_plan(untuned_unit, level)
        assert not isinstance(base, Infeasible)
        baseline_program, tuned_program = untuned.program(base), tuned.program(plan)
        assert isinstance(baseline_program, np.ndarray)
        assert isinstance(tuned_program, np.ndarray)
        gains.append(baseline_program[position, 0] / tuned_program[position, 0])
    use = summary.measurements
    row: Row = {"arm": arm, "measurements": measurements, "gain": geometric(np.array(gains))}
    return row | {"programs": summary.candidates, "tasks": summary.tasks, "read": use.asked, "finals": use.finals, "canary": use.canary}


@cache
def fit_machine(described: str, noise: float, seed: int) -> tuple[Machine, int]:
    """The machine file of the board, and the readings that it took.  described: the machine in JSON."""
    calibration = calibrate_board(
        ProbedBoard("hidden", Bench(SimulatedBoard(HIDDEN["machine"], noise, seed)), Machine.model_validate_json(described))
    )
    return name_calibrated(calibration.machine), calibration.readings


def rows(arms: Sequence[str], budgets: Sequence[int], noise: float, settings: Sequence[str], pair: Pair) -> Iterator[Row]:
    """Row per budget and arm."""
    described = pair.target_graph.machine
    HIDDEN.update(machine=hidden_machine(described, pair.seed + 1), noise=noise, seed=pair.seed)
    fitted, readings = fit_machine(described.model_dump_json(), noise, pair.seed) if "calibrated" in arms else (described, None)
    for count in budgets:
        for arm in arms:
            yield cell(pair.name, arm, described, fitted, pair.seed, count, settings) | {"calibrated_by": readings}


def show(rows: Sequence[Row]) -> Iterator[Table | str]:
    """A row per network and budget, then the arms against the one without a model, in pairs of equal network, seed and budget."""
    table = []
    for (network, measurements), group in groups(rows, "network", "measurements").items():
        gains = {arm: geometric([row["gain"] for row in arm_rows]) for (arm,), arm_rows in groups(group, "arm").items()}
        table.append({"network": network, "measurements": measurements, **gains})
    yield Table.from_rows(table, "<network", "measurements", *(f"{arm}:.3fx" for arm in ARMS))
    yield ""
    cases = [{row["arm"]: row["gain"] for row in group} for group in groups(rows, *PAIR, "measurements").values()]
    for arm in ARMS:
        ratios = np.array([gains[arm] / gains[BASE] for gains in cases if {arm, BASE} <= gains.keys()])
        if arm != BASE and len(ratios):
            note = f"{geometric(ratios):.4f} of the gain without a model, in {len(ratios)} pairs"
            yield f"{arm}: {note} (95% interval {span(ratios, '.4f')})"
    for (machine, seed, readings), _ in groups(rows, "machine", "seed", "calibrated_by").items():
        if readings:
            yield f"{machine}, seed {seed}: calibrate took {readings:,} readings, once"


def on_board(
    study: Study,
    measurements: Annotated[str, typer.Option(help="Comma-separated budgets.")] = "3000",
    arms: Annotated[str, typer.Option(help="Comma-separated.")] = ",".join(ARMS),
    noise: Annotated[float, typer.Option(min=0, help="Standard deviation of a reading, in parts of it.")] = 0.02,
) -> Study:
    design = (tuple(arms.split(",")), tuple(map(int, measurements.split(","))), noise)
    return replace(study, rows=partial(rows, *design, study.overrides), inputs=design)


STUDY = Study("board", {}, partial(rows, (), (), 0.0, ()), show, "squeezenet,shufflenet", seeds=2, options=on_board)
