"""Study of single settings of the search: other settings against the default, at equal numbers of measured programs.

By default every switch of the search is inverted, one at a time (an ablation).  With --config FILE (for example the best.yaml of a study):
that file against the default.  With --settings "a.b=c d.e=f", repeatable: each of them; `budget.candidates=N` among them sets the number of
programs of that arm, for comparisons at equal time.

Per network and seed: champions' cycles with the other settings over those with the default, the geometric mean over the levels.  Over all
pairs of network and seed: its geometric mean with the 95% interval of a bootstrap over the pairs.  Above 1 the default is better; an
interval that contains 1 is inconclusive.  CPU: processor seconds of the searches, all pairs.  With --clock all programs are timed on
another machine than the one they are compiled for: a board that differs from its description.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
import yaml

from scripts.studies import PAIR, Arm, Pair, Row, Study, Table, geometric, groups, interval, measured_on, over_pairs, span
from simulator.npu.errors import BadInputError
from tuner.config import leaves, load_config

DEFAULT = "default"
SWITCHED = {
    "no segmentations": ("use.segmentations=false",),
    "no cost model": ("use.cost_model=false",),
    "no packaged model": ("use.packaged_model=false",),
    "no lag": ("search.lag=0",),
    "a lag of 64": ("search.lag=64",),
    "the file's order": ("search.order=file",),
    "no sliding windows": ("use.window=false",),
    "no halo cache": ("use.halo_cache=false",),
    "no prefetch": ("use.prefetch=false",),
    "whole tensors only": ("use.block_fusion=false",),
    "no passes": ("use.passes=false",),
    "nothing held": ("use.held=false",),
    "no lookahead": ("use.lookahead=false",),
    "segmentations alone": ("search.proposed=1.0", "search.changes=0"),  # no children
}


def differences(file: str) -> tuple[str, ...]:
    """Changes of a configuration to the default, as `a.b=c` texts, without the budget, the farm and the study."""
    default, changed_config = (dict(leaves(config.model_dump(mode="json"))) for config in (load_config(), load_config(file)))
    differing = {path: value for path, value in changed_config.items() if value != default.get(path)}
    settings = tuple(
        f"{path}={yaml.safe_dump(value, default_flow_style=True).splitlines()[0]}"
        for path, value in differing.items()
        if path.partition(".")[0] not in ("budget", "farm", "study")
    )
    if not settings:
        raise BadInputError(f"--config {file}: changes nothing of the default that could change a result")
    return settings


def rows(pair: Pair) -> Iterator[Row]:
    base = pair.results[DEFAULT].cycles
    for name, result in pair.results.items():
        programs = int((result.log["kind"] == "program").sum()) // len(base)
        for level, cycles in result.cycles.items():
            columns = {"level": level, "cycles": cycles, "over_default": cycles / base[level]}
            yield {"settings": name, "programs": programs, "cpu_s": pair.cpu_s[name], **columns}


def compared(rows: Sequence[Row]) -> Iterator[Table | str]:
    """Ratio of every arm per pair, over the levels, and their mean."""
    arms, table = groups(rows, "settings"), []
    for (name,), arm_rows in arms.items():
        if name == DEFAULT:
            continue
        ratios = over_pairs(arm_rows, "over_default")
        low, high = interval(ratios, geometric)
        verdict = "helps" if low > 1 else "harms" if high < 1 else "no difference shown"
        texts = (f"{geometric(ratios):.4f}", span(ratios, ".4f"), f"{ratios.min():.4f}", f"{ratios.max():.4f}")
        table.append((name, len(ratios), *texts, f"{total_cpu_s(arm_rows) / total_cpu_s(arms[DEFAULT,]):.2f}", verdict))
    if len(arms) == 2:
        yield from _pair_table(rows)
    yield "cycles over those of the default settings, geometric mean over levels and pairs"
    yield Table(("<settings", "pairs", "over default", "95% interval", "least", "most", "CPU", "<what the default has"), table)


def total_cpu_s(rows: Sequence[Row]) -> float:
    """CPU seconds of the searches of an arm, whose rows repeat them for every level."""
    return sum(levels[0]["cpu_s"] for levels in groups(rows, *PAIR).values())


def _pair_table(rows: Sequence[Row]) -> Iterator[Table | str]:
    """Ratios of a single arm at every level, their mean, and the CPU time of both searches."""
    table, levels = [], list(dict.fromkeys(row["level"] for row in rows))
    for (network, machine, seed), pair_rows in groups(rows, *PAIR).items():
        default, changed_rows = groups(pair_rows, "settings").values()
        ratios, cpu_s, others_s = [row["over_default"] for row in changed_rows], default[0]["cpu_s"], changed_rows[0]["cpu_s"]
        texts = (f"{ratio:.4f}" for ratio in (*ratios, geometric(ratios)))
        table.append((network, machine, seed, *texts, f"{cpu_s:.1f}", f"{others_s:.1f}", f"{others_s / cpu_s:.2f}"))
    yield "cycles over those of the default settings by pair, and CPU seconds of both searches"
    yield Table(("<network", "<machine", "seed", *levels, "mean", "default s", "s", "CPU"), table)


def compare(
    study: Study,
    config: Annotated[str | None, typer.Option(help="A configuration to compare instead of the switches.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option(help="`a.b=c d.e=f`: settings to compare instead of the switches; repeatable.")
    ] = None,
    only: Annotated[str | None, typer.Option(help=f"Comma-separated, of: {', '.join(SWITCHED)}.")] = None,
    clock: Annotated[str | None, typer.Option(help="Machine that programs are timed on, where it is not the one described.")] = None,
) -> Study:
    if config is not None:
        arms = {Path(config).stem: differences(config)}
    elif settings:
        arms = {text: tuple(text.split()) for text in settings}
    else:
        arms = {name: SWITCHED[name] for name in (only.split(",") if only else SWITCHED)}
    measured = None if clock is None else measured_on(clock)
    return replace(
        study, arms={name: Arm(arm_settings) for name, arm_settings in {DEFAULT: (), **arms}.items()}, evaluator=measured, inputs=(clock,)
    )


STUDY = Study("settings", {}, rows, compared, "squeezenet,inception_v1,shufflenet,made:mobilenet_v2", options=compare)
