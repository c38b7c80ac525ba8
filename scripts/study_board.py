"""Does a cost model help where a board measures, at equal measurements?

The board is a hidden machine: the preset with every value that `calibrate` fits changed by a random factor of 0.7 to 1.4, behind readings
with normal noise.  So what is known of it is wrong, as of a real one, and yet what a program takes there can be looked up without noise.
Each arm searches with the same number of readings, finals and canary among them:

| arm          | machine file                       | predicts                                                             |
|--------------|------------------------------------|----------------------------------------------------------------------|
| `off`        | the preset                         | the built-in estimate                                                |
| `on`         | the preset                         | the estimate, or a model of the run's own rows, whichever is better   |
| `packaged`   | the preset                         | the same, and from the beginning the model that comes along           |
| `calibrated` | fitted to the board by `calibrate` | the estimate; its probes' readings come on top, once for all networks |

Gain: cycles of the untuned program over those of the champions, both of the hidden machine without noise; the geometric mean over levels.
A cell is a JSON file in the folder, and is not computed again.

    python scripts/study_board.py --out board
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from compiler.build import default_plan
from compiler.model import ModelSpec
from compiler.plan.plan import Infeasible, Plan
from scripts import study_board as board_module
from scripts.studies import Json, Out, Row, Seeds, Set, Table, finish, geometric, interval, model_named, spent_s, write_rows
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
        self._asked = SimulatedBoard(HIDDEN["machine"], HIDDEN["noise"], HIDDEN["seed"])

    def board(self) -> tuple[str, str]:
        return f"hidden-{HIDDEN['seed']}", "1"

    def __call__(self, program: Encoded, level: str) -> Reading:
        return self._asked(program, level)


def cell(network: str, arm: str, given: Machine, fitted: Machine, seed: int, measurements: int, settings: Sequence[str]) -> Row:
    """One search by the board, and what its champions take there."""
    described = fitted if arm == "calibrated" else given
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
        untuned_unit = open_network(ModelSpec.named(model, given, "float16", {}, weights)).target_graph
    tuned, untuned = (Npu(each, tuple(plans), clock=HIDDEN["machine"]) for each in (target_graph, untuned_unit))
    gains = []
    for at, (level, plan) in enumerate(plans.items()):
        base = default_plan(untuned_unit, level)
        assert not isinstance(base, Infeasible)
        before, after = untuned.program(base), tuned.program(plan)
        assert isinstance(before, np.ndarray)
        assert isinstance(after, np.ndarray)
        gains.append(before[at, 0] / after[at, 0])
    use = summary.measurements
    row: Row = {"network": network, "seed": seed, "arm": arm, "measurements": measurements, "gain": geometric(np.array(gains))}
    return row | {"programs": summary.candidates, "tasks": summary.tasks, "read": use.asked, "finals": use.finals, "canary": use.canary}


def shown(rows: Sequence[Row], calibrations: Sequence[Row]) -> Iterator[Table | str]:
    """A row per network and budget, then the arms against the one without a model, in pairs of equal network, seed and budget."""
    gains = {(row["network"], row["measurements"], row["seed"], row["arm"]): row["gain"] for row in rows}
    table = []
    for network, measurements in dict.fromkeys((row["network"], row["measurements"]) for row in rows):
        mine = {arm: [gain for key, gain in gains.items() if (*key[:2], key[3]) == (network, measurements, arm)] for arm in ARMS}
        table.append([network, measurements, *(f"{geometric(np.array(found)):.3f}x" if found else "" for found in mine.values())])
    yield Table(["<network", "measurements", *ARMS], table)
    yield ""
    for arm in ARMS:
        ratios = np.array([gain / gains[*key, BASE] for (*key, other), gain in gains.items() if other == arm and (*key, BASE) in gains])
        if arm != BASE and len(ratios):
            low, high = interval(ratios, geometric)
            yield (
                f"{arm}: {geometric(ratios):.4f} of the gain without a model, in {len(ratios)} pairs (95% interval {low:.4f} to {high:.4f})"
            )
    for row in calibrations:
        yield f"seed {row['seed']}: calibrate took {row['readings']:,} readings, once"


def main(
    out: Out,
    networks: Annotated[
        str, typer.Option(help="Comma-separated: shipped networks, light:NAME, made:NAME or files.")
    ] = "squeezenet,shufflenet",
    machine: Annotated[str, typer.Option(help="A preset; the board is its hidden twin.")] = "edge",
    seeds: Seeds = 2,
    measurements: Annotated[str, typer.Option(help="Comma-separated budgets.")] = "3000",
    arms: Annotated[str, typer.Option(help="Comma-separated.")] = ",".join(ARMS),
    noise: Annotated[float, typer.Option(min=0, help="Standard deviation of a reading, in parts of it.")] = 0.02,
    settings: Set = None,
    as_json: Json = False,
) -> None:
    """Cost models on a noisy board, at equal measurements."""
    given, rows, calibrations = load_machine(machine), list[Row](), list[Row]()
    for seed in range(seeds):
        board_module.HIDDEN.update(machine=hidden_machine(given, seed + 1), noise=noise, seed=seed)
        HIDDEN.update(board_module.HIDDEN)
        fitted = given
        if "calibrated" in arms.split(","):
            found = calibrate_board(ProbedBoard("hidden", Bench(SimulatedBoard(HIDDEN["machine"], noise, seed)), given))
            fitted = name_calibrated(found.machine)
            calibrations.append({"seed": seed, "readings": found.readings})
        for network in networks.split(","):
            for count in map(int, measurements.split(",")):
                for arm in arms.split(","):
                    path = out / f"{Path(network.replace(':', '_')).name}-{seed}-{count}-{arm}.json"
                    if not path.is_file():
                        row = cell(network, arm, given, fitted, seed, count, settings or ())
                        out.mkdir(parents=True, exist_ok=True)
                        atomic_write(path, [json.dumps(row).encode()])
                    rows.append(json.loads(path.read_bytes()))
                    write_rows(out / "board.csv", rows)
    finish("board", out, [*rows, *calibrations], shown(rows, calibrations), spent_s(), as_json)


if __name__ == "__main__":
    typer.run(main)
