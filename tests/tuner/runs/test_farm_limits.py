"""The sentence on what limits a run names the cause that was planted into the state of its farm, with the state's own figures."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.npu.errors import BadInputError
from tuner.platform.local_files import LocalPath
from tuner.runs.farm_limits import BUSY, DISK, DRIVER, JOINING, LIMITS, farm_limit
from tuner.runs.farm_metrics import METRICS
from tuner.runs.farm_state import FILE, FarmState, read_farm_state, write_farm_state

SHARES = st.floats(0, 1)
COUNTS = st.integers(0, 2000)
STATES = st.builds(
    FarmState, time_us=st.integers(0, 2**50), window_s=st.floats(0, 1e4), nodes=st.dictionaries(st.text(max_size=9), st.integers(1, 99)),
    busy=COUNTS, idle=COUNTS, joining=COUNTS, queued=COUNTS, most_jobs=st.integers(1, 2000), training=st.booleans(), serial=st.booleans(),
    busy_share=SHARES, driver_share=st.floats(0, 8), disk_share=SHARES, tasks=COUNTS, hits=COUNTS, tasks_per_s=st.floats(0, 1e5),
    core_s=st.floats(0, 1e9),
)  # fmt: skip


@st.composite
def healthy(draw: st.DrawFn) -> FarmState:
    """A farm of workers that are not busy, and wait for a job: no other cause is left."""
    busy, idle = draw(st.integers(0, 500)), draw(st.integers(1, 500))
    return draw(STATES.map(lambda state: replace(
        state, busy=busy, idle=idle, joining=0, most_jobs=busy + idle + draw(st.integers(1, 99)), serial=False, training=False,
        busy_share=draw(st.floats(0, BUSY * 0.99)), driver_share=draw(st.floats(0, DRIVER * 0.99)),
        disk_share=draw(st.floats(0, DISK * 0.99)),
    )))  # fmt: skip


PLANTED: Mapping[str, Any] = {
    "start": lambda state, draw: {"busy": 0, "idle": 0, "joining": draw(st.integers(1, 99))},
    "process": lambda state, draw: {"serial": True},
    "disk": lambda state, draw: {"disk_share": draw(st.floats(DISK, 1))},
    "driver": lambda state, draw: {"driver_share": draw(st.floats(DRIVER, 3))},
    "workers": lambda state, draw: {"busy_share": draw(st.floats(BUSY, 1)), "driver_share": draw(st.floats(0, 3))},
    "lag": lambda state, draw: {"most_jobs": draw(st.integers(1, state.workers))},
    "joining": lambda state, draw: {"joining": int(state.workers * JOINING / (1 - JOINING)) + draw(st.integers(1, 9))},
    "training": lambda state, draw: {"training": True},
    "slowest job": lambda state, draw: {},
}


@pytest.mark.parametrize("name", [limit.name for limit in LIMITS])
@settings(max_examples=25)
@given(st.data())
def test_planted_cause_is_named(name: str, data: st.DataObject) -> None:
    state = data.draw(healthy())
    limit = farm_limit(replace(state, **PLANTED[name](state, data.draw)))
    assert limit.name == name


@settings(max_examples=100)
@given(STATES)
def test_sentence_has_figures_of_the_state(state: FarmState) -> None:
    sentence = farm_limit(state).sentence(state)
    shares = {f"{share:.0%}" for share in (state.busy_share, state.driver_share, state.disk_share)}
    counts = {str(count) for count in (state.workers, state.joining, state.workers + state.joining, state.most_jobs)}
    assert set(re.findall(r"\d+%|\d+", sentence)) <= shares | counts
    assert "\n" not in sentence


@settings(max_examples=50)
@given(STATES)
def test_a_state_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, state: FarmState) -> None:
    folder = LocalPath(tmp_path_factory.getbasetemp())
    write_farm_state(folder, state)
    assert read_farm_state(folder) == state


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw.pop("busy"),
        lambda raw: raw.update(more=1),
        lambda raw: raw.update(idle="3"),
        lambda raw: raw.update(idle=-1),
        lambda raw: raw.update(nodes=[]),
        lambda raw: raw.update(nodes={"host": None}),
    ],
)
def test_another_content_is_refused(tmp_path: Path, change: Any) -> None:
    write_farm_state(LocalPath(tmp_path), FarmState(nodes={"host": 2}))
    raw = json.loads((tmp_path / FILE).read_text())
    change(raw)
    (tmp_path / FILE).write_text(json.dumps(raw))
    with pytest.raises(BadInputError, match=r"farm\.json: not the state of a farm; expected"):
        read_farm_state(LocalPath(tmp_path))
    assert read_farm_state(LocalPath(tmp_path / "none")) is None


@settings(max_examples=50)
@given(STATES)
def test_metrics_are_numbers_of_a_state(state: FarmState) -> None:
    values = {metric.name: metric.value(state) for metric in METRICS}
    assert len(values) == len(METRICS)
    assert all(value >= 0 for value in values.values())
    assert values["tilefarm_workers"] == values["tilefarm_workers_busy"] + state.idle
