"""Live page of a run: progress and the best so far; for a finished run, its report."""

from __future__ import annotations

from datetime import UTC, datetime

from tuner.platform.files import AnyPath
from tuner.report.html import Figures, document, section, table
from tuner.report.run_page import run_page
from tuner.report.search_figures import curves
from tuner.report.standing_rows import BEST, best_rows, standing_rows
from tuner.report.view import open_view
from tuner.runs.dataframes import asked_programs, over_time
from tuner.runs.list_runs import baseline_of, open_run
from tuner.runs.progress import read_standing, standing_of
from tuner.runs.subgraph_runs import copies

AGAIN_S = 10
_STANDING = "By the rows that the run has published."
_BEST = "The baseline runs every fused operator on its own, tuned by the same search."


def live_page(path: AnyPath) -> str:
    """Complete page of a run.  Raises `BadInputError` for a missing run or an unreadable log."""
    run = open_run(path)
    if run.summary is not None:
        return run_page(open_view(path))
    log, baseline, figures = read_standing(run), baseline_of(run), Figures()
    now = standing_of(run, log)
    sections = [section("standing", "How far it is", _STANDING, table(("<what", "<now"), standing_rows(run, now).items()))]
    if now.best:
        sections.append(section("best", "Best so far", _BEST, table(BEST, best_rows(now, baseline))))
    if log is not None and now.best and baseline:
        served = copies(path)
        drawn = figures.place(curves(over_time(asked_programs(log.table.to_pandas(), served), served, baseline)))
        sections.append(section("search", "Against measured programs", "At 1 a program is as fast as the baseline.", drawn))
    title = f"{run.identity['model']} on {run.identity['machine']}"
    about = f"{run.identity['run']} · {run.state} · read at {datetime.now(UTC):%H:%M:%S} UTC, again every {AGAIN_S} s"
    return document(title, about, sections, AGAIN_S)
