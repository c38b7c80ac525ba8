"""Check of a compiled file: values against onnxruntime, order by the sanitizer, cycles against the file's own table.

The check reads only the container, nothing of the compiler: its verdict is valid for every user of the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.compiled import Compiled
from simulator.sanitizer import sanitize_program as sanitize
from simulator.session import InferenceSession
from simulator.subgraph_sequence import bound_of_all, simulate_all
from tuner.verify.fixed_point import apply_fixed_point
from tuner.verify.reference import ReferenceValues, StoredTensors, run_reference
from tuner.verify.values import Values, compare_values


@dataclass(frozen=True, eq=False)
class LevelCheck:
    """Check of one level of a compiled file.

    table_cycles, cycles: by the file's table and by the simulator, at every level; None if the program does not fit.
    bound_cycles: lower bound at the variant's own level.
    """

    level: str
    values: Values
    findings: tuple[str, ...]
    table_cycles: Mapping[str, int | None]
    cycles: Mapping[str, int | None]
    bound_cycles: int

    @property
    def faults(self) -> tuple[str, ...]:
        """Faults, a line each; () for a correct file."""
        lines = [*self.values.faults, *(f"sanitizer: {text}" for text in self.findings)]
        lines += [
            f"cycles at level {level}: the file says {_cycles(self.table_cycles[level])}, the simulator {_cycles(cycles)}"
            for level, cycles in self.cycles.items()
            if cycles != self.table_cycles[level]
        ]
        if (cycles := self.cycles[self.level]) is not None and cycles < self.bound_cycles:
            lines.append(f"cycles at level {self.level}: {cycles:,}, below the bound of {self.bound_cycles:,}")
        return tuple(lines)

    @property
    def ok(self) -> bool:
        return not self.faults


def _cycles(cycles: int | None) -> str:
    return "that it does not fit" if cycles is None else f"{cycles:,}"


def random_feeds(session: InferenceSession, seed: int) -> dict[str, NDArray[Any]]:
    """Standard normal values for every input; the same for the same seed.

    Inputs of other types go to nodes of the host: booleans, integers valid as an index if used as one, else 0 or 1.
    """
    rng = np.random.default_rng(seed)
    feeds: dict[str, NDArray[Any]] = {}
    for port in session.get_inputs():
        if port.type == "tensor(float)":
            feeds[port.name] = rng.standard_normal(port.shape, dtype=np.float32)
            continue
        name = port.type.removeprefix("tensor(").removesuffix(")")
        dtype = np.dtype({"double": "float64"}.get(name, name))
        if dtype.kind == "f":
            feeds[port.name] = rng.standard_normal(port.shape).astype(dtype)
        else:
            limit = 2 if session.host is None or dtype.kind == "b" else session.host.index_limit(port.name)
            feeds[port.name] = rng.integers(0, limit, port.shape).astype(dtype)
    return feeds


def check_level(session: InferenceSession, feeds: Mapping[str, ArrayLike], expected: ReferenceValues, level: str) -> LevelCheck:
    """Execute, sanitize and time the variants of one level.  Raises `BadInputError` for a level or feeds unknown to the file."""
    compiled = session.compiled
    programs, machine = compiled.programs(level), compiled.machine
    prepared, requirements = compiled.prepared(level), compiled.needs(level)
    has_pieces = len(programs) > 1
    return LevelCheck(
        level,
        compare_values(session, feeds, expected, level),
        tuple(
            f"{piece.name}: {finding}" if has_pieces else str(finding)
            for piece, stream in zip(compiled.pieces, programs, strict=True)
            for finding in sanitize(stream, machine)
        ),
        compiled.cycles(level),
        {
            name: simulate_all(prepared, machine, compiled.level(name)).cycles if requirements.fits(machine.granted(name)) else None
            for name in compiled.levels
        },
        bound_of_all(prepared, machine, compiled.level(level)),
    )


def check_file(path: Path, levels: Sequence[str] | None = None, seed: int = 0) -> list[LevelCheck]:
    """Run `check_level` for levels of a compiled file of style function (default: all), with random inputs.

    onnxruntime runs once for all of them, and so does each stream.  Raises `BadInputError`.
    """
    return check_levels(*prepare_check(path, seed), levels)


def prepare_check(path: Path, seed: int = 0) -> tuple[InferenceSession, dict[str, NDArray[Any]], ReferenceValues]:
    """Session of a file, random inputs, and onnxruntime's values.  Raises `BadInputError`."""
    session = InferenceSession(path)
    feeds = random_feeds(session, seed)
    session.checked(feeds)
    expected = run_reference(path, {name: np.asarray(value) for name, value in feeds.items()}, StoredTensors.of(session.compiled))
    return session, feeds, apply_fixed_point(expected, session.compiled, path, feeds)


def check_levels(
    session: InferenceSession, feeds: Mapping[str, ArrayLike], expected: ReferenceValues, levels: Sequence[str] | None = None
) -> list[LevelCheck]:
    """Run `check_level` for levels (default: all); each stream runs once."""
    level_names = tuple(levels) if levels else session.levels
    streams = {level: session.compiled.same_as(level) or level for level in level_names}
    checks = {level: check_level(session, feeds, expected, level) for level in dict.fromkeys(streams.values())}
    return [move_to_level(checks[stream], level, session.compiled) for level, stream in streams.items()]


def move_to_level(checked: LevelCheck, level: str, compiled: Compiled) -> LevelCheck:
    """Result of a check, transferred to another level with the same streams."""
    bound = bound_of_all(compiled.prepared(level), compiled.machine, compiled.level(level))
    return replace(checked, level=level, table_cycles=compiled.cycles(level), bound_cycles=bound)
