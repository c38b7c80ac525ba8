"""Digests of searches, to compare two checkouts: logs, checkpoints, models, plans and compiled files.

    python scripts/hash_runs.py [--networks made:mobilenet_v1-small,...] [--machines edge-shared,...] [--programs N] [--seed S]

Prints a line per network and machine.  Each is searched twice on the serial backend: once to the end; and once in a process that SIGKILL
ends after half of its jobs, and then resumed.  Digests of the first search and, after `resumed`, of the second:

log         rows of `log/` without `worker`, `wall_s` and `time`, with names and types of columns
tasks       rows of `tasks/`, with names and types of columns
checkpoint  states and findings of all pieces, without the heads of the files
models      cost models and their history
plans       every file of `plans/`
file        `best.onnx`
summary     results in `summary.json`

A new version of the simulator or of the log format changes the lines.  Names of modules have no effect.

For a change that moves code: run before and after, and compare the lines.  A minute of one core, with compiled kernels.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from scripts.studies import model_named, network_list
from simulator.npu.errors import BadInputError, InfeasibleError, UnsupportedError
from tuner.driver import tune
from tuner.log.digests import canonical_json
from tuner.log.read import read_table
from tuner.runs.folder import read_json
from tuner.tune_request import Snapshot, TuneRequest

NETWORKS = "made:mobilenet_v1-small,made:bert_base-small,quantised=qdq"
MACHINES = "edge-shared,ascend310-l2"
PARTS = ("log", "tasks", "checkpoint", "models", "plans", "file", "summary")
VOLATILE = {"worker", "wall_s", "time"}
RESULTS = ("run", "levels", "candidates", "tasks", "failures", "instructions", "variants", "cost_model")
VOLATILE_STATE = ("core_s",)  # of a checkpoint: CPU time of the jobs
SETTINGS = (  # a model is trained, and every result is followed by a checkpoint
    *("use.packaged_model=false", "model.min_rows=60", "model.growth=0.5", "model.rounds=20"),
    *("segments.candidates=48", "segments.measured=16", "search.changes=8", "search.lag=4", "search.generation=4"),
    *("search.proposed=0.5", "farm.checkpoint_every_s=0.001"),
)


def digests(network: str, machine: str, programs: int, seed: int) -> str:
    """Digests of a network and machine, as the end of a line.  Raises `BadInputError` for an unknown name."""
    with TemporaryDirectory(prefix="tilefarm-hash-") as folder:
        first, second = (Path(folder) / name for name in ("first", "second"))
        jobs = list[Snapshot]()
        request = TuneRequest(
            model_named(network), machine, first, programs, seed=seed, overrides=SETTINGS, backend="serial", progress=jobs.append
        )
        try:
            tune(request)
        except (InfeasibleError, UnsupportedError) as error:
            return f"does not compile: {error}"
        request = replace(request, out=second, progress=None)
        process = get_context("spawn").Process(target=tune_until_killed, args=(request, len(jobs) // 2))
        process.start()
        process.join()
        if process.exitcode != -signal.SIGKILL:
            raise RuntimeError(f"{network} {machine}: the process to be killed ended with exit code {process.exitcode}")
        tune(replace(request, resume=True))
        return f"{_format_digests(run_digests(first))}; resumed: {_format_digests(run_digests(second))}"


def tune_until_killed(request: TuneRequest, jobs: int) -> None:
    """Run a search, and kill its process after a number of jobs."""
    allowance = iter(range(jobs))

    def progress(_: Snapshot) -> None:
        if next(allowance, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    tune(replace(request, progress=progress))


def run_digests(run: Path) -> dict[str, str]:
    """Digest of each of `PARTS` of a run folder."""
    hashes = {part: hashlib.sha256() for part in PARTS}
    for part, data in _contents(run):
        hashes[part].update(len(data).to_bytes(8, "little") + data)
    return {part: digest.hexdigest()[:12] for part, digest in hashes.items()}


def _format_digests(digests: dict[str, str]) -> str:
    return ", ".join(f"{part} {digest}" for part, digest in digests.items())


def _contents(run: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of each part of a run folder, without columns that vary; parts of one name in their order."""
    for name, order in (("log", ("run", "seq", "level_index")), ("tasks", ("task",))):
        table = read_table(run, name).table
        table = table.drop_columns([column for column in table.column_names if column in VOLATILE])
        rows = sorted(table.to_pylist(), key=itemgetter(*order))
        yield name, repr([(field.name, str(field.type)) for field in table.schema]).encode()
        yield name, repr(rows).encode()  # no JSON: what was not measured has features that are no numbers
    for path in sorted((run / "checkpoint").rglob("*.json")):
        state = {key: value for key, value in read_json(path)["state"].items() if key not in VOLATILE_STATE}
        yield "checkpoint", canonical_json(state).encode()
        yield "checkpoint", (path.parent / "findings.bin").read_bytes()
    for name in ("models", "plans"):
        for path in sorted(path for path in (run / name).rglob("*") if path.is_file()):
            yield name, str(path.relative_to(run)).encode()
            yield name, path.read_bytes()
    yield "file", (run / "best.onnx").read_bytes()
    summary = read_json(run / "summary.json")
    yield "summary", canonical_json([summary[key] for key in RESULTS]).encode()


def main(
    networks: Annotated[str, typer.Option(metavar="A,B", help="light:NAME, made:NAME or files.")] = NETWORKS,
    machines: Annotated[str, typer.Option(metavar="A,B")] = MACHINES,
    programs: Annotated[int, typer.Option(metavar="N", min=1, help="Measured programs of each search.")] = 24,
    seed: Annotated[int, typer.Option(help="Of the searches.")] = 0,
) -> None:
    """Digests of searches and of resumed searches, a line per network and machine: equal where two checkouts tune alike."""
    for network, machine in product(network_list(networks), machines.split(",")):
        try:
            line = digests(network, machine, programs, seed)
        except BadInputError as error:
            raise typer.BadParameter(str(error)) from None
        print(f"{network} {machine}: {line}", flush=True)


if __name__ == "__main__":
    typer.run(main)
