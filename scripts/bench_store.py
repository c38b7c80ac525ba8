"""Cost of a look-up in a store compared with a measurement: a hit, a miss, and the start of a run.

    python scripts/bench_store.py [--model M] [--tasks N]

Figures are CPU seconds of one process, in turns: the same segments are measured, and taken from a store with N other tasks.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import simulator
from compiler.model import ModelSpec
from compiler.space.gene import Gene
from simulator.npu.machine_file import load_machine
from tuner.farm.store_client import Scopes
from tuner.log.drift import NO_BOARD
from tuner.log.record import RESULTS
from tuner.measure.evaluator import Evaluator
from tuner.measure.request import Measurement, Request
from tuner.measure.store_lookup import Memo
from tuner.platform.local_files import LocalPath
from tuner.store.pack_store import PackStore
from tuner.store.packs import Conditions, Measured, words
from tuner.zoo.load import open_network

ROUNDS = 5


def cpu_time_s(call: Callable[[], object]) -> float:
    """CPU seconds."""
    begin_s = time.process_time()
    call()
    return time.process_time() - begin_s


def fill_store(
    folder: Path, conditions: Conditions, scopes: Scopes, measured: Sequence[tuple[Request, Measurement]], others: int
) -> PackStore:
    """A store with these measurements and so many others that the network could meet."""
    store, rng = PackStore(LocalPath(folder), conditions), np.random.default_rng(0)
    values = np.stack([measurement.values for _, measurement in measured if measurement.values is not None])
    no_workers = np.full((len(values) + others, 2), None, object)
    scopes_of_tasks = [scopes.scope(request.task_kind, measurement.payload) for request, measurement in measured]
    task_scopes = np.concatenate([np.array(scopes_of_tasks, np.uint64), rng.choice(scopes.all_scopes, others)])
    tasks = np.concatenate([words([measurement.task for _, measurement in measured]), rng.integers(0, 1 << 63, (others, 2), np.uint64)])
    readings = np.concatenate([values, rng.integers(1, 1 << 20, (others, len(conditions.levels), len(RESULTS)))])
    table = Measured(task_scopes, tasks, readings, no_workers)
    for part in np.array_split(np.arange(len(tasks)), 1 + len(tasks) // 10_000):
        store.put(store.encoded({"run": "bench"}, table.select(part)))
    return store


def main(
    model: Annotated[Path, typer.Option(help="The network whose segments are measured.")] = Path("light:squeezenet"),
    machine_name: Annotated[str, typer.Option("--machine", help="A preset or a YAML file.")] = "edge",
    others: Annotated[int, typer.Option("--tasks", help="Other tasks in the store that the network could meet.")] = 100_000,
) -> None:
    """Cost of a look-up in a store compared with a measurement."""
    machine = load_machine(machine_name)
    target_graph = open_network(ModelSpec.named(model, machine, "float16", {}, None)).target_graph
    levels, count = tuple(machine.contention), len(target_graph.operators)
    genes = [Gene(i, j, blocks) for i in range(count) for j in (i + 1, i + 2, i + 3) if j <= count for blocks in (1, 2, 4)]
    requests = [Request("segment", (gene,)) for gene in genes]
    warm = Evaluator(target_graph, levels)
    measured = [(request, measurement) for request in requests if (measurement := warm.measure(request)).values is not None]
    scopes = Scopes(target_graph)
    print(f"{model} on {machine.name}: {len(measured)} segments at {len(levels)} levels, {others:,} others in the store")
    with tempfile.TemporaryDirectory() as folder:
        conditions = Conditions(machine.name, machine.digest, levels, simulator.VERSION, "simulator")
        store = fill_store(Path(folder), conditions, scopes, measured, others)
        size = sum(path.version()[1] for path in store.folder.iterdir())
        open_s = cpu_time_s(lambda: PackStore(LocalPath(folder), conditions).find_tasks(Scopes(target_graph).all_scopes))
        packed = PackStore(LocalPath(folder), conditions).find_tasks(scopes.all_scopes).packed
        opens = cpu_time_s(lambda: Memo(packed, len(levels), True))
        memo = Memo(packed, len(levels), True)
        tasks = [measurement.task for _, measurement in measured]
        unknown = [f"{number:032x}" for number in range(len(tasks))]
        ask_s, unaided_s, aided_s, hits, misses = ([0.0] * ROUNDS for _ in range(5))
        for k in range(ROUNDS):  # in turns
            for times, memo_in_use in ((unaided_s, None), (aided_s, memo)):
                evaluator = Evaluator(target_graph, levels)
                evaluator.memo = memo_in_use
                times[k] = cpu_time_s(lambda evaluator=evaluator: [evaluator.measure(request) for request, _ in measured])
            evaluator = Evaluator(target_graph, levels)
            ask_s[k] = cpu_time_s(
                lambda evaluator=evaluator: [evaluator.measure(Request("segment", request.genome, False)) for request, _ in measured]
            )
            hits[k] = cpu_time_s(lambda: [memo.find(task, NO_BOARD) for task in tasks])
            misses[k] = cpu_time_s(lambda: [memo.find(task, NO_BOARD) for task in unknown])
    us_per_task = 1e6 / len(measured)
    print(f"measured          {min(unaided_s) * us_per_task:8.1f} us each, of which plan and features {min(ask_s) * us_per_task:.1f} us")
    print(f"from the store    {min(aided_s) * us_per_task:8.1f} us each: {min(unaided_s) / min(aided_s):.1f} times less")
    share = min(misses) / min(unaided_s)
    print(
        f"a look-up         {min(hits) * us_per_task:8.2f} us for a hit, {min(misses) * us_per_task:.2f} us for a miss: "
        f"{share:.2%} of measuring"
    )
    print(f"to begin          {open_s:8.2f} s in the driver for {size:,} bytes, {opens:.2f} s in each worker")


if __name__ == "__main__":
    typer.run(main)
