"""A compiled model at run time: its pieces (subgraphs), one after the other.

A model that the NPU supports as a whole is one piece.  Host nodes in between make several, each with its own container; an inference runs
all of them with the variants of one level.  The host's time between them is not simulated: cycles, bytes and instructions of the model are
sums over its pieces.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from simulator.npu.container import Container, OperatorEntry, SegmentEntry, Variant, program
from simulator.npu.container_file import decode
from simulator.npu.controller_table import ControllerTable
from simulator.npu.errors import BadInputError
from simulator.npu.grant import Grant, combined_needs
from simulator.npu.level import Level
from simulator.npu.machine import Machine
from simulator.npu.parts import DataType
from simulator.npu.program import Program
from simulator.objective import Pace
from simulator.onnx_container import find_containers, read_file
from simulator.timeline import Timeline, join_timelines, timeline
from simulator.timing import Prepared, prepare


class CompiledPiece(NamedTuple):
    """Program of a subgraph for every level.  name: name of its node."""

    name: str
    container: Container


@dataclass(frozen=True, eq=False)
class Compiled:
    """Compiled model.  All subgraphs belong to one model and one machine and have the same levels; else `BadInputError`.

    A model without subgraphs runs on the host; then most properties raise `BadInputError`.
    """

    pieces: tuple[CompiledPiece, ...]

    def __post_init__(self) -> None:
        for piece in self.pieces[1:]:
            first = self.pieces[0]
            expected, facts = _common(first.container), _common(piece.container)
            for key, value in expected.items():
                if facts[key] != value:
                    raise BadInputError(f"{piece.name}: its {key} is {facts[key]}, that of {first.name} {value}; compile it again")

    @staticmethod
    def of(container: Container, name: str = "Partition0") -> Compiled:
        """A model of a single container."""
        return Compiled((CompiledPiece(name, container),))

    @property
    def _first(self) -> Container:
        if not self.pieces:
            raise BadInputError("nothing of this model runs on the NPU: the host runs it, and there is no program")
        return self.pieces[0].container

    @property
    def machine(self) -> Machine:
        return self._first.machine

    @property
    def dtype(self) -> DataType:
        return self._first.dtype

    @property
    def types(self) -> str:
        """Data types of its tensors in DDR, by bytes, the most first: `uint8 and float16`."""
        sizes = Counter[str]()
        for memory in (piece.container.memory for piece in self.pieces):
            for buffer in memory.buffers:
                sizes[memory.type_of(buffer).name] += buffer.size_blocks if buffer.kind != "constant" else 0
        return " and ".join(name for name, size in sizes.most_common() if size) or self.dtype.name

    @property
    def model_digest(self) -> str:
        return self._first.model_digest

    @property
    def frames(self) -> int:
        """Images per run: frames of `--frames`, or the batch of the model."""
        return self._first.memory.of_kind("input")[0].shape[0]

    def pace(self, cycles: int) -> Pace:
        """Latency and throughput of a run of `cycles` cycles."""
        return Pace.of(cycles, self.frames, self.machine.clock_hz)

    @property
    def levels(self) -> tuple[str, ...]:
        """Level names in the order of the table, the first one the default."""
        return self._first.levels

    @property
    def controller(self) -> ControllerTable | None:
        """The controller's table, where the file has one."""
        return self._first.controller

    def variants(self, level: str) -> tuple[Variant, ...]:
        """The variant of every piece.  Raises `BadInputError` naming the levels that exist."""
        return tuple(piece.container.variant(level) for piece in self.pieces)

    def level(self, name: str) -> Level:
        """The share, latency and grants of a level.  Raises `BadInputError` naming the levels that exist."""
        return self.machine.contention[self._first.variant(name).level]

    def plan(self, level: str) -> str:
        """Digest of the level's plan, one for all pieces."""
        return self._first.variant(level).plan_digest

    def cycles(self, level: str) -> dict[str, int | None]:
        """Cycles of the level's variants at every level, from the file; None if one of them does not fit."""
        variants = self.variants(level)
        return {name: _sum([variant.cycles[name] for variant in variants]) for name in variants[0].cycles}

    def check_cycles(self, level: str, cycles: int) -> None:
        """Check simulated cycles of the level's variants against the file's.  Raises `BadInputError`."""
        file_cycles = self.cycles(level)[level]
        assert file_cycles is not None, "`decode` refuses a variant that does not fit its level"
        if cycles != file_cycles:
            raise BadInputError(f"level {level}: the file says {file_cycles:,} cycles, this simulator {cycles:,}; compile it again")

    def same_as(self, level: str) -> str | None:
        """The first earlier level with the same programs, or None."""
        digests = [piece_program.digest for piece_program in self.programs(level)]
        for earlier_level in self.levels[: self.levels.index(level)]:
            if [piece_program.digest for piece_program in self.programs(earlier_level)] == digests:
                return earlier_level
        return None

    def programs(self, level: str) -> tuple[Program, ...]:
        """The program of every piece, in order."""
        return tuple(program(piece.container, level) for piece in self.pieces)

    def needs(self, level: str) -> Grant:
        """Needs of the level's programs, which run in sequence."""
        return combined_needs(tuple(piece_program.needs for piece_program in self.programs(level)))

    def prepared(self, level: str) -> tuple[Prepared, ...]:
        """The level's programs, ready to be timed."""
        return tuple(prepare(piece_program, self.machine) for piece_program in self.programs(level))

    def piece_rows(self, levels: Sequence[str]) -> list[dict[str, Any]]:
        """Name, operators and cycles of every piece, for reports; the cycles are the file's."""
        rows = []
        for piece in self.pieces:
            names = [operator.name for operator in piece.container.operators]
            ends = {"first_operator": names[0] if names else "", "last_operator": names[-1] if names else ""}
            cycles = {level: piece.container.variant(level).cycles[level] for level in levels}
            rows.append({"piece": piece.name, "operators": len(names), **ends, "cycles": cycles})
        return rows

    @property
    def operators(self) -> tuple[OperatorEntry, ...]:
        """Operators of all pieces, in the numbering of `timeline`."""
        return tuple(operator for piece in self.pieces for operator in piece.container.operators)

    def segments(self, level: str) -> tuple[SegmentEntry, ...]:
        """Segments of all pieces; () where a piece has none recorded."""
        piece_segments = [variant.segments for variant in self.variants(level)]
        return tuple(segment for segments in piece_segments for segment in segments) if all(piece_segments) else ()

    def timeline(self, level: str) -> Timeline:
        """The level's variants at that level, piece after piece."""
        runs = [timeline(piece_program, self.machine, self.level(level)) for piece_program in self.programs(level)]
        counts = []  # segments and operators of each piece: by its tables, or by the numbers in its records if it has none
        for run, variant, piece in zip(runs, self.variants(level), self.pieces, strict=True):
            segments = len(variant.segments) or int(run.segment.max(initial=-1)) + 1
            counts.append((segments, len(piece.container.operators) or int(run.operator.max(initial=-1)) + 1))
        return join_timelines(runs, counts)


def _sum(cycles: Sequence[int | None]) -> int | None:
    """Sum; None if one of them is None."""
    numbers = [number for number in cycles if number is not None]
    return sum(numbers) if len(numbers) == len(cycles) else None


def _common(container: Container) -> dict[str, object]:
    """Facts that all pieces of a model share."""
    return {
        "model": container.model_digest,
        "machine": container.machine.digest,
        "data type": container.dtype.name,
        "levels": tuple((v.level, tuple(v.cycles)) for v in container.variants),
        "controller": None if container.controller is None else container.controller.digest,
    }


def compiled_of(view: memoryview, where: str, folder: Path | None = None) -> Compiled:
    """The compiled model in the bytes of an ONNX file; `where` names them in errors.  Raises `BadInputError`."""
    return Compiled(_decoded(find_containers(view, where, folder)))


def read_compiled(path: str | os.PathLike[str]) -> Compiled:
    """The compiled model in an ONNX file.

    Raises `BadInputError` for a file that cannot be read, is no ONNX model, holds no container, or a damaged one.
    """
    return compiled_of(read_file(path), str(path), Path(path).parent)


def _decoded(containers: Sequence[tuple[str, bytes]]) -> tuple[CompiledPiece, ...]:
    return tuple(CompiledPiece(name, decode(data)) for name, data in containers)
