"""Summary of a run; every number comes from its plans, programs, values and log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np

import simulator
from compiler.bound.bound import TERMS, Bound, Terms
from compiler.build import MeasuredModel
from compiler.model import LoweredModel
from compiler.package.stack_files import PackagedFiles
from simulator.npu.parts import Engine
from simulator.npu.shared_traffic import shared_traffic
from tuner.config import NPU, TuneConfig
from tuner.cost_model.messages import Proposer
from tuner.farm.board_finals import levels_read, pieces_read, readings_taken, runner_summary
from tuner.farm.search_run import SearchEnd, SearchRun
from tuner.farm.subgraph_searches import SearchedSubgraph
from tuner.finalize.champions import ChosenPlans, choose_plans, store_champions
from tuner.finalize.compile import CompiledRun, compile_plans
from tuner.log.read import read_log
from tuner.measure.host import host_nodes, mac_share
from tuner.measure.roofline import Roofline
from tuner.measure.store_lookup import WORKER
from tuner.platform.crash import version_of
from tuner.platform.interfaces import Clock
from tuner.platform.local_files import LocalPath
from tuner.run_session import SessionEnd
from tuner.runs.folder import RunFolder, RunIdentity, write_json
from tuner.summary import (
    BoundSummary,
    BudgetUse,
    GainSummary,
    GroupedSummary,
    LevelSummary,
    MeasurementsUse,
    PackagedSummary,
    PieceSummary,
    ProposerSummary,
    Summary,
    TargetSummary,
    TensorSummary,
    rounded_pace,
)
from tuner.tune_request import TuneRequest

_PACKAGES = ("tilefarm", "numpy", "numba", "onnx", "onnxruntime", "ray", "pyarrow", "pandas", "xgboost", "optuna")


def finalize(
    clock: Clock, opened: LoweredModel, end: SessionEnd[LocalPath], config: TuneConfig, request: TuneRequest, begun_s: float
) -> Summary:
    """Write the plans, the file and the summary of a run whose budget is spent.  begun_s: start, on the clock."""
    chosen = choose_plans(opened, end, config, request)
    compiled = compile_plans(opened, end, chosen, config, request)
    summary = summarize(opened, end, chosen, compiled, config, request, clock.monotonic_s() - begun_s)
    write_json(end.folder.summary, json.loads(summary.model_dump_json()))
    if not _began_with_champions(end):
        store_champions(end.runs, opened, chosen)
    return summary


def summarize(
    opened: LoweredModel, end: SessionEnd[LocalPath], chosen: ChosenPlans, compiled: CompiledRun, config: TuneConfig, request: TuneRequest,
    wall_s: float,
) -> Summary:  # fmt: skip
    """Summary of a run whose plans are compiled."""
    folder, searches, runs = end
    variants, read, verdicts = compiled.shipped.variants, compiled.read, chosen.verdicts
    counted = [run.ledger.counted for run in runs]
    candidates = sum(counts.champions.programs for counts in counted)
    stored_tasks, stored_readings = _stored_readings(folder)
    measurements = _measurements(chosen, [counts.readings for counts in counted], stored_readings)
    beyond = next((values.beyond for values in compiled.values.values() if values.beyond is not None), None)
    levels, pieces = _levels(opened, runs[0].levels, compiled), _pieces(opened, searches, variants)
    if read is not None:  # a board's cycles in place of the simulator's
        by_plan = {chosen.plans[name].digest: plans for name, plans in reversed(chosen.by_search.items())}
        pieces = pieces_read(pieces, searches, verdicts, {level: by_plan[variant.plan.digest] for level, variant in variants.items()})
        levels = levels_read(levels, read, chosen.baselines, opened)
    pairs = list(zip(searches, runs, strict=True))
    proposers = () if _began_with_champions(end) else tuple(chain.from_iterable(_proposers(*pair) for pair in pairs))
    return Summary(
        status="unconfirmed" if compiled.unconfirmed else "done",
        unconfirmed=compiled.unconfirmed,
        first_beyond=None if beyond is None else TensorSummary.of(beyond, opened.source.dtype),
        weights_beyond=tuple(TensorSummary.of(weight, opened.source.dtype) for weight in opened.weights_beyond),
        run=folder.run,
        model=opened.name,
        model_digest=opened.digest,
        machine=opened.machine.name,
        machine_digest=opened.machine.digest,
        dtype=request.dtype,
        frames=opened.frames,
        seed=request.seed,
        tags=dict(tag.split("=", 1) for tag in request.tag.split(",") if "=" in tag),
        versions={name: version_of(name, "source tree") for name in _PACKAGES} | {"simulator": simulator.VERSION},
        config_digest=config.digest,
        budget=_budget(config, candidates, measurements.asked, wall_s),
        measurements=measurements,
        core_hours=round(sum(run.ledger.core_s for run in runs) / 3600, 6),
        stopped=tuple(run.conductor.stopped or "budget" for run in runs),
        search_gain=None if _began_with_champions(end) else _search_gain(searches, runs, chosen.ends),
        warm_start=tuple(line for run in runs for line in run.warm_start),
        wall_s=round(wall_s, 3),
        candidates=candidates,
        candidates_per_s=round(candidates / wall_s, 3),
        tasks=sum(counts.tasks for counts in counted),
        stored_tasks=stored_tasks,
        failures=dict(sum((counts.failures for counts in counted), Counter[str]())),
        instructions={level: variant.instructions for level, variant in variants.items()},
        variants=len({variant.digest for variant in variants.values()}),
        cost_model=dict(chain.from_iterable(_model_metrics(opened, *pair).items() for pair in pairs)),
        proposers=proposers,
        npu_mac_share=mac_share(opened.part).share,
        grouped=None if opened.grouped is None else GroupedSummary(**opened.grouped._asdict()),
        host=host_nodes(opened.part, opened.machine),
        pieces=pieces,
        runner=runner_summary(config, searches, verdicts) if verdicts else None,
        target=_target(config, searches, chosen.ends, runs[0].levels),
        packaged=_packaged(folder, compiled.packaged),
        robust=compiled.shipped.robust,
        levels=levels,
    )


def _packaged(folder: RunFolder[LocalPath], packaged: PackagedFiles | None) -> PackagedSummary | None:
    """Files of a part's own stack by name; None without them."""
    if packaged is None:
        return None
    names = tuple(folder.best.with_suffix(suffix).name for suffix in packaged.files)
    return PackagedSummary(files=names, moved=dict(packaged.moved), on_processor=packaged.on_processor)


def _began_with_champions(end: SessionEnd[LocalPath]) -> bool:
    """Whether champions of a store replaced the searches."""
    assert isinstance(end.folder.identity, RunIdentity)
    return bool(end.folder.identity.champions)


def _measurements(chosen: ChosenPlans, readings: Sequence[int], stored: int) -> MeasurementsUse:
    """Readings of all searches and of the finals.  stored: readings taken from the store."""
    spending = chosen.spending
    used = Counter(search=sum(readings), canary=sum(spending.canaries(count) for count in readings), finals=readings_taken(chosen.verdicts))
    set_aside = spending.finals * len(readings) if spending.measurements is not None else 0
    return MeasurementsUse(**used, set_aside=set_aside, asked=used.total(), paid=used.total() - stored)


def _target(
    config: TuneConfig, searches: Sequence[SearchedSubgraph], ends: Sequence[SearchEnd], levels: Sequence[str]
) -> TargetSummary | None:
    """Target that timed plans and its cycles, None for the NPU; pieces that share a search take the same."""
    if config.target.name == NPU:
        return None
    pairs = list(zip(searches, ends, strict=True))
    cycles = {level: sum(len(search.pieces) * int(end.best[i].cycles[i]) for search, end in pairs) for i, level in enumerate(levels)}
    return TargetSummary(name=config.target.name, cycles=cycles)


def _search_gain(searches: Sequence[SearchedSubgraph], runs: Sequence[SearchRun], ends: Sequence[SearchEnd]) -> GainSummary:
    """Gain of all searches, weighted by the cycles of their champions."""
    courses = [run.saturation for run in runs]
    weights = [
        len(search.pieces) * sum(int(member.cycles[level]) for level, member in enumerate(end.best))
        for search, end in zip(searches, ends, strict=True)
    ]
    expected = [course.expected for course in courses]
    shares = [share for share in expected if share is not None]
    return GainSummary(
        gain=round(float(np.average([course.gain for course in courses], weights=weights)), 6),
        expected=round(float(np.average(shares, weights=weights)), 6) if len(shares) == len(expected) else None,
        saturated=all(course.reached for course in courses),
    )


def _stored_readings(folder: RunFolder[LocalPath]) -> tuple[int, int]:
    """Tasks and readings taken from the store, from the log, over all sessions of the run."""
    rows = read_log(folder.path, ("worker", "level_index", "readings"))
    rows = rows[rows["worker"].astype("str").str.startswith(WORKER)]
    return int((rows["level_index"] == 0).sum()), int(rows["readings"].sum())


def _pieces(opened: LoweredModel, searches: Sequence[SearchedSubgraph], measured: Mapping[str, MeasuredModel]) -> tuple[PieceSummary, ...]:
    if len(opened.names) == 1:
        return ()
    by_piece = {k: search.run for search in searches for k in search.pieces}
    return tuple(
        PieceSummary(
            piece=name,
            search=by_piece[k],
            operators=len(target_graph.operators),
            first_operator=target_graph.operators[0].name,
            last_operator=target_graph.operators[-1].name,
            cycles={level: m.pieces[k].timings[level].cycles for level, m in measured.items()},
        )
        for k, (name, target_graph) in enumerate(zip(opened.names, opened.target_graphs, strict=True))
    )


def _levels(opened: LoweredModel, levels: Sequence[str], compiled: CompiledRun) -> dict[str, LevelSummary]:
    bounds = [Bound(target_graph) for target_graph in opened.target_graphs]
    return {level: _level(opened, level, compiled, [bound.of(level) for bound in bounds]) for level in levels}


def _level(opened: LoweredModel, level: str, compiled: CompiledRun, bounds: Sequence[Terms]) -> LevelSummary:
    machine, variants = opened.machine, compiled.shipped.variants
    values = compiled.values[level].worst if compiled.values else None
    variant, timing = variants[level], variants[level].timings[level]
    busy = timing.busy_cycles.sum(0) / (timing.cycles * machine.cores)
    baseline = compiled.baselines[level].timings[level].cycles
    return LevelSummary(
        ddr=machine.contention[level],
        cycles=timing.cycles,
        **rounded_pace(timing.cycles, opened.frames, machine.clock_hz),
        plan=variant.plan.digest,
        same_as=compiled.same_as[level],
        roofline_cycles=sum(Roofline(target_graph).cycles(0, len(target_graph.operators), level) for target_graph in opened.target_graphs),
        bound=BoundSummary(
            cycles=sum(terms.cycles for terms in bounds),
            ddr_bytes=sum(terms.traffic_bytes for terms in bounds),
            **{name: sum(terms.by_term[name] for terms in bounds) for name in TERMS},
        ),
        program_bound_cycles=variant.bound(machine, level),
        ddr_bytes=timing.ddr_read_bytes + timing.ddr_write_bytes,
        shared_moved_bytes=sum(shared_traffic(stream for program in variant.programs for stream in program.streams)),
        engine_utilisation={engine.name.lower(): round(float(busy[engine]), 4) for engine in Engine},
        balance=round(timing.balance, 4),
        baseline_layerwise_cycles=baseline,
        speedup=baseline / timing.cycles,
        variant_cycles={other_level: m.timings[level].cycles if level in m.timings else None for other_level, m in variants.items()},
        max_rel_error=values and values.error,
        rounding_rel_error=values and values.rounding,
        limit_rel_error=values and values.limit,
    )


def _budget(config: TuneConfig, searched: int, measured: int, wall_s: float) -> BudgetUse:
    used = {"candidates": searched, "measurements": measured, "seconds": round(wall_s, 3)}
    return BudgetUse(kind=config.budget.kind, requested=config.budget.amount, used=used[config.budget.kind])


def _model_metrics(opened: LoweredModel, search: SearchedSubgraph, run: SearchRun) -> dict[str, float]:
    out = {}
    piece = f"{opened.names[search.pieces[0]]}." if len(opened.names) > 1 else ""
    number = run.conductor.models_used
    for model in run.trainer.models[number - 1] if number else ():
        if model == run.trainer.prior:
            break  # the figures are for other networks
        for level, metrics in model.metrics.items():
            out[f"{piece}{level}.pair_accuracy"] = round(metrics.pair_accuracy, 4)
            out[f"{piece}{level}.rms_octaves"] = round(metrics.log2_error, 4)
    return out


def _proposers(search: SearchedSubgraph, run: SearchRun) -> Iterator[ProposerSummary]:
    """Proposers of a search: the first one, and the one after each judgement before the last epoch."""
    trainer = run.trainer
    began: Proposer = "estimate" if trainer.prior is None else "prior"
    yield ProposerSummary(search=search.run, segments=0, chosen=began, pairs={})
    for judged in trainer.judged[: max(0, run.conductor.models_used - (trainer.prior is not None))]:
        yield ProposerSummary(search=search.run, segments=judged.segments, chosen=judged.chosen, pairs=dict(judged.pairs))
