"""Is a compiled file right?  Values against onnxruntime, order against the sanitizer, cycles against the file's own table.

Everything is taken from the container, nothing from the compiler: what passes here passes for whoever receives the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.compiled import Compiled
from simulator.sanitizer import check as sanitize
from simulator.sequence import bound_of_all, simulate_all
from simulator.session import InferenceSession
from tuner.verify.fixed_point import referred
from tuner.verify.reference import ReferenceValues, Stored, reference
from tuner.verify.values import Values, values_of


@dataclass(frozen=True, eq=False)
class Checked:
    """One level of a compiled file.

    table_cycles, cycles: what the file says and what the simulator says, at every level; None where it does not fit.
    bound_cycles: below which the variant's own level cannot come.
    """

    level: str
    values: Values
    findings: tuple[str, ...]
    table_cycles: Mapping[str, int | None]
    cycles: Mapping[str, int | None]
    bound_cycles: int

    @property
    def faults(self) -> tuple[str, ...]:
        """What is wrong, a line each; () for a right file."""
        out = [*self.values.faults, *(f"sanitizer: {text}" for text in self.findings)]
        out += [
            f"cycles at level {at}: the file says {_cycles(self.table_cycles[at])}, the simulator {_cycles(mine)}"
            for at, mine in self.cycles.items()
            if mine != self.table_cycles[at]
        ]
        if (mine := self.cycles[self.level]) is not None and mine < self.bound_cycles:
            out.append(f"cycles at level {self.level}: {mine:,}, below the bound of {self.bound_cycles:,}")
        return tuple(out)

    @property
    def ok(self) -> bool:
        return not self.faults


def _cycles(cycles: int | None) -> str:
    return "that it does not fit" if cycles is None else f"{cycles:,}"


def random_feeds(session: InferenceSession, seed: int) -> dict[str, NDArray[Any]]:
    """Standard normal values for every input; the same for the same seed.

    Inputs of another type go to nodes of the host: booleans, or integers that are an index into what they are looked up in, else 0 or 1.
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


def check_level(session: InferenceSession, feeds: Mapping[str, ArrayLike], expected: ReferenceValues, level: str) -> Checked:
    """Execute, sanitize and time the variants of one level.  Raises `BadInputError` for a level or feeds that the file does not have."""
    compiled = session.compiled
    programs, machine = compiled.programs(level), compiled.machine
    prepared, needs = compiled.prepared(level), compiled.needs(level)
    several = len(programs) > 1
    return Checked(
        level,
        values_of(session, feeds, expected, level),
        tuple(
            f"{piece.name}: {finding}" if several else str(finding)
            for piece, stream in zip(compiled.pieces, programs, strict=True)
            for finding in sanitize(stream, machine)
        ),
        compiled.cycles(level),
        {
            at: simulate_all(prepared, machine, compiled.level(at)).cycles if needs.fits(machine.granted(at)) else None
            for at in compiled.levels
        },
        bound_of_all(prepared, machine, compiled.level(level)),
    )


def check_file(path: Path, levels: Sequence[str] | None = None, seed: int = 0) -> list[Checked]:
    """`check_level` for levels of a compiled file of style function (default: all), with random inputs.

    onnxruntime runs once for all of them, and so does each stream.  Raises `BadInputError`.
    """
    return check_levels(*prepared_check(path, seed), levels)


def prepared_check(path: Path, seed: int = 0) -> tuple[InferenceSession, dict[str, NDArray[Any]], ReferenceValues]:
    """A session, random inputs of it, and what onnxruntime makes of them.  Raises `BadInputError`."""
    session = InferenceSession(path)
    given = random_feeds(session, seed)
    session.checked(given)
    expected = reference(path, {name: np.asarray(value) for name, value in given.items()}, Stored.of(session.compiled))
    return session, given, referred(expected, session.compiled, path, given)


def check_levels(
    session: InferenceSession, feeds: Mapping[str, ArrayLike], expected: ReferenceValues, levels: Sequence[str] | None = None
) -> list[Checked]:
    """`check_level` for levels (default: all); each stream runs once."""
    wanted = tuple(levels) if levels else session.levels
    streams = {level: session.compiled.same_as(level) or level for level in wanted}
    done = {level: check_level(session, feeds, expected, level) for level in dict.fromkeys(streams.values())}
    return [relevelled(done[stream], level, session.compiled) for level, stream in streams.items()]


def relevelled(checked: Checked, level: str, compiled: Compiled) -> Checked:
    """What was checked of some streams, for another level that has the same ones."""
    bound = bound_of_all(compiled.prepared(level), compiled.machine, compiled.level(level))
    return replace(checked, level=level, table_cycles=compiled.cycles(level), bound_cycles=bound)
