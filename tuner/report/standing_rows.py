"""Progress of a run as text, shared by the terminal and the live page."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from tuner.measure.merit import speedup
from tuner.runs.list_runs import RunEntry
from tuner.runs.progress import RunProgress

BEST = ("<level", "best cycles", "baseline", "speed-up")


def progress_rows(run: RunEntry, now: RunProgress) -> dict[str, object]:
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
    if run.state == "unconfirmed" and run.summary is not None:
        rows["values"] = run.summary["unconfirmed"][0]
    if run.state == "stopped":
        rows["to go on"] = "tilefarm tune with --resume and the same model, machine and settings"
    return rows


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
