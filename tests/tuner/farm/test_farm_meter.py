"""Shares of a farm are those of the time between looks, however often the driver looks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.farm.farm_meter import EVERY_S, FarmMeter
from tuner.runs.farm_state import FarmState, StaffCounts

LOOKS = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 8), st.floats(0.01, 2), st.floats(0, 1), st.floats(0, 0.5), st.integers(0, 50)),
    min_size=20,
    max_size=60,
)
"""Busy and idle workers until the next look, its seconds, the driver's share of them, that of writing, and the tasks committed then."""


STARTING = StaffCounts(0, 0, 3, 5)


@dataclass
class World:
    """Clocks, workers and a ledger."""

    now_s: float = 0.0
    cpu_s: float = 0.0
    staff: StaffCounts = STARTING
    states: list[FarmState] = field(default_factory=list)
    ledger: Any = field(default_factory=lambda: SimpleNamespace(answered=0, hits=0, core_s=7200.0))
    schedule: Any = field(default_factory=lambda: SimpleNamespace(most_jobs=16, awaits_model=True))

    def counts(self) -> StaffCounts:
        return self.staff

    def nodes(self) -> Mapping[str, int]:
        return {"host": self.staff.busy + self.staff.idle}

    def meter(self) -> FarmMeter:
        clock: Any = SimpleNamespace(monotonic_s=lambda: self.now_s, cpu_s=lambda: self.cpu_s, epoch_us=lambda: 0)
        return FarmMeter(self, clock, self.states.append)


@settings(max_examples=30)
@given(LOOKS)
def test_shares_are_of_time(looks: list[tuple[int, int, float, float, float, int]]) -> None:
    world = World()
    meter = world.meter()
    window: list[tuple[int, int, float, float, float, int]] = []
    for look in looks:
        busy, idle, seconds, computes, writes, tasks = look
        world.staff = StaffCounts(busy, idle, 0, 1)
        meter.look(world.ledger, world.schedule)
        with meter.writing():
            world.now_s += seconds * writes
        world.now_s += seconds * (1 - writes)
        world.cpu_s += seconds * computes
        world.ledger.answered += tasks
        window.append(look)
        before = len(world.states)
        meter.look(world.ledger, world.schedule)
        passed_s = sum(seconds for _, _, seconds, *_ in window)
        assert (len(world.states) > before) == (passed_s >= EVERY_S - 1e-9)
        if len(world.states) == before:
            continue
        state, able_s = world.states[-1], sum((busy + idle) * seconds for busy, idle, seconds, *_ in window)
        busy_s = sum(busy * seconds for busy, _, seconds, *_ in window)
        assert state.busy_share == pytest.approx(busy_s / able_s if able_s else 0.0, abs=1e-4)
        assert state.driver_share == pytest.approx(sum(s * computes for _, _, s, computes, _, _ in window) / passed_s, abs=1e-4)
        assert state.disk_share == pytest.approx(sum(s * writes for _, _, s, _, writes, _ in window) / passed_s, abs=1e-4)
        assert state.tasks_per_s == pytest.approx(sum(tasks for *_, tasks in window) / passed_s, abs=0.01)
        assert (state.busy, state.idle, state.queued, state.tasks) == (busy, idle, 1, world.ledger.answered)
        assert (state.most_jobs, state.training, state.core_s) == (16, True, 7200.0)
        window.clear()
