"""Plans of a model without measurements: by the estimate or a cost model, fused or layer by layer.

Usually takes seconds; progress lines on stderr if it takes longer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from compiler.autoplan import quick_plans
from compiler.build import default_by_level
from compiler.model import LoweredModel
from compiler.plan.plan import Plan, joined
from compiler.planner.segmentation import Floats, Progress
from simulator.terminal import say

_FIRST_LINE_S, _LINE_EVERY_S = 2.0, 10.0  # first progress line, and interval of the next ones


def _now_and_then() -> Progress:
    """Progress callback that prints a line after `_FIRST_LINE_S`, then at most one per `_LINE_EVERY_S`."""
    next_s = time.monotonic() + _FIRST_LINE_S

    def report_line(line: str) -> None:
        nonlocal next_s
        if (now_s := time.monotonic()) >= next_s:
            next_s = now_s + _LINE_EVERY_S
            say(line)

    return report_line


def unmeasured_plans(lowered: LoweredModel, layerwise: bool, model: Path | None) -> Mapping[str, Plan]:
    """Plan for each level.  model: file from `tilefarm train`; None: the estimate.  Raises `BadInputError`, `InfeasibleError`."""
    if model is None:
        return default_by_level(lowered) if layerwise else quick_plans(lowered, progress=_now_and_then())
    from compiler.cost.features import scale_features
    from tuner.cost_model.interface import predict_at
    from tuner.cost_model.tiling_model import load_models, plan_tilings

    models = load_models(model, lowered.target_graphs[0])
    if not layerwise:

        def predict_levels(raw: Floats, levels: Sequence[str]) -> Floats:
            return predict_at([models[level] for level in levels], scale_features(raw))

        return quick_plans(lowered, lambda _: predict_levels, _now_and_then())
    tiled = {name: plan_tilings(compiler, models) for name, compiler in zip(lowered.names, lowered.compilers, strict=True)}
    return {level: joined({name: by_level[level] for name, by_level in tiled.items()}) for level in lowered.machine.contention}
