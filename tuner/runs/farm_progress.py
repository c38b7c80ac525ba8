"""Progress of a run's farm: its state while the driver writes one, and the core hours that the run has spent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simulator.npu.errors import BadInputError
from tuner.platform.interfaces import Clock
from tuner.runs.farm_limits import farm_limit
from tuner.runs.farm_state import FarmState, read_farm_state
from tuner.runs.folder import read_json
from tuner.runs.list_runs import ENDED, RunEntry, budget_of
from tuner.runs.subgraph_runs import search_folders

FRESH_S = 120.0  # a driver that wrote no state for so long is not taken for an active one


@dataclass(frozen=True)
class FarmProgress:
    """Progress.  state: of an active run, else None.  core_hours: of all sessions; limit: `budget.core_hours`, or None."""

    state: FarmState | None
    core_hours: float
    limit: float | None

    def to_json(self) -> dict[str, Any]:
        """Entries of `status --json`; null where the run is not active."""
        state = self.state
        rule = None if state is None else farm_limit(state)
        workers = None if state is None else {"busy": state.busy, "idle": state.idle, "joining": state.joining}
        return {
            "nodes": None if state is None else dict(state.nodes),
            "workers": workers,
            "queued_jobs": None if state is None else state.queued,
            "busy_share": None if state is None else state.busy_share,
            "driver_share": None if state is None else state.driver_share,
            "core_hours": self.core_hours,
            "of_core_hours": self.limit,
            "limited_by": None if rule is None or state is None else {"rule": rule.name, "sentence": rule.sentence(state)},
        }


def read_farm_progress(run: RunEntry, clock: Clock) -> FarmProgress:
    """Progress of the farm of a run.  clock: of the reader.  Raises `BadInputError` for an unreadable state."""
    state = None if run.state in (*ENDED, "stopped") else read_farm_state(run.path)
    if state is not None and (clock.epoch_us() - state.time_us) * 1e-6 > FRESH_S:
        state = None
    return FarmProgress(state, round(_core_s(run) / 3600, 6), budget_of(run.path).core_hours)


def _core_s(run: RunEntry) -> float:
    """CPU seconds of all searches, from the summary or the last checkpoints; 0 before them."""
    if run.summary is not None:
        return float(run.summary.get("core_hours", 0.0)) * 3600
    total, folder = 0.0, run.path / "checkpoint"
    for name in search_folders(run.path):
        try:
            total += float(read_json((folder / name if name else folder) / "state.json")["state"]["core_s"])
        except (BadInputError, KeyError, TypeError, ValueError):  # no checkpoint yet, or of another version
            continue
    return total
