"""The page of a study: how good the best trial is, how it was found, which settings mattered."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import optuna
import plotly.graph_objects as go
from optuna.distributions import BaseDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from simulator.npu.errors import BadInputError
from tuner.config import Range
from tuner.folder.studies import study_summary
from tuner.report.html import Figures, as_text, counted, document, preformatted, section, table, tabs
from tuner.report.style import MUTED, PALETTE, figure
from tuner.trials import distribution

_FEW = 8  # trials under which an importance is noise
_RESULT = (
    "Cycles of a trial's champions over those of the plan that needs no search: the geometric mean over networks, seeds and levels. "
    "Trial 0 has the settings that the study started from."
)
_HISTORY = (
    "Every trial that ran; a pruned one was behind the median after a network and 8 runs or more, and stands where it would have come out."
)
_IMPORTANCE = (
    "How far each setting decides whether a trial is in the better half (PED-ANOVA, Watanabe et al. 2023). Of the trials there are: few, "
    "or all alike, say little."
)
_SETTINGS = "Every setting on its own, later trials darker: a trend that the other settings hide shows as a cloud."


def study_page(folder: Path) -> str:
    """The whole page of a study's folder.  Raises `BadInputError` where no trial has ended yet."""
    summary = study_summary(folder)
    ran = [trial for trial in summary["trials"] if trial["value"] is not None]
    best = summary["best"]
    if best is None:
        raise BadInputError(f"{folder}: none of {summary['trials_done']} trials so far ran on every network; nothing to report")
    spans = {path: Range.model_validate(span) for path, span in summary["parameters"].items()}
    figures = Figures()
    found = importances(ran, spans)
    shown = figures.place(_importance(found)) if found else f"<p>Needs {_FEW} trials with different values.</p>"
    sections = [
        section("result", "Result", "Result", _RESULT, _result(summary, ran)),
        section("history", "History", "History", _HISTORY, figures.place(_history(ran))),
        section("importance", "Importance", "Which settings mattered", _IMPORTANCE, shown),
        section(
            "settings", "Settings", "Setting by setting", _SETTINGS,
            tabs({name: figures.place(_slice(ran, name, span.log)) for name, span in spans.items()}),
        ),
        section("trials", "Trials", "Trials", "Best first.", _trials(ran, list(spans))),
        section("failures", "Failures", "Trials that failed", "They count for nothing.", _failures(summary["trials"])),
        section("yaml", "best.yaml", "best.yaml", "What `tilefarm tune --config` takes.", _yaml(folder)),
    ]  # fmt: skip
    heading = f"Study of {counted(len(summary['models']), 'network')} on {summary['machine']}"
    seeds = f"{counted(len(summary['seeds']), 'seed')} per network"
    trials = f"{summary['trials_done']} of {counted(summary['trials_asked'], 'trial')}"
    about = f"{summary['study']} · {trials} · {seeds} · {', '.join(summary['models'])}"
    return document(heading, about, sections)


def importances(trials: list[dict[str, Any]], spans: dict[str, Range]) -> dict[str, float]:
    """Share of each setting, the most important first, 1 in sum; {} where there are too few trials, or none is better than another."""
    if len(trials) < _FEW or len({trial["value"] for trial in trials}) == 1:
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
    first = next((trial for trial in ran if trial["number"] == 0), None)
    rows: list[tuple[object, ...]] = [(f"best: trial {best['trial']}", f"{best['ratio_to_baseline']:.4f}", *_values(best["params"]))]
    if first is not None and best["trial"] != 0:
        rows.append(("start: trial 0", _ratio(first), *_values(first["params"])))
    return table(("<trial", "of the untuned plan", *best["params"]), rows)


def _ratio(trial: dict[str, Any]) -> str:
    return f"{math.exp(trial['value']):.4f}"


def _values(params: dict[str, float]) -> list[str]:
    return [f"{value:.4g}" for value in params.values()]


def _history(ran: list[dict[str, Any]]) -> go.Figure:
    drawn = figure("trial", "cycles, relative to the untuned plan")
    for name, pruned, symbol in (("complete", False, "circle"), ("pruned", True, "circle-open")):
        part = [trial for trial in ran if trial["pruned"] == pruned]
        if part:
            drawn.add_scatter(
                x=[t["number"] for t in part], y=[math.exp(t["value"]) for t in part], name=name, mode="markers",
                marker={"symbol": symbol, "size": 8, "color": PALETTE[0]},
                text=["<br>".join(f"{as_text(k)} = {v:.4g}" for k, v in t["params"].items()) for t in part],
                hovertemplate="trial %{x}: %{y:.4f}<br>%{text}<extra></extra>",
            )  # fmt: skip
    best, x, y = math.inf, [], []
    for trial in ran:
        if not trial["pruned"] and trial["value"] < best:
            best = trial["value"]
        if best < math.inf:
            x.append(trial["number"])
            y.append(math.exp(best))
    drawn.add_scatter(x=x, y=y, name="best so far", mode="lines", line={"shape": "hv", "color": PALETTE[2]})
    return drawn


def _importance(found: dict[str, float]) -> go.Figure:
    names = list(found)[::-1]
    drawn = figure("share", "", 120 + 34 * len(names))
    drawn.add_bar(x=[found[name] for name in names], y=names, orientation="h", marker={"color": PALETTE[0]})
    drawn.update_layout(margin={"l": 200}, showlegend=False)
    drawn.update_xaxes(tickformat=".0%")
    return drawn


def _slice(ran: list[dict[str, Any]], name: str, log: bool) -> go.Figure:
    drawn = figure(name, "cycles, relative to the untuned plan")
    drawn.add_scatter(
        x=[trial["params"][name] for trial in ran], y=[math.exp(trial["value"]) for trial in ran], mode="markers",
        marker={
            "size": 8, "color": [trial["number"] for trial in ran], "colorscale": "Blues", "line": {"width": 1, "color": MUTED},
        },
        customdata=[trial["number"] for trial in ran], hovertemplate="%{x:.4g}: %{y:.4f}, trial %{customdata}<extra></extra>",
    )  # fmt: skip
    if log:
        drawn.update_xaxes(type="log")
    return drawn


def _trials(ran: list[dict[str, Any]], names: list[str]) -> str:
    rows = [
        (
            trial["number"],
            f"{math.exp(trial['value']):.4f}",
            "pruned" if trial["pruned"] else "",
            *(f"{trial['params'][n]:.4g}" for n in names),
        )
        for trial in sorted(ran, key=lambda trial: (trial["value"], trial["number"]))
    ]
    return table(("trial", "of the untuned plan", "<", *names), rows)


def _failures(trials: list[dict[str, Any]]) -> str:
    rows = [(trial["number"], trial["error"]) for trial in trials if trial["value"] is None]
    return table(("trial", "<why"), rows) if rows else "<p>None.</p>"


def _yaml(folder: Path) -> str:
    return preformatted((folder / "best.yaml").read_text(encoding="utf-8"))
