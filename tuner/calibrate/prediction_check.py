"""Accuracy of a fitted machine's predictions: held-out segments of networks, measured and predicted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compiler.model import ModelSpec
from compiler.ops.lower_graph import Packed
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.space.decode import decode
from compiler.space.gene import Gene
from compiler.space.initial import single_operators
from compiler.space.mutators import MOVES
from compiler.space.structural_hash import Structures
from compiler.target.target_graph import TargetGraph
from simulator.npu.errors import BadInputError
from simulator.npu.machine import Machine
from simulator.timing import simulate_levels
from tuner.calibrate.readings import ProbedBoard
from tuner.config import load_config
from tuner.measure.encode_program import encoded
from tuner.measure.runner_api import Encoded
from tuner.search.explore import propose_segments
from tuner.search.table import SegmentTable
from tuner.zoo.load import open_network

NETWORKS = ("light:squeezenet", "light:shufflenet", "made:mobilenet_v2")
READINGS = 24  # readings of each segment: reduces noise of 3% to 0.6%


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Held-out segments.  level: level of each measurement.  measured, predicted: cycles, float64 [segments].  networks: the sources."""

    networks: tuple[str, ...]
    level: tuple[str, ...]
    measured: NDArray[np.float64]
    predicted: NDArray[np.float64]

    @property
    def error(self) -> NDArray[np.float64]:
        """Relative errors, float64 [segments]: |predicted / measured - 1|."""
        return np.asarray(np.abs(self.predicted / self.measured - 1))

    @property
    def median(self) -> float:
        return float(np.median(self.error))

    @property
    def p95(self) -> float:
        return float(np.quantile(self.error, 0.95))

    @property
    def pairs(self) -> float:
        """Share of segment pairs at one level that predictions order correctly; equal predictions count half."""
        right = total = 0.0
        levels = np.array(self.level)
        for level in sorted(set(self.level)):
            in_level = levels == level
            i, j = np.triu_indices(int(in_level.sum()), 1)
            measured, predicted = (np.sign(cycles[in_level][i] - cycles[in_level][j]) for cycles in (self.measured, self.predicted))
            right += float(((measured * predicted + 1) / 2)[measured != 0].sum())
            total += int((measured != 0).sum())
        return right / total if total else 0.0


def check(board: ProbedBoard, machine: Machine, count: int, seed: int, networks: Sequence[str] = NETWORKS) -> HeldOut:
    """Measure and predict `count` segments, compiled for the machine.  Raises `BadInputError` for too few segments or invalid readings."""
    levels = tuple(machine.contention)
    measured: list[float] = []
    predicted: list[int] = []
    turns: list[str] = []
    for cycles, program in _segments(machine, networks, count, seed):
        level = levels[len(turns) % len(levels)]
        turns.append(level)
        predicted.append(cycles[level])
        measured.append(board.centre(program, level, f"held-out segment {len(turns)}", READINGS))
        if len(turns) == count:
            return HeldOut(tuple(networks), tuple(turns), np.array(measured), np.array(predicted, np.float64))
    raise BadInputError(f"--check {count}: {', '.join(networks)} have {len(turns)} segments that fit {machine.name}; accepted: up to that")


_Segments = Iterator[tuple[Mapping[str, int], Encoded]]


def _segments(machine: Machine, networks: Sequence[str], count: int, seed: int) -> _Segments:
    """Predicted cycles by level, and the runner's input, of all networks in turn until all are exhausted."""
    rng = np.random.default_rng([seed, 5])
    dtype = machine.matrix.data_types[0]
    units = [unit for name in networks for unit in open_network(ModelSpec.named(Path(name), machine, dtype, {}, None)).packed]
    streams = [_draw_streams(unit, -(-2 * count // len(units)), rng) for unit in units]
    while streams:
        segments = [(stream, next(stream, None)) for stream in streams]
        yield from (segment for _, segment in segments if segment is not None)
        streams = [stream for stream, segment in segments if segment is not None]


def _draw_streams(packed: Packed, count: int, rng: np.random.Generator) -> _Segments:
    target_graph = packed.target_graph
    compiler = Compiler(target_graph)
    for gene in _genes(target_graph, count, rng):
        plan = decode(target_graph, gene)
        if plan is None:
            continue
        parts = compiler.alone(plan, gene.start)
        if isinstance(parts, Infeasible):
            continue
        program = compiler.link(parts)
        cycles = {level: timing.cycles for level, timing in simulate_levels(program, target_graph.machine).items()}
        yield cycles, encoded(packed, "segment", program, (plan,), cycles)


def _genes(target_graph: TargetGraph, count: int, rng: np.random.Generator) -> list[Gene]:
    """Distinct genes of single operators and of fused runs, with random blocks, tiles, cores and orders."""
    start = single_operators(target_graph)
    if isinstance(start, Infeasible):
        return []
    return [*propose_segments(target_graph, SegmentTable(Structures(target_graph), 1), [start], count, rng, MOVES, load_config().segments)]
