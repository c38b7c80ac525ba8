"""Study of earlier runs: readings saved for a related network by their measurements.

Each network is searched after an earlier one, in five arms; only the first has all readings:

| arm       | readings | begins with                                                     |
|-----------|----------|-----------------------------------------------------------------|
| `all`     | all      | only the packaged model                                         |
| `quarter` | 1/4      | the same                                                        |
| `warm`    | 1/4      | the earlier run's measurements of equal tasks (`--warm-start`)  |
| `model`   | 1/4      | a model of the earlier run's log (`train`, `--model`)           |
| `both`    | 1/4      | both of them                                                    |

Per level: cycles of the best program over those of `all`; below 1 is faster.  Goal: within 1% in the geometric mean over related networks,
levels and seeds.  The last pair is unrelated: it shows the cost of misleading data.  Readings and CPU time are of the search alone; the
earlier run has as many readings as `all`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import simulator
import tuner
from scripts.studies import Arm, Key, Pair, Row, Study, Table, geometric, goal, groups, model_named, network_list, short, span
from simulator.npu.files import write_atomically
from tuner.config import load_config
from tuner.cost_model.offline_training import model_of_runs
from tuner.cost_model.training_rows import read_logged
from tuner.log.digests import digest
from tuner.platform.local_files import LocalPath

ALL = "all"
COLD = "quarter"
QUARTER = (COLD, "warm", "model", "both")
WARM, MODEL = ("warm", "both"), ("model", "both")
SAME = 1.01
BERT = "made:bert_base,layers={},width={},heads={}"
PAIRS = {
    "made:resnet101": "made:resnet50",
    "made:mobilenet_v2,width=1.4": "made:mobilenet_v2",
    BERT.format(8, 512, 8): BERT.format(4, 384, 6),  # as large to base: twice the layers, 4/3 of the width and heads
    "shufflenet": "made:resnet50",
}
UNRELATED = ("shufflenet",)


def rows(pair: Pair) -> Iterator[Row]:
    """Row per arm and level."""
    for arm, result in pair.results.items():
        readings = int(result.log["readings"].sum())
        for level in pair.levels:
            ratio = result.cycles[level] / pair.results[ALL].cycles[level]
            yield {"arm": arm, "level": level, "over": ratio, "readings": readings, "cpu_s": pair.cpu_s[arm]}


def warm_start_fields(
    out: Path, earlier: Mapping[str, str], measurements: int, settings: Sequence[str], arm: str, pair: Key
) -> dict[str, Any]:
    """Search fields of an arm; the earlier run is made if absent."""
    if arm not in (*WARM, *MODEL):
        return {}
    (network, machine, seed), fields = pair, dict[str, Any]()
    name = earlier[network]
    run = out / "runs" / f"{short(name)}-{digest([name, machine, seed, measurements, settings, simulator.VERSION])[:16]}"
    if not (run / "summary.json").is_file():
        search_options = {"seed": seed, "measurements": measurements, "overrides": tuple(settings), "backend": "serial"}
        tuner.tune(model_named(name), machine, run, resume=run.is_dir(), **search_options)
    if arm in WARM:
        fields["warm_start"] = (run,)
    if arm in MODEL:
        fields["prior"] = run.with_suffix(".model")
        if not fields["prior"].is_file():
            model = model_of_runs(read_logged([str(run)]), load_config(None, settings).model, 0).model
            write_atomically(LocalPath(fields["prior"]), [model.model.encoded(model.kind)])
    return fields


def show(rows: Sequence[Row]) -> Iterator[Table | str]:
    """A row per network and arm, then the means over related networks and over the others."""
    levels = list(dict.fromkeys(row["level"] for row in rows))
    table = []
    for (network, arm), group in groups(rows, "network", "arm").items():
        ratios = (f"{geometric([row['over'] for row in group if row['level'] == level]):.3f}" for level in levels)
        readings, cpu_s = (np.mean([row[key] for row in group]) for key in ("readings", "cpu_s"))
        table.append((network, arm, *ratios, round(readings), f"{cpu_s:.0f}"))
    yield "cycles over those of the search with all readings"
    yield Table(("<network", "<arm", *levels, "readings", "CPU s"), table)
    unrelated = {short(name) for name in UNRELATED}
    for title, related in (("related", True), ("unrelated", False)):
        group = [row for row in rows if (row["network"] not in unrelated) == related and row["arm"] != ALL]
        if not group:
            continue
        yield f"{title} networks: geometric mean and 95% interval over pairs of network and seed"
        table = []
        for (arm,), arm_rows in groups(group, "arm").items():
            level_ratios = [np.array([row["over"] for row in arm_rows if row["level"] == level]) for level in levels]
            means = np.exp(np.mean([np.log(values) for values in level_ratios], axis=0))
            table.append((arm, *(f"{geometric(ratios):.3f} ({span(ratios, '.3f')})" for ratios in (*level_ratios, means))))
            if related and arm in (*WARM, *MODEL):
                reached = geometric(means) <= SAME
                yield f"goal, {SAME:g} with a quarter of the readings, {arm}: {geometric(means):.4f}, {goal(reached)}"
        yield Table(("<arm", *levels, "levels together"), table)


def after_earlier(
    study: Study,
    earlier: Annotated[str, typer.Option(help="Comma-separated: what was searched before each of them.")] = ",".join(PAIRS.values()),
    measurements: Annotated[int, typer.Option(min=4, help="Readings of a search with all of them.")] = 12800,
) -> Study:
    earlier_networks = dict(zip(network_list(study.networks), network_list(earlier), strict=True))
    budget = {ALL: measurements} | dict.fromkeys(QUARTER, measurements // 4)
    arms = {arm: Arm(("budget.candidates=null", f"budget.measurements={count}")) for arm, count in budget.items()}
    search_fields = partial(warm_start_fields, study.out, earlier_networks, measurements, study.overrides)
    return replace(study, arms=arms, search_fields=search_fields, inputs=tuple(sorted(earlier_networks.items())))


STUDY = Study("prior", {}, rows, show, ",".join(PAIRS), seeds=2, options=after_earlier)
