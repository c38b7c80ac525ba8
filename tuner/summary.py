"""`RUN/summary.json`: result of a run, for scripts of users.  `tilefarm schema summary` prints it as a JSON Schema."""

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

    search: readings of all tasks with rows.  canary: readings of the untuned program, on one board.  finals: readings of the finals.
    set_aside: readings reserved for the finals before the search began, if the budget is in readings.
    asked: all readings.  paid: readings that were not in the store.
    """

    search: int
    canary: int
    finals: int
    set_aside: int
    asked: int
    paid: int


class GainSummary(_Part):
    """Gain of the search: shares of the cycles, a geometric mean over levels; of several searches, a mean by their cycles.

    gain: saved since the first programs.  expected: expected of twice the programs; null: too few to say.
    saturated: whether that is below `budget.least_gain`, in every search.
    """

    gain: float
    expected: float | None
    saturated: bool


class HostNodeSummary(_Part):
    """Node on the host.

    refused: True if it is unsupported (reason: `why`); False if it is supported, but outside the partition.  macs: null if unknown.
    mac_share: share of the model's multiply-accumulates; null if unknown, or if there are none.
    least_us: microseconds at the rates of the machine's host; null in summaries of earlier versions.
    accepted: the change that would bring it to the NPU; empty in summaries of earlier versions.
    """

    node: str
    op: str
    refused: bool
    why: str
    macs: int | None
    mac_share: float | None
    least_us: float | None = None
    accepted: str = ""


class TensorSummary(_Part):
    """Tensor with values outside the range of the data type: infinite there, or all 0.  held: largest number of the data type.

    largest: largest magnitude in float32; null if that is infinite as well.
    """

    tensor: str
    largest: Finite
    held: float

    @classmethod
    def of(cls, beyond: OutOfRange, dtype: DataType) -> TensorSummary:
        return cls(tensor=beyond.tensor, largest=beyond.largest, held=largest_value(dtype))


class GroupedSummary(_Part):
    """Grouped convolutions with zero blocks of weights: their number, their MACs, and the least MACs that CUBE computes for them."""

    convolutions: int
    macs: int
    multiplied_macs: int


class PieceSummary(_Part):
    """Subgraph of a model that the NPU runs as a unit, between host nodes.

    search: id of its search in the log; subgraphs with the same computation share a search.  cycles: level -> cycles, of its part of the
    champion.
    """

    piece: str
    search: str
    operators: int
    first_operator: str
    last_operator: str
    cycles: dict[str, int]


class FinalistSummary(_Part):
    """Program that a board measured again in the finals; the baseline comes last.

    search: id of its search.  By level: cycles: for the level's champion the median of its readings, for others the champion's median plus
    the difference in rounds with both, null if half of its rounds failed.  spread: median absolute deviation of its readings, x 1.4826,
    relative to their median.  readings: number of readings.  standing: outcome, empty for the baseline.
    simulated_cycles: cycles by the simulator.
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
    """Runner that measured.  repeats: readings per program and level in the search.  readings: limit of readings in the finals."""

    name: str
    repeats: int
    readings: int
    finalists: tuple[FinalistSummary, ...]


class TargetSummary(_Part):
    """Target that timed plans instead of the NPU.  cycles: level -> cycles of the champion; other figures are the simulator's."""

    name: str
    cycles: dict[str, int]


class PackagedSummary(_Part):
    """Files of a part's own stack.  moved: bytes of DRAM of one inference, by channel.  on_processor: operators that the part has not."""

    files: tuple[str, ...]
    moved: dict[str, int]
    on_processor: tuple[str, ...]


class DisplacedSummary(_Part):
    """Variant that does not ship at its level, because another one does.

    plan: digest of its plan.  over: by how much it is slower there than the fastest alternative, as a fraction, under `condition`.
    """

    level: str
    plan: str
    condition: str
    over: float


class RobustSummary(_Part):
    """Program with the smallest largest loss over the levels.

    plan: digest of plans/robust.json.  By level: cycles.  loss: relative to the fewest cycles of any candidate.  own_plan, own_cycles: the
    level's champion, plans/own/<level>.json.  one_level_cycles: cycles of the champion of `one_level`, the lightest level; null if it does
    not fit.
    not_judged: reason why there was no out-of-sample timing, or null.
    displaced: variants that therefore do not ship.  pays: whether variants pay.  says: reason, as a sentence.
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
    """Proposer from a number of measured segments on: the built-in estimate or a cost model.

    search: run id of the subgraph's search.  chosen: `estimate`, `prior` (initial model of the run), `older` (a model of the run, in use
    before) or `new` (just trained).  pairs: proposer -> share of pairs of unseen rows in the right order; {} at the beginning.
    """

    search: str
    segments: int
    chosen: Literal["estimate", "prior", "older", "new"]
    pairs: dict[str, float]


class BoundSummary(_Part):
    """Lower bound of the cycles of every program (docs/bounds.md), over all subgraphs.  `cycles` sums the largest term of each, the others
    sum one term each.

    ddr_bytes: bytes that every program moves.
    """

    cycles: int
    engines: int
    prefetch: int
    traffic: int
    ddr_bytes: int


class LevelSummary(_Part):
    """Variant that ships at one contention level.

    cycles, latency_us: duration of a run with all its frames.  cycles_per_frame, frames_per_s: the same as throughput.
    ddr: share and grant of the level.  plan: digest of its plan.  same_as: an earlier level with the same plan, or null.
    program_bound_cycles, roofline_cycles: lower bounds of the program and of the model at this level; `bound` is tighter.
    balance: cycles in which CUBE or VECTOR works per cycle in which DDR moves.
    baseline_layerwise_cycles: cycles of plans/baseline.json at this level; for levels with another grant than the first level, cycles of
    plans/baseline.<level>.json, named by the first level with the same grant.
    variant_cycles: level -> cycles of that level's variant at this level; null if it does not fit the grant.
    max_rel_error: max|out - ref| / max|ref| against onnxruntime, before a final softmax, of the tensor that is nearest to its limit; null
    if not finite.  rounding_rel_error: the same error by rounding alone, null in float32 or if not finite.
    limit_rel_error: largest error of a correct program.  All are null if no values could be compared.
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
    """Latency and throughput of a level, from its cycles."""
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
    """Content of the file.

    status: `unconfirmed` if values at a level differ from onnxruntime's, or could not be compared.  unconfirmed: reasons, a line each.
    first_beyond: if values are not finite, the first tensor in the order of the graph outside the range of the data type, if any.
    weights_beyond: weights outside the range of the data type.
    stopped: reason why each search ended: budget or core hours spent, next to nothing expected of more (`budget.least_gain`), or no new
    tasks left.
    warm_start: a line per earlier run and search.
    """

    budget: BudgetUse
    measurements: MeasurementsUse
    core_hours: float = Field(0.0, description="CPU hours of workers, over all sessions; 0 in summaries of earlier programs")
    stopped: tuple[Literal["budget", "core hours", "saturated", "exhausted"], ...]
    search_gain: GainSummary | None = Field(None, description="what the search brought; null in summaries of earlier programs")
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
    nodes: dict[str, int] = Field({}, description="of the model by kind, and on the NPU: those with arithmetic, those that only move data")
    grouped: GroupedSummary | None = Field(None, description="convolutions in groups that multiply more than their weights; null for none")
    host: tuple[HostNodeSummary, ...] = Field((), description="nodes that stay with the host; no figure has their time")
    pieces: tuple[PieceSummary, ...] = Field((), description="in the order in which they run; all figures are sums over them; () for one")
    runner: RunnerSummary | None = Field(None, description="what measured, and its finals; null for the simulator")
    target: TargetSummary | None = Field(None, description="what timed plans; null for the NPU, which all other figures are of")
    packaged: PackagedSummary | None = Field(None, description="files of a part's own stack; null for a machine without one")
    robust: RobustSummary | None = Field(description="the program for all levels; null where none fits every level that any fits")
    levels: dict[str, LevelSummary]

    @property
    def own_cycles(self) -> dict[str, int]:
        """Level -> cycles of its champion, even if another variant ships."""
        return {level: row.cycles for level, row in self.levels.items()} if self.robust is None else self.robust.own_cycles
