"""Figures of the search: progress of the best, predictions of the model, use of the workers."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from tuner.measure.store_lookup import WORKER
from tuner.report.style import MUTED, color, figure, log_axis
from tuner.report.view import RunView
from tuner.runs.dataframes import gains

_SCATTER_POINTS = 3000  # an SVG scatter of more is slow to draw and shows no more


class Tuned(Protocol):
    """Finished run (`RunView`), or one of its searches (`tuner.SearchResult`)."""

    def over_time(self, by_time: bool = False) -> pd.DataFrame:
        """Best program over time: see `tuner.runs.dataframes.over_time`."""
        ...


def best_so_far(run: Tuned, by_time: bool = False) -> go.Figure:
    """Speed-up of the best program of every level against measured programs, or seconds since the first."""
    return curves(run.over_time(by_time), by_time)


def curves(table: pd.DataFrame, by_time: bool = False) -> go.Figure:
    """Curves of `best_so_far`, from the table of `over_time`."""
    chart = figure("seconds since the first program" if by_time else "measured programs", "speed-up over the baseline")
    for i, (level, rows) in enumerate(table.groupby("level", sort=False)):
        best = rows["cycles"].to_numpy(np.float64)
        keep = np.flatnonzero(np.concatenate(([True], np.diff(best) < 0, [True]))[: len(best)])
        keep = np.unique([*keep, len(best) - 1])
        chart.add_scatter(
            x=rows["seconds" if by_time else "program"].to_numpy()[keep], y=rows["speedup"].to_numpy()[keep], customdata=best[keep],
            name=str(level), mode="lines+markers", line={"shape": "hv", "color": color(i)}, marker={"size": 4},
            hovertemplate="%{customdata:,.0f} cycles<br>%{y:.2f}x<extra>" + str(level) + "</extra>",
        )  # fmt: skip
    return chart


def proposer_gains(run: RunView) -> go.Figure:
    """Speed gained by the programs of each proposer, a bar for every level."""
    table = gains(run.log)
    names = list(dict.fromkeys(table["proposer"]))
    chart = figure("octaves that the best program became faster", "", 120 + 32 * len(names))
    for i, (level, rows) in enumerate(table.groupby("level", sort=False)):
        chart.add_bar(
            x=rows["gain"], y=rows["proposer"], customdata=rows["programs"], name=str(level), orientation="h", marker={"color": color(i)},
            hovertemplate="%{y}: %{x:.3f} octaves, %{customdata:.1f} programs<extra>" + str(level) + "</extra>",
        )  # fmt: skip
    chart.update_yaxes(categoryorder="array", categoryarray=names[::-1], automargin=True)
    return chart


def predicted_against_measured(run: RunView) -> go.Figure:
    """Predicted against measured cycles of segments; the formula predicts before the model's first training."""
    rows = run.log[(run.log["status"] == "ok") & run.log["predicted_cycles"].notna() & (run.log["kind"] != "program")]
    if len(rows) > _SCATTER_POINTS:
        rows = rows.sample(_SCATTER_POINTS, random_state=0)
    chart = figure("predicted cycles", "measured cycles", 480)
    for i, (name, selected) in enumerate((("formula", rows["model_version"].isna()), ("model", rows["model_version"].notna()))):
        part = rows[selected]
        if len(part):
            text = part["level"].astype("str") + ", task " + part["task"].astype("str").str[:12]
            chart.add_scatter(
                x=part["predicted_cycles"], y=part["cycles"], text=text, name=name, mode="markers",
                marker={"size": 5, "opacity": 0.55, "color": color(1 - i)},
                hovertemplate="%{text}<br>%{x:,.0f} predicted<br>%{y:,} measured",
            )  # fmt: skip
    if len(rows):
        limits = [float(rows[["predicted_cycles", "cycles"]].min().min()), float(rows[["predicted_cycles", "cycles"]].max().max())]
        chart.update_xaxes(log_axis(*limits))
        chart.update_yaxes(log_axis(*limits))
        chart.add_scatter(
            x=limits, y=limits, mode="lines", line={"color": MUTED, "dash": "dot", "width": 1}, name="equal", hoverinfo="skip"
        )
    return chart


def prediction_quality(run: RunView) -> pd.DataFrame:
    """Per level and predictor: predictions made before the measurement, root mean square error in octaves, rank correlation."""
    rows = run.log[(run.log["status"] == "ok") & run.log["predicted_cycles"].notna() & (run.log["kind"] != "program")]
    octaves = np.log2(rows["predicted_cycles"] / rows["cycles"].astype("float64"))
    table = pd.DataFrame(
        {
            "level": rows["level"].astype("str"),
            "predictor": np.where(rows["model_version"].isna(), "formula", "model"),
            "octaves": octaves,
            "predicted": rows["predicted_cycles"].astype("float64"),
            "measured": rows["cycles"].astype("float64"),
        }
    )
    quality_rows = []
    for (level, predictor), part in table.groupby(["level", "predictor"], sort=False):
        rank = part["predicted"].rank().corr(part["measured"].rank())
        rms = float(np.sqrt((part["octaves"] ** 2).mean()))
        quality_rows.append((level, predictor, len(part), f"{rms:.3f}", f"{rank:.3f}" if len(part) > 2 else ""))
    return pd.DataFrame(quality_rows, columns=["level", "predictor", "segments", "rms error, octaves", "rank correlation"])


def worker_use(run: RunView) -> go.Figure:
    """Share of time, in twentieths of the run, that each worker spent on measurements (wall time of tasks over elapsed time)."""
    rows = run.log.drop_duplicates(["seq"])
    rows = rows[~rows["worker"].astype("str").str.startswith(WORKER)]  # looked up
    rows = rows[rows["worker"].astype("str") != "driver"] if (rows["worker"].astype("str") != "driver").any() else rows
    chart = figure("seconds since the first task", "share of time in measurements")
    if not len(rows):
        return chart
    seconds = (rows["time"] - rows["time"].min()).dt.total_seconds().to_numpy(np.float64)
    span = max(float(seconds.max()), 1e-3)
    bins = np.minimum((seconds / span * 20).astype(int), 19)
    for i, (worker, index) in enumerate(sorted(rows.groupby(rows["worker"].astype("str")).indices.items())):
        busy_share = np.bincount(bins[index], rows["wall_s"].to_numpy(np.float64)[index], minlength=20) / (span / 20)
        chart.add_scatter(
            x=(np.arange(20) + 0.5) * span / 20,
            y=np.minimum(busy_share, 1.0),
            name=worker,
            mode="lines",
            line={"color": color(i), "shape": "hvh"},
        )
    chart.update_yaxes(range=[0, 1.05], tickformat=".0%")
    return chart


def boards(run: RunView) -> pd.DataFrame:
    """Table of boards: board, firmware, rows, lowest and highest canary drift, and flagged rows."""
    rows = run.log[run.log["drift"].notna()]
    names = [rows[name].astype(object).fillna("not said") for name in ("board", "firmware")]
    table = rows.groupby(names, sort=True).agg(
        rows=("drift", "size"), low=("drift", "min"), high=("drift", "max"), flagged=("drifted", "sum")
    )
    return table.reset_index(names=["board", "firmware"])


def failures(run: RunView) -> pd.DataFrame:
    """Failed tasks: status, kind, count, and the text of the first."""
    rows = run.log[run.log["status"] != "ok"].drop_duplicates("seq")
    failure_rows = []
    for (status, kind), part in rows.groupby([rows["status"].astype("str"), rows["kind"].astype("str")], sort=True):
        failure_rows.append((status, kind, len(part), str(part["error"].iloc[0])))
    return pd.DataFrame(failure_rows, columns=["status", "kind", "tasks", "first message"])
