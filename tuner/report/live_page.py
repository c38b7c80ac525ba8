"""The page of a run while it goes on: how far it is, the best so far; of a run that has ended, its report."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import pandas as pd

from tuner.measure.merit import speedup
from tuner.report.html import Figures, document, section, table
from tuner.report.run_page import run_page
from tuner.report.search_figures import best_so_far
from tuner.report.view import open_view
from tuner.store.frames import asked_programs, over_time
from tuner.store.read import read_log
from tuner.store.runs import RunEntry, baseline_of, open_run
from tuner.store.served import copies
from tuner.store.standing import Standing, standing
from tuner.world.place import Place

AGAIN_S = 10
_STANDING = "By the rows that the run has published."
_BEST = "The baseline runs every fused operator on its own, tuned by the same search."
_COLUMNS = ["run", "seq", "kind", "task", "level", "status", "cycles", "time"]


@dataclass(frozen=True)
class Going:
    """A run that has not ended, as figures see it.  baseline: level -> cycles, {} before the first checkpoint."""

    path: Place
    baseline: dict[str, int]

    def over_time(self, by_time: bool = False) -> pd.DataFrame:
        """See `tuner.store.frames.over_time`."""
        served = copies(self.path)
        return over_time(asked_programs(read_log(self.path, _COLUMNS), served), served, self.baseline, by_time)


def live_page(path: Place) -> str:
    """The whole page.  Raises `BadInputError` where there is no run, or its log cannot be read."""
    run = open_run(path)
    if run.summary is not None:
        return run_page(open_view(path))
    now, baseline, figures = standing(run), baseline_of(run), Figures()
    sections = [section("standing", "How far it is", _STANDING, table(("<what", "<now"), _standing(run, now)))]
    if now.best:
        sections.append(
            section("best", "Best so far", _BEST, table(("<level", "cycles", "baseline cycles", "speed-up"), _best(now, baseline)))
        )
    if now.best and baseline:
        drawn = figures.place(best_so_far(Going(path, baseline)))
        sections.append(section("search", "Against measured programs", "At 1 a program is as fast as the baseline.", drawn))
    title = f"{run.identity['model']} on {run.identity['machine']}"
    about = f"{run.identity['run']} · {run.state} · read at {datetime.now(UTC):%H:%M:%S} UTC, again every {AGAIN_S} s"
    return document(title, about, sections, AGAIN_S)


def _standing(run: RunEntry, now: Standing) -> list[tuple[str, str]]:
    of = "" if now.of is None else f" of {now.of:,}"
    of_readings = "" if now.of_readings is None else f" of {now.of_readings:,}"
    rows = [("state", run.state), ("programs measured", f"{now.programs:,}{of}"), ("tasks measured", f"{now.tasks:,}")]
    rows.append(("readings", f"{now.readings:,}{of_readings}"))
    if now.drifted:
        rows.append(("rows while the board's canary was off", f"{now.drifted:,}"))
    rows += [(f"tasks {name}", f"{count:,}") for name, count in now.failures.items()]
    if now.left_s is not None and run.state == "running":
        rows.append(("seconds left", f"about {now.left_s:,.0f}"))
    if now.last_row is not None:
        rows.append(("newest row", f"{now.last_row:%H:%M:%S} UTC"))
    return rows


def _best(now: Standing, baseline: dict[str, int]) -> list[tuple[str, int, int | str, str]]:
    return [
        (level, cycles, baseline.get(level, ""), speedup(baseline[level] / cycles) if baseline else "")
        for level, cycles in now.best.items()
    ]
