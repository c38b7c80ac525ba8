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
from compiler.frontend.partition.node_counts import count_nodes
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
    clock: Clock, model: LoweredModel, end: SessionEnd[LocalPath], config: TuneConfig, request: TuneRequest, begun_s: float
) -> Summary:
    """Write the plans, the file and the summary of a run whose budget is spent.  begun_s: start, on the clock."""
    choice = choose_plans(model, end, config, request)
    outcome = compile_plans(model, end, choice, config, request)
    summary = summarize(model, end, choice, outcome, config, request, clock.monotonic_s() - begun_s)
    write_json(end.folder.summary, json.loads(summary.model_dump_json()))
    if not _began_with_champions(end):
        store_champions(end.runs, model, choice)
    return summary


def summarize(
    model: LoweredModel, end: SessionEnd[LocalPath], choice: ChosenPlans, outcome: CompiledRun, config: TuneConfig, request: TuneRequest,
    wall_s: float,
) -> Summary:  # fmt: skip
    """Summary of a run whose plans are compiled."""
    folder, searches, runs = end
    variants, read, verdicts = outcome.shipped.variants, outcome.read, choice.verdicts
    counters = [run.ledger.counted for run in runs]
    candidates = sum(counts.champions.programs for counts in counters)
    stored_tasks, stored_readings = _stored_readings(folder)
    measurements = _measurements(choice, [counts.readings for counts in counters], stored_readings)
    beyond = next((values.beyond for values in outcome.values.values() if values.beyond is not None), None)
    levels, pieces = _levels(model, runs[0].levels, outcome), _pieces(model, searches, variants)
    if read is not None:  # a board's cycles in place of the simulator's
        plan_names = {choice.plans[name].digest: plans for name, plans in reversed(choice.by_search.items())}
        pieces = pieces_read(pieces, searches, verdicts, {level: plan_names[variant.plan.digest] for level, variant in variants.items()})
        levels = levels_read(levels, read, choice.baselines, model)
    pairs = list(zip(searches, runs, strict=True))
    proposers = () if _began_with_champions(end) else tuple(chain.from_iterable(_proposers(*pair) for pair in pairs))
    return Summary(
        status="unconfirmed" if outcome.unconfirmed else "done",
        unconfirmed=outcome.unconfirmed,
        first_beyond=None if beyond is None else TensorSummary.of(beyond, model.source.dtype),
        weights_beyond=tuple(TensorSummary.of(weight, model.source.dtype) for weight in model.weights_beyond),
        run=folder.run,
        model=model.name,
        model_digest=model.digest,
        machine=model.machine.name,
        machine_digest=model.machine.digest,
        dtype=request.dtype,
        frames=model.frames,
        seed=request.seed,
        tags=dict(tag.split("=", 1) for tag in request.tag.split(",") if "=" in tag),
        versions={name: version_of(name, "source tree") for name in _PACKAGES} | {"simulator": simulator.VERSION},
        config_digest=config.digest,
        budget=_budget(config, candidates, measurements.asked, wall_s),
        measurements=measurements,
        core_hours=round(sum(run.ledger.core_s for run in runs) / 3600, 6),
        stopped=tuple(run.conductor.stopped or "budget" for run in runs),
        search_gain=None if _began_with_champions(end) else _search_gain(searches, runs, choice.ends),
        warm_start=tuple(line for run in runs for line in run.warm_start),
        wall_s=round(wall_s, 3),
        candidates=candidates,
        candidates_per_s=round(candidates / wall_s, 3),
        tasks=sum(counts.tasks for counts in counters),
        stored_tasks=stored_tasks,
        failures=dict(sum((counts.failures for counts in counters), Counter[str]())),
        instructions={level: variant.instructions for level, variant in variants.items()},
        variants=len({variant.digest for variant in variants.values()}),
        cost_model=dict(chain.from_iterable(_model_metrics(model, *pair).items() for pair in pairs)),
        proposers=proposers,
        npu_mac_share=mac_share(model.part).share,
        nodes=count_nodes(model.part)._asdict(),
        grouped=None if model.grouped is None else GroupedSummary(**model.grouped._asdict()),
        host=host_nodes(model.part, model.machine),
        pieces=pieces,
        runner=runner_summary(config, searches, verdicts) if verdicts else None,
        target=_target(config, searches, choice.ends, runs[0].levels),
        packaged=_packaged(folder, outcome.packaged),
        robust=outcome.shipped.robust,
        levels=levels,
    )


def _packaged(folder: RunFolder[LocalPath], stack: PackagedFiles | None) -> PackagedSummary | None:
    """Files of a part's own stack by name; None without them."""
    if stack is None:
        return None
    names = tuple(folder.best.with_suffix(suffix).name for suffix in stack.files)
    return PackagedSummary(files=names, moved=dict(stack.moved), on_processor=stack.on_processor)


def _began_with_champions(end: SessionEnd[LocalPath]) -> bool:
    """Whether champions of a store replaced the searches."""
    assert isinstance(end.folder.identity, RunIdentity)
    return bool(end.folder.identity.champions)


def _measurements(choice: ChosenPlans, readings: Sequence[int], store_readings: int) -> MeasurementsUse:
    """Readings of all searches and of the finals.  store_readings: readings taken from the store."""
    spending = choice.spending
    uses = Counter(search=sum(readings), canary=sum(spending.canaries(count) for count in readings), finals=readings_taken(choice.verdicts))
    set_aside = spending.finals * len(readings) if spending.measurements is not None else 0
    return MeasurementsUse(**uses, set_aside=set_aside, asked=uses.total(), paid=uses.total() - store_readings)


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
    expectations = [course.expected for course in courses]
    shares = [share for share in expectations if share is not None]
    return GainSummary(
        gain=round(float(np.average([course.gain for course in courses], weights=weights)), 6),
        expected=round(float(np.average(shares, weights=weights)), 6) if len(shares) == len(expectations) else None,
        saturated=all(course.reached for course in courses),
    )


def _stored_readings(folder: RunFolder[LocalPath]) -> tuple[int, int]:
    """Tasks and readings taken from the store, from the log, over all sessions of the run."""
    rows = read_log(folder.path, ("worker", "level_index", "readings"))
    rows = rows[rows["worker"].astype("str").str.startswith(WORKER)]
    return int((rows["level_index"] == 0).sum()), int(rows["readings"].sum())


def _pieces(model: LoweredModel, searches: Sequence[SearchedSubgraph], variants: Mapping[str, MeasuredModel]) -> tuple[PieceSummary, ...]:
    if len(model.names) == 1:
        return ()
    search_of = {k: search.run for search in searches for k in search.pieces}
    return tuple(
        PieceSummary(
            piece=name,
            search=search_of[k],
            operators=len(target_graph.operators),
            first_operator=target_graph.operators[0].name,
            last_operator=target_graph.operators[-1].name,
            cycles={level: m.pieces[k].timings[level].cycles for level, m in variants.items()},
        )
        for k, (name, target_graph) in enumerate(zip(model.names, model.target_graphs, strict=True))
    )


def _levels(model: LoweredModel, levels: Sequence[str], outcome: CompiledRun) -> dict[str, LevelSummary]:
    bounds = [Bound(target_graph) for target_graph in model.target_graphs]
    return {level: _level(model, level, outcome, [bound.of(level) for bound in bounds]) for level in levels}


def _level(model: LoweredModel, level: str, outcome: CompiledRun, bounds: Sequence[Terms]) -> LevelSummary:
    machine, variants = model.machine, outcome.shipped.variants
    values = outcome.values[level].worst if outcome.values else None
    variant, timing = variants[level], variants[level].timings[level]
    busy = timing.busy_cycles.sum(0) / (timing.cycles * machine.cores)
    baseline = outcome.baselines[level].timings[level].cycles
    return LevelSummary(
        ddr=machine.contention[level],
        cycles=timing.cycles,
        **rounded_pace(timing.cycles, model.frames, machine.clock_hz),
        plan=variant.plan.digest,
        same_as=outcome.same_as[level],
        roofline_cycles=sum(Roofline(target_graph).cycles(0, len(target_graph.operators), level) for target_graph in model.target_graphs),
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


def _budget(config: TuneConfig, programs: int, readings: int, wall_s: float) -> BudgetUse:
    amounts = {"candidates": programs, "measurements": readings, "seconds": round(wall_s, 3)}
    return BudgetUse(kind=config.budget.kind, requested=config.budget.amount, used=amounts[config.budget.kind])


def _model_metrics(model: LoweredModel, search: SearchedSubgraph, run: SearchRun) -> dict[str, float]:
    out = {}
    piece = f"{model.names[search.pieces[0]]}." if len(model.names) > 1 else ""
    number = run.conductor.models_used
    for cost_model in run.trainer.models[number - 1] if number else ():
        if cost_model == run.trainer.prior:
            break  # the figures are for other networks
        for level, metrics in cost_model.metrics.items():
            out[f"{piece}{level}.pair_accuracy"] = round(metrics.pair_accuracy, 4)
            out[f"{piece}{level}.rms_octaves"] = round(metrics.log2_error, 4)
    return out


def _proposers(search: SearchedSubgraph, run: SearchRun) -> Iterator[ProposerSummary]:
    """Proposers of a search: the first one, and the one after each judgement before the last epoch."""
    trainer = run.trainer
    began: Proposer = "estimate" if trainer.prior is None else "prior"
    yield ProposerSummary(search=search.run, segments=0, chosen=began, pairs={})
    for judgement in trainer.judged[: max(0, run.conductor.models_used - (trainer.prior is not None))]:
        yield ProposerSummary(search=search.run, segments=judgement.segments, chosen=judgement.chosen, pairs=dict(judgement.pairs))
