"""What a look-up in a store costs, against measuring: a hit, a miss, and what a run pays to begin.

    python scripts/bench_store.py [--model M] [--tasks N]

All are CPU seconds of one process, in turns: the same segments are measured, and taken from a store that has them among N others.
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
from tuner.log.drift import NOTHING_SAID
from tuner.log.record import RESULTS
from tuner.measure.evaluator import Evaluator
from tuner.measure.request import Measurement, Request
from tuner.measure.store_lookup import Memo
from tuner.platform.local_files import LocalPath
from tuner.store.pack_store import PackStore
from tuner.store.packs import Conditions, Measured, words
from tuner.zoo.load import open_network

ROUNDS = 5


def spent(call: Callable[[], object]) -> float:
    """CPU seconds."""
    begun = time.process_time()
    call()
    return time.process_time() - begun


def filled(folder: Path, conditions: Conditions, scopes: Scopes, measured: Sequence[tuple[Request, Measurement]], others: int) -> PackStore:
    """A store with these measurements and so many others that the network could meet."""
    store, rng = PackStore(LocalPath(folder), conditions), np.random.default_rng(0)
    values = np.stack([each.values for _, each in measured if each.values is not None])
    nobody = np.full((len(values) + others, 2), None, object)
    mine = [scopes.of(request.task_kind, each.payload) for request, each in measured]
    of = np.concatenate([np.array(mine, np.uint64), rng.choice(scopes.every, others)])
    tasks = np.concatenate([words([each.task for _, each in measured]), rng.integers(0, 1 << 63, (others, 2), np.uint64)])
    every = np.concatenate([values, rng.integers(1, 1 << 20, (others, len(conditions.levels), len(RESULTS)))])
    whole = Measured(of, tasks, every, nobody)
    for part in np.array_split(np.arange(len(tasks)), 1 + len(tasks) // 10_000):
        store.put(store.encoded({"run": "bench"}, whole.of(part)))
    return store


def main(
    model: Annotated[Path, typer.Option(help="The network whose segments are measured.")] = Path("light:squeezenet"),
    machine_name: Annotated[str, typer.Option("--machine", help="A preset or a YAML file.")] = "edge",
    others: Annotated[int, typer.Option("--tasks", help="Other tasks in the store that the network could meet.")] = 100_000,
) -> None:
    """What a look-up in a store costs, against measuring."""
    machine = load_machine(machine_name)
    target_graph = open_network(ModelSpec.named(model, machine, "float16", {}, None)).target_graph
    levels, count = tuple(machine.contention), len(target_graph.operators)
    genes = [Gene(i, j, blocks) for i in range(count) for j in (i + 1, i + 2, i + 3) if j <= count for blocks in (1, 2, 4)]
    requests = [Request("segment", (gene,)) for gene in genes]
    warm = Evaluator(target_graph, levels)
    measured = [(request, each) for request in requests if (each := warm.measure(request)).values is not None]
    scopes = Scopes(target_graph)
    print(f"{model} on {machine.name}: {len(measured)} segments at {len(levels)} levels, {others:,} others in the store")
    with tempfile.TemporaryDirectory() as folder:
        conditions = Conditions(machine.name, machine.digest, levels, simulator.VERSION, "simulator")
        store = filled(Path(folder), conditions, scopes, measured, others)
        size = sum(path.version()[1] for path in store.folder.iterdir())
        begins = spent(lambda: PackStore(LocalPath(folder), conditions).find_tasks(Scopes(target_graph).every))
        packed = PackStore(LocalPath(folder), conditions).find_tasks(scopes.every).packed
        opens = spent(lambda: Memo(packed, len(levels), True))
        memo = Memo(packed, len(levels), True)
        tasks = [each.task for _, each in measured]
        unknown = [f"{at:032x}" for at in range(len(tasks))]
        asks, alone, taken, hits, misses = ([0.0] * ROUNDS for _ in range(5))
        for k in range(ROUNDS):  # in turns
            for times, found in ((alone, None), (taken, memo)):
                evaluator = Evaluator(target_graph, levels)
                evaluator.memo = found
                times[k] = spent(lambda at=evaluator: [at.measure(request) for request, _ in measured])
            evaluator = Evaluator(target_graph, levels)
            asks[k] = spent(lambda at=evaluator: [at.measure(Request("segment", request.genome, False)) for request, _ in measured])
            hits[k] = spent(lambda: [memo.find(task, NOTHING_SAID) for task in tasks])
            misses[k] = spent(lambda: [memo.find(task, NOTHING_SAID) for task in unknown])
    each = 1e6 / len(measured)
    print(f"measured          {min(alone) * each:8.1f} us each, of which plan and features {min(asks) * each:.1f} us")
    print(f"from the store    {min(taken) * each:8.1f} us each: {min(alone) / min(taken):.1f} times less")
    share = min(misses) / min(alone)
    print(f"a look-up         {min(hits) * each:8.2f} us for a hit, {min(misses) * each:.2f} us for a miss: {share:.2%} of measuring")
    print(f"to begin          {begins:8.2f} s in the driver for {size:,} bytes, {opens:.2f} s in each worker")


if __name__ == "__main__":
    typer.run(main)
