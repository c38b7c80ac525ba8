"""Plans of a model for which nothing is measured: by the estimate or by a cost model, fused or layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from compiler.build import default_by_level
from compiler.plan.plan import Plan, joined
from compiler.quick import quick_plans
from compiler.source import Opened


def unmeasured_plans(opened: Opened, layerwise: bool, model: Path | None) -> Mapping[str, Plan]:
    """Level -> plan.  model: of `tilefarm train`; None for the estimate.  Raises `BadInputError`, `InfeasibleError`."""
    if model is None:
        return default_by_level(opened) if layerwise else quick_plans(opened)
    from compiler.cost.features import scaled
    from tuner.learn.cost_model import predict_at
    from tuner.learn.tile_model import load_models, tiled_plans

    models = load_models(model, opened.units[0])
    if not layerwise:
        return quick_plans(opened, lambda _: lambda raw, levels: predict_at([models[level] for level in levels], scaled(raw)))
    tiled = {name: tiled_plans(compiler, models) for name, compiler in zip(opened.names, opened.compilers, strict=True)}
    return {level: joined({name: each[level] for name, each in tiled.items()}) for level in opened.machine.contention}
