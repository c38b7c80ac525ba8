"""Progress of a run as text, shared by the terminal and the live page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from tuner.measure.merit import speedup
from tuner.platform.real import REAL
from tuner.runs.farm_limits import limit_of
from tuner.runs.farm_progress import FarmProgress, read_farm_progress
from tuner.runs.list_runs import RunEntry, baseline_of
from tuner.runs.progress import RunProgress, read_progress

BEST = ("<level", "best cycles", "baseline", "speed-up")


NODES = 4  # hosts that are named


def progress_json(run: RunEntry) -> dict[str, Any]:
    """Progress of a run as JSON.  Raises `BadInputError` for an unreadable log."""
    now, farm = read_progress(run), read_farm_progress(run, REAL.clock)
    return {
        "run": run.identity["run"], "state": run.state, "programs": now.programs, "of": now.of, "tasks": now.tasks,
        "readings": now.readings, "of_readings": now.of_readings, "boards": now.boards, "drifted_rows": now.drifted,
        "failures": now.failures, "best_cycles": now.best, "first_cycles": now.first, "baseline_cycles": baseline_of(run),
        "last_row_age_s": age_s_of(now), "left_s": now.left_s if run.state == "running" else None, "lost_rows": now.lost,
        **farm.to_json(),
    }  # fmt: skip


def progress_rows(run: RunEntry, now: RunProgress, farm: FarmProgress) -> dict[str, object]:
    """Rows of a run's progress: name -> value."""
    rows: dict[str, object] = {"run": run.identity["run"], "state": run.state, "programs measured": programs_text(now)}
    rows["tasks measured"] = now.tasks
    rows["readings"] = (
        f"{now.readings:,}" if now.of_readings is None else f"{now.readings:,} of {now.of_readings:,}, finals and canary beside"
    )
    if now.boards:
        rows["board"] = ", ".join(now.boards)
    if now.drifted:
        rows["drifted"] = f"{now.drifted:,} rows, measured while the board's canary was more than 3% off its first reading"
    rows |= {f"tasks {name}": count for name, count in now.failures.items()}
    if now.lost:
        rows["rows lost"] = f"{now.lost:,}; the rest is what is shown here"
    if now.left_s is not None and run.state == "running":
        rows["time left"] = f"about {time_text(now.left_s)}"
    if (age_s := age_s_of(now)) is not None:
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
        named = [f"{host} {count}" for host, count in sorted(state.nodes.items(), key=lambda pair: (-pair[1], pair[0]))]
        more = f", and {len(named) - NODES} others" if len(named) > NODES else ""
        yield "nodes", f"{len(named)}, with workers: {', '.join(named[:NODES])}{more}" if named else "none yet"
        yield "workers", f"{state.busy} busy, {state.idle} idle, {state.joining} joining; {state.queued} jobs wait"
    if farm.core_hours or farm.limit is not None:
        spent = f"{farm.core_hours:,.2f}" if farm.core_hours >= 0.1 else f"{farm.core_hours:.4f}"
        yield "core hours", spent + ("" if farm.limit is None else f" of {farm.limit:g}")
    if state is not None:
        yield "limited by", limit_of(state).sentence(state)


def best_rows(now: RunProgress, baseline: Mapping[str, int]) -> list[tuple[object, ...]]:
    """Rows under `BEST`.  baseline: level -> cycles, {} before the first checkpoint."""
    return [
        (level, cycles, baseline.get(level), speedup(baseline[level] / cycles if baseline else None)) for level, cycles in now.best.items()
    ]


def age_s_of(now: RunProgress) -> float | None:
    """Age of the newest row in seconds."""
    return None if now.last_row is None else max(0.0, (datetime.now(UTC) - now.last_row).total_seconds())


def programs_text(now: RunProgress) -> str:
    return f"{now.programs:,}" if now.of is None else f"{now.programs:,} of {now.of:,}"


def time_text(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
