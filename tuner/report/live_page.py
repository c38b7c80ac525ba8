"""Live page of a run: progress and the best so far; for a finished run, its report."""

from __future__ import annotations

from datetime import UTC, datetime

from tuner.platform.files import AnyPath
from tuner.platform.real import REAL
from tuner.report.html import Figures, html_document, html_section, html_table
from tuner.report.run_page import run_page
from tuner.report.search_figures import curves
from tuner.report.standing_rows import BEST, best_rows, progress_rows
from tuner.report.view import open_view
from tuner.runs.dataframes import asked_programs, over_time
from tuner.runs.farm_progress import read_farm_progress
from tuner.runs.list_runs import baseline_of, open_run
from tuner.runs.progress import progress_of_log, read_progress_log
from tuner.runs.subgraph_runs import subgraph_copies

AGAIN_S = 10
_STANDING = "By the rows that the run has published."
_BEST = "The baseline runs every fused operator on its own, tuned by the same search."


def live_page(path: AnyPath) -> str:
    """Complete page of a run.  Raises `BadInputError` for a missing run or an unreadable log."""
    run = open_run(path)
    if run.summary is not None:
        return run_page(open_view(path))
    log, baseline, figures = read_progress_log(run), baseline_of(run), Figures()
    progress = progress_of_log(run, log)
    rows = progress_rows(run, progress, read_farm_progress(run, REAL.clock)).items()
    sections = [html_section("standing", "How far it is", _STANDING, html_table(("<what", "<now"), rows))]
    if progress.best:
        sections.append(html_section("best", "Best so far", _BEST, html_table(BEST, best_rows(progress, baseline))))
    if log is not None and progress.best and baseline:
        copies = subgraph_copies(path)
        curve_figure = figures.place(curves(over_time(asked_programs(log.table.to_pandas(), copies), copies, baseline)))
        sections.append(html_section("search", "Against measured programs", "At 1 a program is as fast as the baseline.", curve_figure))
    title = f"{run.identity['model']} on {run.identity['machine']}"
    subtitle = f"{run.identity['run']} · {run.state} · read at {datetime.now(UTC):%H:%M:%S} UTC, again every {AGAIN_S} s"
    return html_document(title, subtitle, sections, AGAIN_S)
