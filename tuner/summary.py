"""`RUN/summary.json`: what a run found, for people's scripts.  The schema is published as JSON Schema (`tilefarm schema summary`)."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from simulator.npu.float_range import OutOfRange, largest_value
from simulator.npu.level import Level
from simulator.npu.parts import DataType
from simulator.objective import Pace
from tuner.runs.list_runs import SUMMARY_VERSION

# JSON has no infinity
Finite = Annotated[float | None, BeforeValidator(lambda value: value if value is None or math.isfinite(value) else None)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BudgetUse(_Part):
    """requested and used: measured programs for `candidates`, readings for `measurements`, seconds of wall time for `seconds`."""

    kind: Literal["candidates", "measurements", "seconds"]
    requested: float
    used: float


class MeasurementsUse(_Part):
    """Measurements in readings: task x level x repeat.

    search: of all tasks that have rows.  canary: of the untuned program, as one board is asked.  finals: of the last ones.  set_aside: for
    them, before the search began, where measurements are the budget.  asked: all of them; paid: those that did not lie in the store.
    """

    search: int
    canary: int
    finals: int
    set_aside: int
    asked: int
    paid: int


class HostNodeSummary(_Part):
    """A node that the host runs.

    refused: it is not supported, as `why` says; else it is, but lies apart from the partition.  macs: null where nobody can count them.
    mac_share: of the model's multiply-accumulates; null where those cannot be counted, or there are none.
    """

    node: str
    op: str
    refused: bool
    why: str
    macs: int | None
    mac_share: float | None


class TensorSummary(_Part):
    """A tensor that the data type does not hold, infinite there or all 0.  held: the largest number of the data type.

    largest: of its magnitudes in float32, null where that is infinite as well.
    """

    tensor: str
    largest: Finite
    held: float

    @classmethod
    def of(cls, beyond: OutOfRange, dtype: DataType) -> TensorSummary:
        return cls(tensor=beyond.tensor, largest=beyond.largest, held=largest_value(dtype))


class GroupedSummary(_Part):
    """Convolutions in groups that multiply more than their weights: how many, their MACs, and those that CUBE does for them, at least."""

    convolutions: int
    macs: int
    multiplied_macs: int


class PieceSummary(_Part):
    """Part of a model that the NPU runs in one go, between nodes of the host.

    search: id in the log of the search that served it; pieces that compute the same share one.  cycles: per level, of its part of the
    champion.
    """

    piece: str
    search: str
    operators: int
    first_operator: str
    last_operator: str
    cycles: dict[str, int]


class FinalistSummary(_Part):
    """A program that a board measured again at the end, the baseline last.

    search: id of its search.  By level: cycles: of the level's champion the median of its readings, of another one what it differs from the
    champion in the rounds that both were read in, null where half of its rounds failed; spread: the median absolute deviation of its
    readings, x 1.4826, in parts of their median; readings: how often it was read; standing: what came out, nothing for the baseline;
    simulated_cycles: what the simulator says.
    """

    search: str
    plan: str
    segments: int
    instructions: int
    cycles: dict[str, int | None]
    spread: dict[str, float]
    readings: dict[str, int]
    standing: dict[str, Literal["champion", "not told apart", "slower", "failed"]]
    simulated_cycles: dict[str, int]


class RunnerSummary(_Part):
    """Runner that measured.  repeats: readings per program and level in the search; readings: in the finals, at most."""

    name: str
    repeats: int
    readings: int
    finalists: tuple[FinalistSummary, ...]


class TargetSummary(_Part):
    """Target that timed plans in place of the NPU.  cycles: of the champion, by level; other figures are the simulator's."""

    name: str
    cycles: dict[str, int]


class DisplacedSummary(_Part):
    """A variant that does not ship at its level: another one does.

    plan: digest of the variant's.  over: by what fraction it is slower there than the fastest that could ship, under `condition`.
    """

    level: str
    plan: str
    condition: str
    over: float


class RobustSummary(_Part):
    """The program that loses least at the level where it loses most.

    plan: digest of plans/robust.json.  By level: cycles; loss: over the fewest of any candidate; own_plan, own_cycles: of the level's
    champion, plans/own/<level>.json; one_level_cycles: of the champion of the lightest level, `one_level`, null where it does not fit.
    not_judged: why nothing was timed out of sample, null where it was.
    displaced: what therefore does not ship.  pays: whether variants do; says: why, in a sentence.
    """

    plan: str
    cycles: dict[str, int]
    loss: dict[str, float]
    own_plan: dict[str, str]
    own_cycles: dict[str, int]
    one_level: str
    one_level_cycles: dict[str, int | None]
    not_judged: str | None
    displaced: tuple[DisplacedSummary, ...]
    pays: bool
    says: str


class ProposerSummary(_Part):
    """Proposer from so many measured segments on: the built-in estimate or a cost model.

    search: run id of the piece's.  chosen: `estimate`, `prior` (the model that the run began with), `older` (of the run, in use before) or
    `new` (just trained).  pairs: of unseen rows of the run, the share that each put in the right order; {} in the beginning.
    """

    search: str
    segments: int
    chosen: Literal["estimate", "prior", "older", "new"]
    pairs: dict[str, float]


class BoundSummary(_Part):
    """Below which no program comes (docs/bounds.md), of all pieces: `cycles` adds the largest term of each, the others add each term.

    ddr_bytes: that every program moves.
    """

    cycles: int
    engines: int
    prefetch: int
    traffic: int
    ddr_bytes: int


class LevelSummary(_Part):
    """Variant that ships at one contention level.

    cycles, latency_us: of a run, so of all its frames.  cycles_per_frame, frames_per_s: the same as throughput.
    ddr: what the level leaves, and what it grants.  plan: digest of its plan.  same_as: an earlier level with the same plan, or null.
    program_bound_cycles, roofline_cycles: below which neither the program nor the model can come at this level; `bound` is nearer.
    balance: cycles in which CUBE or VECTOR works per cycle in which DDR moves.
    baseline_layerwise_cycles: of plans/baseline.json at this level; of levels that grant other memory and cores than the first one, of
    plans/baseline.<level>.json, named by the first that grants the same.
    variant_cycles: every level's variant at this level; null for one that does not fit what it grants.
    max_rel_error: max|out - ref| / max|ref| against onnxruntime, before a final softmax, of the tensor that is nearest to its limit; null
    where that is not finite.  rounding_rel_error: what rounding alone does to it, null in float32 or where that is not finite.
    limit_rel_error: the largest error of a right program.  All are null where nothing could be compared.
    """

    ddr: Level
    cycles: int
    latency_us: float
    cycles_per_frame: float
    frames_per_s: float
    plan: str
    same_as: str | None
    roofline_cycles: int
    bound: BoundSummary
    program_bound_cycles: int
    ddr_bytes: int
    shared_moved_bytes: int = Field(0, description="read from and written to the memory that all cores share")
    engine_utilisation: dict[str, float]
    balance: float
    baseline_layerwise_cycles: int
    speedup: float
    variant_cycles: dict[str, int | None]
    max_rel_error: Finite
    rounding_rel_error: Finite
    limit_rel_error: Finite


def rounded_pace(cycles: int, frames: int, clock_hz: int) -> dict[str, float]:
    """Of a level: what its cycles are as latency and throughput."""
    return {name: round(value, 3) for name, value in Pace.of(cycles, frames, clock_hz)._asdict().items()}


class SummaryHeader(_Part):
    """Head of the file: the run, and whether its values are right (`Summary` says more)."""

    schema_version: Literal[4] = SUMMARY_VERSION
    status: Literal["done", "unconfirmed"]
    unconfirmed: tuple[str, ...]
    first_beyond: TensorSummary | None
    weights_beyond: tuple[TensorSummary, ...]
    run: str
    model: str
    model_digest: str
    machine: str
    machine_digest: str
    dtype: Literal["float16", "float32"]
    frames: int = Field(1, description="that a run takes side by side: frames of --frames, or the batch of the model")
    seed: int
    tags: dict[str, str]
    versions: dict[str, str]
    config_digest: str


class Summary(SummaryHeader):
    """The whole file.

    status: `unconfirmed` where the values of a level are not onnxruntime's, or could not be compared.  unconfirmed: why, a line each.
    first_beyond: where values are not finite, the first tensor in the order of the graph that the data type does not hold, if any.
    weights_beyond: weights that it does not hold.
    stopped: why each search ended: its budget was spent, nothing was gained any more (`budget.plateau`), or nothing new was left to try.
    warm_start: what each earlier run brought, a line per search and run.
    """

    budget: BudgetUse
    measurements: MeasurementsUse
    stopped: tuple[Literal["budget", "plateau", "exhausted"], ...]
    warm_start: tuple[str, ...] = ()
    wall_s: float
    candidates: int
    candidates_per_s: float
    tasks: int
    stored_tasks: int = Field(0, description="of those, whose results lay in the store")
    failures: dict[str, int]
    instructions: dict[str, int]
    variants: int = Field(description="distinct programs among the levels")
    cost_model: dict[str, float]
    proposers: tuple[ProposerSummary, ...] = Field(
        (), description="models that proposed candidates, in their order; () in summaries of earlier programs"
    )
    npu_mac_share: float | None = Field(1.0, description="of the model's multiply-accumulates, what the NPU does; null: cannot be counted")
    grouped: GroupedSummary | None = Field(None, description="convolutions in groups that multiply more than their weights; null for none")
    host: tuple[HostNodeSummary, ...] = Field((), description="nodes that stay with the host; no figure has their time")
    pieces: tuple[PieceSummary, ...] = Field((), description="in the order in which they run; all figures are sums over them; () for one")
    runner: RunnerSummary | None = Field(None, description="what measured, and its finals; null for the simulator")
    target: TargetSummary | None = Field(None, description="what timed plans; null for the NPU, which all other figures are of")
    robust: RobustSummary | None = Field(description="the program for all levels; null where none fits every level that any fits")
    levels: dict[str, LevelSummary]

    @property
    def own_cycles(self) -> dict[str, int]:
        """Level -> cycles of its champion, whatever ships."""
        return {level: row.cycles for level, row in self.levels.items()} if self.robust is None else self.robust.own_cycles
