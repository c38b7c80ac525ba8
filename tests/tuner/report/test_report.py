"""The page of a run: complete, offline, and safe whatever things are called."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.compiled import Compiled
from simulator.npu.container import OperatorEntry
from tests.html_page import HOSTILE, Page, assert_navigation_names_headings, assert_offline
from tests.tuning import quick, save_small
from tuner.cli import main
from tuner.report.machine_figures import crossings, engine_shares, excess_latency, occupancy
from tuner.report.run_page import run_page
from tuner.report.search_figures import proposer_gains
from tuner.report.style import DARK, INK, MUTED, RULE, log_axis
from tuner.report.view import RunView, open_view
from tuner.runs.dataframes import gains


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    quick(save_small("inception_block", folder), folder / "RUN", 60)
    return folder / "RUN"


@pytest.fixture(scope="module")
def view(run_folder: Path) -> RunView:
    return open_view(run_folder)


def test_pieces_and_host_nodes_are_named(view: RunView) -> None:
    assert "With the host" not in run_page(view)
    node = {"node": HOSTILE, "op": "Atan", "refused": True, "why": "nobody has it", "macs": 7, "mac_share": 0.25}
    reasons = [{**node, "why": f"axes {'x' * k}; others are supported", "macs": 0, "mac_share": 0.0} for k in range(45)]
    piece = {"piece": "Partition0", "operators": 3, "first_operator": "a", "last_operator": HOSTILE, "cycles": {"none": 1234}}
    summary = {**view.summary, "host": [*reasons, node, node], "pieces": [piece], "npu_mac_share": 0.5}
    text = run_page(dataclasses.replace(view, summary=summary))
    assert_offline(Page(text))
    assert HOSTILE not in text
    assert "47 nodes of the model, 50.0% of its multiply-adds" in text
    assert text.count("nobody has it") == 1  # a row for both, the first one
    assert text.count("others are supported") == 39
    assert text.index("nobody has it") < text.index("others are supported")
    assert "1,234" in text
    unknown = {**summary, "host": [{**node, "macs": None, "mac_share": None}], "npu_mac_share": None}
    assert "1 node of the model, with multiply-adds that cannot be counted" in run_page(dataclasses.replace(view, summary=unknown))


def test_what_groups_multiply_beside_their_weights_is_said(view: RunView) -> None:
    assert "group structure" not in run_page(view)
    summary = {**view.summary, "grouped": {"convolutions": 3, "macs": 100, "multiplied_macs": 140}}
    assert "group structure: 3 convolutions multiply 1.4 times their weights" in run_page(dataclasses.replace(view, summary=summary))


def test_every_section_and_every_figure_is_there(view: RunView) -> None:
    text = run_page(view)
    read = Page(text)
    anchors = {attrs["id"] for tag, attrs in read.tags if tag == "section"}
    assert anchors == {attrs["href"][1:] for tag, attrs in read.tags if tag == "a" and attrs["href"]}
    assert_navigation_names_headings(read)
    figures = [attrs["id"] for tag, attrs in read.tags if tag == "div" and attrs.get("class") == "figure"]
    assert set(read.data) == {f"data-{name}" for name in figures}
    empty = [name for name, figure in read.data.items() if not figure["data"]]  # type: ignore[index]
    assert not empty
    for level, row in view.summary["levels"].items():
        assert f"{row['cycles']:,}" in text, level
    assert view.summary["versions"]["numpy"] in text
    assert "measured: 16" in text  # config.yaml


def test_proposer_gains_add_up_to_the_search(view: RunView) -> None:
    drawn = {trace.name: trace for trace in proposer_gains(view).data}
    assert list(drawn) == list(gains(view.log)["level"].unique())
    for level, rows in view.programs.groupby(view.programs["level"].astype("str")):
        cycles = rows["cycles"].astype(float)
        assert sum(drawn[level].x) == pytest.approx(math.log2(cycles.iloc[0] / cycles.min()))
        assert sum(drawn[level].customdata) == pytest.approx(len(rows))
        assert {"baseline", "prediction", "shortest path"} <= set(drawn[level].y)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "a,b", "b,b,c", None]), st.integers(1, 9), st.sampled_from(["r", "s"])), min_size=1))
def test_gains_of_drawn_programs(made: list[tuple[str | None, int, str]]) -> None:
    log = pd.DataFrame(made, columns=["proposed_by", "cycles", "run"]).assign(
        kind="program", status="ok", level="none", seq=range(len(made))
    )
    octaves, count, best = Counter[str](), Counter[str](), dict[str, int]()
    for by, cycles, run in made:
        names = (by or "not said").split(",")
        won = max(0.0, math.log2(best.get(run, cycles) / cycles))
        best[run] = min(best.get(run, cycles), cycles)
        for name in names:
            octaves[name] += won / len(names)  # type: ignore[assignment]
            count[name] += 1 / len(names)  # type: ignore[assignment]
    frame = gains(log.sample(frac=1, random_state=0)).set_index("proposer")
    assert frame["gain"].to_dict() == pytest.approx(dict(octaves))
    assert frame["programs"].to_dict() == pytest.approx(dict(count))
    assert frame["gain"].is_monotonic_decreasing or np.allclose(np.sort(frame["gain"])[::-1], frame["gain"])


def test_every_colour_has_its_dark_one(view: RunView) -> None:
    """The page replaces one after the other, so no replacement may be replaced again."""
    assert not set(DARK) & set(DARK.values())
    text = run_page(view)
    for light in (INK, RULE, MUTED):
        assert text.count(f'"{light}"') > 3
    assert json.dumps(DARK) in text


def test_a_buffer_fills_its_own_lane(view: RunView) -> None:
    """A lane for each memory, none over another, each drawn against its own size."""
    drawn = occupancy(view.timeline(view.levels[0]))
    lanes = [drawn.layout[f"yaxis{trace.yaxis[1:]}"].domain for trace in drawn.data]
    assert [high for _, high in lanes] == sorted((high for _, high in lanes), reverse=True)
    assert all(above[0] > below[1] for above, below in pairwise(lanes))
    for trace in drawn.data:
        assert 0 < max(trace.y) <= 1
    assert len(drawn.layout.annotations) == len(drawn.data) == len(dict(view.machine.buffers_bytes))


def test_the_wrong_variant_costs_what_the_summary_says(view: RunView) -> None:
    for name, line in zip(view.response.variants, excess_latency(view).data, strict=True):
        assert min(line.y) >= 0
        for row in view.summary["levels"].values():
            at = int(np.argmin(abs(np.array(line.x) - row["ddr"]["share"])))
            cycles = row["variant_cycles"][name] / min(row["variant_cycles"].values()) - 1
            assert line.x[at] != row["ddr"]["share"] or line.y[at] == pytest.approx(cycles)


@pytest.mark.parametrize(("low", "high"), [(1, 9), (2_300, 600_000), (0.01, 8_000), (5, 5)])
def test_logarithmic_axis_has_enough_and_few_labels(low: float, high: float) -> None:
    axis = log_axis(low, high)
    start, end = axis["range"]
    shown = [tick for tick in axis["tickvals"] if start <= math.log10(tick) <= end]
    assert 1 <= len(shown) <= 10
    assert len(shown) >= 2 or low == high
    assert len(set(axis["ticktext"])) == len(axis["ticktext"])


def test_nothing_is_fetched(view: RunView) -> None:
    assert_offline(Page(run_page(view)))


def test_hostile_names_stay_text(view: RunView) -> None:
    operators = tuple(
        OperatorEntry(HOSTILE, operator.macs, operator.accumulators) for operator in view.compiled.pieces[0].container.operators
    )
    summary = {**view.summary, "model": HOSTILE, "run": HOSTILE, "tags": {HOSTILE: HOSTILE}}
    bad = dataclasses.replace(
        view,
        summary=summary,
        compiled=Compiled.of(dataclasses.replace(view.compiled.pieces[0].container, operators=operators)),
        config=HOSTILE,
    )
    plain, hostile = Page(run_page(view)), Page(run_page(bad))
    assert [tag for tag, _ in plain.tags] == [tag for tag, _ in hostile.tags]  # not one element more
    assert not any("onerror" in attrs for _, attrs in hostile.tags)
    assert set(plain.data) == set(hostile.data)


def test_engines_are_accounted_for(view: RunView) -> None:
    drawn = engine_shares(view.timeline(view.levels[-1]))
    total = [sum(bar.x[i] for bar in drawn.data) for i in range(len(drawn.data[0].x))]
    assert total == pytest.approx([1.0] * len(total), abs=1e-9)


def test_a_crossing_separates_the_faster_from_the_slower(view: RunView) -> None:
    response = view.response
    for c in crossings(view):
        light, heavy = (response.variants.index(name) for name in (c.lighter, c.heavier))
        above, below = response.cycles_at(1 / (c.share * 1.02)), response.cycles_at(1 / (c.share * 0.98))
        assert above[light] <= above[heavy]
        assert below[heavy] <= below[light]


def test_the_command_writes_where_it_says(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run_folder), "--out", str(tmp_path / "page.html"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    written = (tmp_path / "page.html").read_bytes()
    assert told == {"report": str(tmp_path / "page.html"), "bytes": len(written)}
    assert re.match(rb"<!doctype html>", written)
    assert main(["report", str(run_folder), "--out", str(tmp_path / "none" / "page.html")]) == 2
