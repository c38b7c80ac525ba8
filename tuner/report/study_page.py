"""Report page of a study: the best trial, the history of trials, the importance of settings."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import optuna
import plotly.graph_objects as go
from optuna.distributions import BaseDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from simulator.npu.errors import BadInputError
from tuner.config import Choice, Range
from tuner.cost_model.optuna_ranges import distribution
from tuner.measure.merit import speedup
from tuner.platform.files import AnyPath
from tuner.report.html import Figures, cell_text, count_text, html_document, html_section, html_table, html_tabs, preformatted
from tuner.report.style import MUTED, PALETTE, figure, log_axis
from tuner.runs.study_summary import setting_text, study_summary

_FEW = 8  # trials: with fewer an importance is noise
_RESULT = (
    "Speed-up of the best program so far over the plan that needs no search: the geometric mean over networks, seeds and levels, and over "
    "the logarithm of readings. That is the area under the trial's curve, and all that the study looks for; CPU time is told, not tuned. "
    "Trial 0 has the settings that the study started from."
)
_HISTORY = "Every trial that came to its end. Others were stopped by the pruner: behind the median at as many readings."
_FRONT = (
    "What readings buy: the best program so far by readings of a search, the geometric mean over networks, seeds and levels. A line for "
    "every trial; the front has the best of them at each number of readings."
)
_IMPORTANCE = (
    "How far each setting decides whether a trial is in the better half (PED-ANOVA, Watanabe et al. 2023). Of the trials there are: few, "
    "or all alike, say little."
)
_AXIS = "speed-up over the untuned plan"
_SETTINGS = "Every setting on its own, later trials darker: a trend that the other settings hide shows as a cloud."


def study_page(folder: AnyPath) -> str:
    """Complete page of a study's folder.  Raises `BadInputError` before the first trial has ended."""
    summary = study_summary(folder)
    trial_rows = [trial for trial in summary["trials"] if trial["value"] is not None]
    best = summary["best"]
    if best is None:
        raise BadInputError(f"{folder}: none of {summary['trials_done']} trials so far came to its end; nothing to report")
    spans = {path: _span(span) for path, span in summary["parameters"].items()}
    figures = Figures()
    shares = importances(trial_rows, spans)
    importance = figures.place(_importance(shares)) if shares else f"<p>Needs {_FEW} trials with different values.</p>"
    sections = [
        html_section("result", "Result", _RESULT, _result(summary, trial_rows)),
        html_section("front", "Quality by readings", _FRONT, figures.place(_front(summary)) + _front_table(summary)),
        html_section("history", "History", _HISTORY, figures.place(_history(trial_rows))),
        html_section("importance", "Which settings mattered", _IMPORTANCE, importance),
        html_section(
            "settings", "Setting by setting", _SETTINGS,
            html_tabs({name: figures.place(_slice(trial_rows, name, span)) for name, span in spans.items()}),
        ),
        html_section("trials", "Trials", "Best first.", _trials(summary["trials"], summary["counts"], list(spans))),
        html_section("failures", "Trials that failed", "They count for nothing.", _failures(summary["trials"])),
        html_section("yaml", "best.yaml", "What `tilefarm tune --config` takes.", _yaml(folder)),
    ]  # fmt: skip
    heading = f"Study of {count_text(len(summary['models']), 'network')} on {summary['machine']}"
    seeds = f"{count_text(len(summary['seeds']), 'seed')} per network"
    cost = f"{summary['cpu_s'] / 3600:.2f} CPU hours"
    trials = f"{summary['trials_done']} of {count_text(summary['trials_asked'], 'trial')}"
    subtitle = f"{summary['study']} · {trials} · {seeds} · {cost} · {', '.join(summary['models'])}"
    return html_document(heading, subtitle, sections)


def _span(raw: dict[str, Any]) -> Range | Choice:
    return Choice.model_validate(raw) if "choices" in raw else Range.model_validate(raw)


def importances(trials: list[dict[str, Any]], spans: Mapping[str, Range | Choice]) -> dict[str, float]:
    """Importance of each setting, the largest first, 1 in sum; {} for too few trials, or if no trial is better than another."""
    if len(trials) < _FEW or len({round(trial["value"], 9) for trial in trials}) == 1:
        return {}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study()
    space: dict[str, BaseDistribution] = {path: distribution(span) for path, span in spans.items()}
    for trial in trials:
        study.add_trial(optuna.create_trial(params=trial["params"], distributions=space, value=trial["value"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # the better half: with the default, the best tenth, a study of 40 trials would be judged by four
        evaluator = PedAnovaImportanceEvaluator(target_quantile=0.5)
    return dict(get_param_importances(study, evaluator=evaluator))


def _result(summary: dict[str, Any], ran: list[dict[str, Any]]) -> str:
    best = summary["best"]
    tables = {f"best: trial {best['trial']}": best}
    first = next((trial for trial in ran if trial["number"] == 0), None)
    if first is not None and best["trial"] != 0:
        tables["start: trial 0"] = first
    rows = [("speed-up", *(_times(trial["value"]) for trial in tables.values()))]
    rows += [(name, *(setting_text(trial["params"][name]) for trial in tables.values())) for name in best["params"]]
    return html_table(("<", *tables), rows)


def _times(value: float) -> str:
    return speedup(math.exp(-value), 4)  # settings of small effect differ in the third digit


def _history(ran: list[dict[str, Any]]) -> go.Figure:
    chart = figure("trial", _AXIS)
    chart.add_scatter(
        x=[t["number"] for t in ran], y=[math.exp(-t["value"]) for t in ran], name="trial", mode="markers",
        marker={"size": 8, "color": PALETTE[0]},
        text=["<br>".join(f"{cell_text(k)} = {cell_text(setting_text(v))}" for k, v in t["params"].items()) for t in ran],
        hovertemplate="trial %{x}: %{y:.4f}x<br>%{text}<extra></extra>",
    )  # fmt: skip
    best, x, y = math.inf, [], []
    for trial in ran:
        best = min(best, trial["value"])
        x.append(trial["number"])
        y.append(math.exp(-best))
    chart.add_scatter(x=x, y=y, name="best so far", mode="lines", line={"shape": "hv", "color": PALETTE[2]})
    chart.update_xaxes(range=[-0.5, ran[-1]["number"] + 0.5], dtick=math.ceil((ran[-1]["number"] + 1) / 12))
    chart.update_yaxes(range=_range(ran))
    return chart


def _range(ran: list[dict[str, Any]]) -> list[float]:
    """Range of an axis of speed-ups: all of them, at least 2% wide, so that similar trials look similar."""
    low, high = (math.exp(-end(trial["value"] for trial in ran)) for end in (max, min))
    edge = 0.05 * (high - low) + max(0.0, 0.01 * high - 0.5 * (high - low))
    return [low - edge, high + edge]


def _importance(shares: dict[str, float]) -> go.Figure:
    names = list(shares)[::-1]
    chart = figure("share", "", 120 + 34 * len(names))
    chart.add_bar(x=[shares[name] for name in names], y=names, orientation="h", marker={"color": PALETTE[0]})
    chart.update_layout(margin={"l": 200}, showlegend=False)
    chart.update_xaxes(tickformat=".0%")
    return chart


def _slice(ran: list[dict[str, Any]], name: str, span: Range | Choice) -> go.Figure:
    chart = figure(name, _AXIS)
    chart.add_scatter(
        x=[trial["params"][name] for trial in ran], y=[math.exp(-trial["value"]) for trial in ran], mode="markers",
        marker={
            "size": 8, "color": [trial["number"] for trial in ran], "colorscale": "Blues", "line": {"width": 1, "color": MUTED},
        },
        customdata=[trial["number"] for trial in ran], hovertemplate="%{x}: %{y:.4f}x, trial %{customdata}<extra></extra>",
    )  # fmt: skip
    chart.update_yaxes(range=_range(ran))
    if isinstance(span, Choice):
        chart.update_xaxes(type="category", categoryorder="array", categoryarray=list(span.choices))
        return chart
    limits = [end(span_end, *(trial["params"][name] for trial in ran)) for end, span_end in ((min, span.low), (max, span.high))]
    if span.log and limits[0] > 0:
        chart.update_xaxes(log_axis(*limits))
    else:
        edge = 0.03 * (limits[1] - limits[0])
        chart.update_xaxes(range=[limits[0] - edge, limits[1] + edge])
    return chart


def _front(summary: dict[str, Any]) -> go.Figure:
    """Curves of all trials, the first trial's curve and the front."""
    counts, chart = summary["counts"], figure("readings of a search", _AXIS)
    finished_trials = [trial for trial in summary["trials"] if trial["curve"] and trial["error"] is None]
    for index, trial in enumerate(finished_trials):
        start = trial["number"] == 0
        chart.add_scatter(
            x=counts[: len(trial["curve"])], y=[math.exp(-value) for value in trial["curve"]], mode="lines",
            name="start: trial 0" if start else "trials", legendgroup=str(start), showlegend=start or index == next(
                (k for k, candidate in enumerate(finished_trials) if candidate["number"]), -1
            ),
            line={"width": 2 if start else 1, "color": PALETTE[0] if start else MUTED},
            hovertemplate=f"trial {trial['number']}: %{{y:.4f}}x after %{{x:,}}<extra></extra>",
        )  # fmt: skip
    front = summary["front"]
    chart.add_scatter(
        x=[point["readings"] for point in front], y=[math.exp(-point["value"]) for point in front], name="front", mode="lines+markers",
        line={"width": 3, "color": PALETTE[2]}, customdata=[point["trial"] for point in front],
        hovertemplate="%{y:.4f}x after %{x:,}, trial %{customdata}<extra></extra>",
    )  # fmt: skip
    if len(counts) > 1:
        chart.update_xaxes(log_axis(counts[0], counts[-1]))
    return chart


def _front_table(summary: dict[str, Any]) -> str:
    first: list[float] = next((trial["curve"] for trial in summary["trials"] if trial["number"] == 0), [])
    rows = [
        (point["readings"], point["trial"], _times(point["value"]), _times(first[index]) if index < len(first) else "")
        for index, point in enumerate(summary["front"])
    ]
    return html_table(("readings", "trial", "best", "start: trial 0"), rows)


def _trials(trials: list[dict[str, Any]], counts: list[int], names: list[str]) -> str:
    """Table of finished trials, best first, then stopped trials."""
    valid_trials = [trial for trial in trials if trial["error"] is None]
    rows = [
        (
            trial["number"],
            "" if trial["pruned"] else _times(trial["value"]),
            f"stopped at {counts[len(trial['curve']) - 1]:,}" if trial["pruned"] else "",
            f"{trial['cpu_s']:,.0f}",
            *(setting_text(trial["params"][name]) for name in names),
        )
        for trial in sorted(valid_trials, key=lambda trial: (trial["pruned"], trial["value"] or 0.0, trial["number"]))
    ]
    return html_table(("trial", "speed-up", "<", "CPU s", *names), rows)


def _failures(trials: list[dict[str, Any]]) -> str:
    rows = [(trial["number"], trial["error"]) for trial in trials if trial["error"] is not None]
    return html_table(("trial", "<why"), rows) if rows else "<p>None.</p>"


def _yaml(folder: AnyPath) -> str:
    return preformatted((folder / "best.yaml").read_bytes().decode())
