"""Training of the packaged cost model: random networks are generated and tuned briefly, and a model is trained on their logs.

    python scripts/make_cost_model.py [--out any.model] [--networks 12] [--candidates 12] [--machines edge,...] [--runs FOLDER]

Without --out it replaces the packaged model (`tuner.cost_model.packaged`) and its card.
Every network (`made:drawn,seed=K`) is tuned on some of the machines, which take turns: two searches at a time, each on one core; then
`tilefarm train` trains the model.  No named network is in the training data, so all of them can evaluate the model.  The same options give
the same bytes for any number of cores: nothing depends on the clock.  Runs stay in --runs, and complete ones are not repeated.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from simulator.npu.errors import TilefarmError
from simulator.npu.files import atomic_write
from simulator.npu.machine_file import load_machine, preset_names
from tuner.cost_model.packaged import CARD, FILE, MOST_BYTES, compress_model

ROOT = Path(__file__).resolve().parents[1]
FEW = (  # 24 segments for each job of two programs
    *("use.cost_model=false", "segments.candidates=96", "segments.measured=48", "search.lag=0", "search.generation=2"),
    "search.proposed=0.5",
)


class Item(NamedTuple):
    """A network on a machine, and where its run lies."""

    seed: int
    machine: str
    candidates: int
    out: Path


def tune_item(item: Item) -> str:
    """A line for a person."""
    from tuner.driver import tune
    from tuner.runs.list_runs import open_run
    from tuner.tune_request import TuneRequest

    if (item.out / "run.json").is_file() and open_run(item.out).summary is not None:
        return f"{item.out.name}: there"
    begin_s = time.monotonic()
    request = TuneRequest(
        Path(f"made:drawn,seed={item.seed}"), item.machine, item.out, item.candidates, overrides=FEW, backend="serial",
        random_weights=item.seed, resume=(item.out / "run.json").is_file(),
    )  # fmt: skip
    try:
        summary = tune(request)
    except TilefarmError as error:
        return f"{item.out.name}: left out: {error}"
    return f"{item.out.name}: {summary.tasks:,} tasks in {time.monotonic() - begin_s:.0f} s"


def items(networks: int, candidates: int, machines: list[str], each: int, runs: Path) -> Iterator[Item]:
    """Searches of every network, each on `each` machines, which take turns."""
    for seed in range(networks):
        for k in range(min(each, len(machines))):
            machine = machines[(seed * each + k) % len(machines)]
            yield Item(seed, machine, candidates, runs / f"drawn{seed}-{machine}")


def with_floats() -> list[str]:
    """Presets that multiply float16, which drawn networks are of."""
    return [name for name in preset_names() if "float16" in load_machine(name).matrix.data_types]


def main(
    out: Annotated[Path | None, typer.Option(help="The model's file; its card is beside it.  Without: into the package.")] = None,
    networks: Annotated[int, typer.Option(min=2, help="How many are drawn, with seeds from 0 on.")] = 12,
    candidates: Annotated[int, typer.Option(min=1, help="Measured programs of each.")] = 12,
    machines: Annotated[str, typer.Option(help="Comma-separated presets.")] = ",".join(with_floats()),
    each: Annotated[int, typer.Option(min=1, help="Machines of each network, which take turns.")] = 3,
    runs: Annotated[
        Path | None, typer.Option(help="Folder of the runs; OUT.runs unless given, build/packaged.runs for the package.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="At a time.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Trees of the model.")] = 400,
) -> None:
    """Make a cost model for any network and machine from networks that are drawn from seeds."""
    from tuner.cli import main as tilefarm

    packaged, out = out is None, out or ROOT / "build" / "packaged.model"
    folder = runs or out.with_name(f"{out.stem if packaged else out.name}.runs")
    folder.mkdir(parents=True, exist_ok=True)
    jobs = list(items(networks, candidates, machines.split(","), each, folder))
    with ProcessPoolExecutor(processes) as pool:
        for line in pool.map(tune_item, jobs):
            typer.echo(line)
    finished = [str(item.out) for item in jobs if (item.out / "summary.json").is_file()]
    if code := tilefarm(["train", *finished, "--out", str(out), "--set", f"model.rounds={rounds}", "--set", "model.learning_rate=0.1"]):
        raise typer.Exit(code)
    data = compress_model(out.read_bytes())
    typer.echo(f"{out}: {out.stat().st_size:,} bytes, {len(data):,} compressed, of at most {MOST_BYTES:,}")
    if out.stat().st_size > MOST_BYTES:
        raise typer.Exit(1)
    if packaged:
        atomic_write(ROOT / "tuner" / "learn" / FILE, [data])
        atomic_write(ROOT / "tuner" / "learn" / CARD, [out.with_name(f"{out.name}.json").read_bytes()])


if __name__ == "__main__":
    typer.run(main)
