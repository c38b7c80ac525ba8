"""The end of a run: champions become plans, programs, containers, one file, and a summary whose every number is taken from those."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import simulator
from compiler.bound.bound import TERMS, Bound, Terms
from compiler.build import MeasuredModel, containers_of, measure, package, same_programs
from compiler.model import LoweredModel
from compiler.package import file_with_body
from compiler.plan.plan import Plan, joined
from simulator.npu.errors import InfeasibleError, TilefarmError
from simulator.npu.files import write_whole
from simulator.npu.machine import BASELINE
from simulator.npu.parts import Engine
from simulator.npu.shared_traffic import shared_traffic
from simulator.onnx_names import Style
from simulator.session import InferenceSession
from simulator.terminal import say
from tuner.config import NPU, TuneConfig
from tuner.cost_model.messages import Proposer
from tuner.farm.board_finals import cycles_read, levels_read, pieces_read, plan_for, readings_taken, runner_summary, verdicts
from tuner.farm.measurement_budget import Spending
from tuner.farm.robust_program import robust_plans
from tuner.farm.search_run import SearchEnd, SearchRun
from tuner.farm.subgraph_searches import SearchedSubgraph
from tuner.log.read import read_log
from tuner.measure.baseline import faster_in_file_order
from tuner.measure.grants import NEVER, same_grants
from tuner.measure.host import host_nodes, mac_share
from tuner.measure.roofline import Roofline
from tuner.measure.runners import runner_spec
from tuner.measure.store_lookup import WORKER
from tuner.platform.crash import one_line, version_of
from tuner.platform.interfaces import Clock
from tuner.platform.local_files import LocalPath
from tuner.request import TuneRequest
from tuner.runs.folder import OWN, RunFolder, RunIdentity, write_json
from tuner.selection.variant_choice import Candidates, not_judged, shipment
from tuner.store.champions import Champion
from tuner.summary import (
    BoundSummary,
    BudgetUse,
    GroupedSummary,
    LevelSummary,
    MeasurementsUse,
    PieceSummary,
    ProposerSummary,
    Summary,
    TargetSummary,
    TensorSummary,
    rounded_pace,
)
from tuner.verify.check import random_feeds
from tuner.verify.fixed_point import referred
from tuner.verify.reference import Stored, reference
from tuner.verify.values import Compared, Values, values_of

_PACKAGES = ("tilefarm", "numpy", "numba", "onnx", "onnxruntime", "ray", "pyarrow", "pandas", "xgboost", "optuna")


def finish(
    clock: Clock,
    opened: LoweredModel,
    found: Sequence[SearchedSubgraph],
    runs: Sequence[SearchRun],
    folder: RunFolder[LocalPath],
    config: TuneConfig,
    request: TuneRequest,
    begun_s: float,
) -> Summary:
    """Champions and the robust program become plans, programs, containers and one file; the summary's numbers are taken from those."""
    levels = runs[0].levels
    ends = [run.ended(str(folder.path)) for run in runs]
    target_graphs = [run.spec.target_graph for run in runs]
    best = {
        level: [end.best[i].plan(target_graph) for target_graph, end in zip(target_graphs, ends, strict=True)]
        for i, level in enumerate(levels)
    }
    bases = {
        level: [
            faster_in_file_order(
                opened.compilers[search.pieces[0]], end.baselines[group[0]].plan(target_graph), [levels[at] for at in group]
            )
            for target_graph, search, end in zip(target_graphs, found, ends, strict=True)
        ]
        for group in same_grants(opened.machine, levels)
        for level in (levels[group[0]],)
    }
    base_of = {levels[at]: levels[group[0]] for group in same_grants(opened.machine, levels) for at in group}
    places = [run.place for run in runs]
    tell = (lambda _: None) if request.quiet else say
    spending = Spending.of(config, len(levels), len(found))
    said = () if runner_spec(config) is None else verdicts(opened, found, places, bases, config, spending, request.address, tell)
    if said:
        best = {level: [verdict.plans[level] for verdict in said] for level in levels}
    robust_of_board = [plan for verdict in said if (plan := verdict.robust) is not None]
    middle = robust_plans(folder.path, found, levels) if not said else robust_of_board if len(robust_of_board) == len(said) else None
    named = {level: BASELINE if level == levels[0] else f"{BASELINE}.{level}" for level in bases}
    choices = {**best, **{named[level]: each for level, each in bases.items()}, **({} if middle is None else {"robust": middle})}
    plans = {name: _joined(opened, found, chosen) for name, chosen in choices.items()}
    own, baselines = {level: plans[level] for level in levels}, {level: plans[named[base_of[level]]] for level in levels}
    _write_plans(folder.plans, plans)
    _write_plans(folder.plans / OWN, own)
    target = _target(config, found, ends, levels)
    try:
        champions = measure(opened, own)
    except InfeasibleError as error:
        if target is None:
            raise
        raise InfeasibleError(f"the NPU has no program for a champion of target {target.name}: {error}; plans: {folder.plans}") from None
    for i, level in enumerate(levels if not said and target is None else ()):
        for search, end in zip(found, ends, strict=True):
            cycles, expected = champions[level].pieces[search.pieces[0]].timings[level].cycles, int(end.best[i].cycles[i])
            if cycles != expected:
                raise RuntimeError(f"level {level}: the champion took {expected} cycles when measured, {cycles} when compiled")
    read = {plans[name].digest: cycles_read(found, said, chosen, levels) for name, chosen in choices.items()} if said else None
    candidates = Candidates(champions, _robust(opened, plans.get("robust"), levels, target))
    shipped = shipment(opened, candidates, request.variants, read, not_judged(config.runner.name, config.target.name), request.insure)
    measured = shipped.variants
    _write_plans(folder.plans, {level: m.plan for level, m in measured.items()})
    base = measure(opened, baselines)
    package(opened, containers_of(opened, measured), folder.best, request.style)
    same_as = same_programs(measured)
    try:
        values, missing = _values(opened, folder, same_as, request.style), ""
    except (TilefarmError, OSError) as error:  # a search is not thrown away for want of a comparison
        values, missing = {}, f"not compared with onnxruntime: {one_line(error)}"
    faults = tuple(f"level {level}: {fault}" for level in values if same_as[level] is None for fault in values[level].faults)
    unconfirmed = (missing,) if missing else faults
    beyond = next((found.beyond for found in values.values() if found.beyond is not None), None)
    assert isinstance(folder.identity, RunIdentity)
    known = bool(folder.identity.champions)
    wall_s = clock.monotonic_s() - begun_s
    counted = [run.ledger.counted for run in runs]
    searched = sum(each.champions.programs for each in counted)
    stored_tasks, stored_readings = _stored(folder)
    used = Counter(
        search=sum(each.readings for each in counted),
        canary=sum(spending.canaries(each.readings) for each in counted),
        finals=readings_taken(said),
    )
    measurements = MeasurementsUse(
        **used,
        set_aside=spending.finals * len(found) if spending.measurements is not None else 0,
        asked=used.total(),
        paid=used.total() - stored_readings,
    )
    failures = sum((each.failures for each in counted), Counter[str]())
    bounds = [Bound(target_graph) for target_graph in opened.target_graphs]
    rows = {
        level: _level(
            opened, level, measured, base, same_as[level], values[level].worst if values else None, [bound.of(level) for bound in bounds]
        )
        for level in levels
    }
    pieces = _pieces(opened, found, measured)
    summary = Summary(
        status="unconfirmed" if unconfirmed else "done",
        unconfirmed=unconfirmed,
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
        budget=_budget(config, searched, measurements.asked, wall_s),
        measurements=measurements,
        stopped=tuple(run.conductor.stopped or "budget" for run in runs),
        warm_start=tuple(line for run in runs for line in run.warm_start),
        wall_s=round(wall_s, 3),
        candidates=searched,
        candidates_per_s=round(searched / wall_s, 3),
        tasks=sum(each.tasks for each in counted),
        stored_tasks=stored_tasks,
        failures=dict(failures),
        instructions={level: m.instructions for level, m in measured.items()},
        variants=len({m.digest for m in measured.values()}),
        cost_model=dict(pair for search, run in zip(found, runs, strict=True) for pair in _model_metrics(opened, search, run).items()),
        proposers=() if known else tuple(each for search, run in zip(found, runs, strict=True) for each in _proposers(search, run)),
        npu_mac_share=mac_share(opened.part).share,
        grouped=None if opened.grouped is None else GroupedSummary(**opened.grouped._asdict()),
        host=host_nodes(opened.part),
        pieces=pieces
        if read is None
        else pieces_read(pieces, found, said, {level: _chosen(choices, plans, m) for level, m in measured.items()}),
        runner=runner_summary(config, found, said) if said else None,
        target=target,
        robust=shipped.robust,
        levels=rows if read is None else levels_read(rows, read, baselines, opened),
    )
    write_json(folder.summary, json.loads(summary.model_dump_json()))
    if not known:
        for at, run in enumerate(runs):
            _keep(run, opened, {level: each[at] for level, each in best.items()}, None if middle is None else middle[at])
    return summary


def _keep(run: SearchRun, opened: LoweredModel, best: Mapping[str, Plan], robust: Plan | None) -> None:
    """Champions in the store, where there is one."""
    if run.storing is None:
        return
    counted, levels = run.ledger.counted, run.levels
    of = {}
    for at, level in enumerate(levels):
        found = counted.champions.best[at]
        assert found is not None
        fits = {name: int(cycles) for name, cycles in zip(levels, found.cycles, strict=True) if cycles < NEVER}
        of[level] = Champion(plan=best[level], cycles=fits)
    run.storing.keep(opened.digest, of, robust, counted.champions.programs, counted.readings)


def _robust(opened: LoweredModel, plan: Plan | None, levels: Sequence[str], target: TargetSummary | None) -> MeasuredModel | None:
    """None where there is none, or where it was another target's and the NPU has no program for it."""
    if plan is None:
        return None
    try:
        return measure(opened, dict.fromkeys(levels, plan))[levels[0]]
    except InfeasibleError:
        if target is None:
            raise
        return None


def _chosen(choices: Mapping[str, Sequence[Plan]], plans: Mapping[str, Plan], shipped: MeasuredModel) -> Sequence[Plan]:
    """What was chosen of every search for the plan that ships."""
    return next(choices[name] for name, plan in plans.items() if plan.digest == shipped.plan.digest)


def _write_plans(folder: LocalPath, plans: Mapping[str, Plan]) -> None:
    for name, plan in plans.items():
        write_whole(folder / f"{name}.json", [plan.to_json().encode()])


def _target(
    config: TuneConfig, found: Sequence[SearchedSubgraph], ends: Sequence[SearchEnd], levels: Sequence[str]
) -> TargetSummary | None:
    """What timed plans, where that was not the NPU, and what it said; pieces that share a search take the same."""
    if config.target.name == NPU:
        return None
    pairs = list(zip(found, ends, strict=True))
    cycles = {level: sum(len(search.pieces) * int(end.best[i].cycles[i]) for search, end in pairs) for i, level in enumerate(levels)}
    return TargetSummary(name=config.target.name, cycles=cycles)


def _stored(folder: RunFolder[LocalPath]) -> tuple[int, int]:
    """Tasks and readings that were taken from the store, from the log: earlier sessions of the run count, too."""
    rows = read_log(folder.path, ("worker", "level_index", "readings"))
    rows = rows[rows["worker"].astype("str").str.startswith(WORKER)]
    return int((rows["level_index"] == 0).sum()), int(rows["readings"].sum())


def _joined(opened: LoweredModel, found: Sequence[SearchedSubgraph], chosen: Sequence[Plan]) -> Plan:
    """The plan of a model: of every piece what its search found, for the first of the pieces that it serves."""
    plans: dict[int, Plan] = {}
    for search, plan in zip(found, chosen, strict=True):
        plans |= {
            k: plan if k == search.pieces[0] else plan_for(plan, opened.target_graphs[search.pieces[0]], opened.target_graphs[k])
            for k in search.pieces
        }
    return joined({name: plans[k] for k, name in enumerate(opened.names)})


def _pieces(opened: LoweredModel, found: Sequence[SearchedSubgraph], measured: Mapping[str, MeasuredModel]) -> tuple[PieceSummary, ...]:
    if len(opened.names) == 1:
        return ()
    by_piece = {k: search.run for search in found for k in search.pieces}
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


def _level(
    opened: LoweredModel,
    level: str,
    measured: Mapping[str, MeasuredModel],
    base: Mapping[str, MeasuredModel],
    same_as: str | None,
    values: Compared | None,
    bounds: Sequence[Terms],
) -> LevelSummary:
    mine = measured[level]
    timing = mine.timings[level]
    machine = opened.machine
    busy = timing.busy_cycles.sum(0) / (timing.cycles * machine.cores)
    baseline = base[level].timings[level].cycles
    return LevelSummary(
        ddr=machine.contention[level],
        cycles=timing.cycles,
        **rounded_pace(timing.cycles, opened.frames, machine.clock_hz),
        plan=mine.plan.digest,
        same_as=same_as,
        roofline_cycles=sum(Roofline(target_graph).cycles(0, len(target_graph.operators), level) for target_graph in opened.target_graphs),
        bound=BoundSummary(
            cycles=sum(terms.cycles for terms in bounds),
            ddr_bytes=sum(terms.traffic_bytes for terms in bounds),
            **{name: sum(terms.by_term[name] for terms in bounds) for name in TERMS},
        ),
        program_bound_cycles=mine.bound(machine, level),
        ddr_bytes=timing.ddr_read_bytes + timing.ddr_write_bytes,
        shared_moved_bytes=sum(shared_traffic(stream for program in mine.programs for stream in program.streams)),
        engine_utilisation={engine.name.lower(): round(float(busy[engine]), 4) for engine in Engine},
        balance=round(timing.balance, 4),
        baseline_layerwise_cycles=baseline,
        speedup=baseline / timing.cycles,
        variant_cycles={other: m.timings[level].cycles if level in m.timings else None for other, m in measured.items()},
        max_rel_error=values and values.error,
        rounding_rel_error=values and values.rounding,
        limit_rel_error=values and values.limit,
    )


def _values(opened: LoweredModel, folder: RunFolder[LocalPath], same_as: Mapping[str, str | None], style: Style) -> dict[str, Values]:
    """Of every distinct variant, executed from the file that was written, against onnxruntime on its body."""
    session = InferenceSession(folder.best)
    feeds = random_feeds(session, 0)
    values: dict[str, Values] = {}
    with file_with_body(opened.written, folder.best, style, folder.path / ".tmp") as body:
        expected = referred(reference(body, feeds, Stored.of(session.compiled)), session.compiled, folder.best, feeds, body)
        for level, twin in same_as.items():
            values[level] = values_of(session, feeds, expected, level) if twin is None else values[twin]
    return values


def _budget(config: TuneConfig, searched: int, measured: int, wall_s: float) -> BudgetUse:
    used = {"candidates": searched, "measurements": measured, "seconds": round(wall_s, 3)}
    return BudgetUse(kind=config.budget.kind, requested=config.budget.amount, used=used[config.budget.kind])


def _model_metrics(opened: LoweredModel, search: SearchedSubgraph, run: SearchRun) -> dict[str, float]:
    out = {}
    piece = f"{opened.names[search.pieces[0]]}." if len(opened.names) > 1 else ""
    number = run.conductor.models_used
    for model in run.trainer.models[number - 1] if number else ():
        if model == run.trainer.prior:
            break  # its figures are of other networks
        for level, metrics in model.metrics.items():
            out[f"{piece}{level}.pair_accuracy"] = round(metrics.pair_accuracy, 4)
            out[f"{piece}{level}.rms_octaves"] = round(metrics.log2_error, 4)
    return out


def _proposers(search: SearchedSubgraph, run: SearchRun) -> Iterator[ProposerSummary]:
    """Of one search: who proposed first, and who after each judgement that an epoch went by."""
    trainer = run.trainer
    began: Proposer = "estimate" if trainer.prior is None else "prior"
    yield ProposerSummary(search=search.run, segments=0, chosen=began, pairs={})
    for judged in trainer.judged[: max(0, run.conductor.models_used - (trainer.prior is not None))]:
        yield ProposerSummary(search=search.run, segments=judged.segments, chosen=judged.chosen, pairs=dict(judged.pairs))
