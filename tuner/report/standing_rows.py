"""Progress of a run as text, shared by the terminal and the live page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from tuner.measure.merit import speedup
from tuner.platform.real import REAL
from tuner.runs.farm_limits import farm_limit
from tuner.runs.farm_progress import FarmProgress, read_farm_progress
from tuner.runs.list_runs import RunEntry, baseline_of
from tuner.runs.progress import RunProgress, read_progress

BEST = ("<level", "best cycles", "baseline", "speed-up")


NODES = 4  # hosts that are named


def progress_json(run: RunEntry) -> dict[str, Any]:
    """Progress of a run as JSON.  Raises `BadInputError` for an unreadable log."""
    progress, farm = read_progress(run), read_farm_progress(run, REAL.clock)
    return {
        "run": run.identity["run"], "state": run.state, "programs": progress.programs, "of": progress.budget, "tasks": progress.tasks,
        "readings": progress.readings, "of_readings": progress.readings_budget, "boards": progress.boards, "drifted_rows": progress.drifted,
        "failures": progress.failures, "best_cycles": progress.best, "first_cycles": progress.first, "baseline_cycles": baseline_of(run),
        "last_row_age_s": log_age_s(progress), "left_s": progress.left_s if run.state == "running" else None, "lost_rows": progress.lost,
        **farm.to_json(),
    }  # fmt: skip


def progress_rows(run: RunEntry, progress: RunProgress, farm: FarmProgress) -> dict[str, object]:
    """Rows of a run's progress: name -> value."""
    rows: dict[str, object] = {"run": run.identity["run"], "state": run.state, "programs measured": programs_text(progress)}
    rows["tasks measured"] = progress.tasks
    rows["readings"] = (
        f"{progress.readings:,}"
        if progress.readings_budget is None
        else f"{progress.readings:,} of {progress.readings_budget:,}, finals and canary beside"
    )
    if progress.boards:
        rows["board"] = ", ".join(progress.boards)
    if progress.drifted:
        rows["drifted"] = f"{progress.drifted:,} rows, measured while the board's canary was more than 3% off its first reading"
    rows |= {f"tasks {name}": count for name, count in progress.failures.items()}
    if progress.lost:
        rows["rows lost"] = f"{progress.lost:,}; the rest is what is shown here"
    if progress.left_s is not None and run.state == "running":
        rows["time left"] = f"about {time_text(progress.left_s)}"
    if (age_s := log_age_s(progress)) is not None:
        rows["newest row"] = f"{time_text(age_s)} ago"
    rows.update(_farm_rows(farm))
    if run.state == "unconfirmed" and run.summary is not None:
        rows["values"] = run.summary["unconfirmed"][0]
    if run.state == "stopped":
        rows["to go on"] = "tilefarm tune with --resume and the same model, machine and settings"
    return rows


def _farm_rows(farm: FarmProgress) -> Iterator[tuple[str, object]]:
    """Rows of a run's farm: nodes and workers of an active one, core hours, and the limit of the run."""
    if (state := farm.state) is not None:
        hosts = [f"{host} {count}" for host, count in sorted(state.nodes.items(), key=lambda pair: (-pair[1], pair[0]))]
        others_note = f", and {len(hosts) - NODES} others" if len(hosts) > NODES else ""
        yield "nodes", f"{len(hosts)}, with workers: {', '.join(hosts[:NODES])}{others_note}" if hosts else "none yet"
        yield "workers", f"{state.busy} busy, {state.idle} idle, {state.joining} joining; {state.queued} jobs wait"
    if farm.core_hours or farm.limit is not None:
        core_hours = f"{farm.core_hours:,.2f}" if farm.core_hours >= 0.1 else f"{farm.core_hours:.4f}"
        yield "core hours", core_hours + ("" if farm.limit is None else f" of {farm.limit:g}")
    if state is not None:
        yield "limited by", farm_limit(state).sentence(state)


def best_rows(progress: RunProgress, baseline: Mapping[str, int]) -> list[tuple[object, ...]]:
    """Rows under `BEST`.  baseline: level -> cycles, {} before the first checkpoint."""
    return [
        (level, cycles, baseline.get(level), speedup(baseline[level] / cycles if baseline else None))
        for level, cycles in progress.best.items()
    ]


def log_age_s(progress: RunProgress) -> float | None:
    """Age of the newest row in seconds."""
    return None if progress.last_row is None else max(0.0, (datetime.now(UTC) - progress.last_row).total_seconds())


def programs_text(progress: RunProgress) -> str:
    return f"{progress.programs:,}" if progress.budget is None else f"{progress.programs:,} of {progress.budget:,}"


def time_text(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
