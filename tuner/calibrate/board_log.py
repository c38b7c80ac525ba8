"""Values of a machine file from the log of a board that ran streams of its own stack.

A log is CSV with the columns `stream`, `word` and `cycles`: the number of a stream in the file of raw words, from 0; the number of the
word that starts an operation, empty for the stream as a whole; and cycles by the counter of the part.  Rows of the same operation are
readings of it.  Who knows the part's streams is named as data (`STREAM_CLOCKS`), as packagers are.
"""

from __future__ import annotations

import csv
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from simulator.npu.errors import BadInputError
from simulator.npu.machine import Machine
from tuner.calibrate.classes import cycles_key, rate_key
from tuner.calibrate.fit import Problem, Values, estimate_accuracy, solve
from tuner.calibrate.identify import Calibration, ClassFindings, finding_of
from tuner.calibrate.keys import Key, with_values

STREAM_CLOCKS: Mapping[str, str] = MappingProxyType({"ethos-u65-256": "compiler.ethosu.machine_clock:StreamClock"})
"""Machine -> `module:name` of what times its streams."""
_COLUMNS = ("stream", "word", "cycles")
_LARGEST_ROWS, _MOST_CYCLES = 1 << 20, 1 << 48
_LEAST_ERROR, _RELATIVE_ERROR = 0.5, 0.002
"""Error of a reading without noise: half a cycle, and a part of it for what no description says."""
_HIDDEN = "streams of the log do not depend on it"

Operation = tuple[int, int | None]
"""Number of a stream, and of the word that starts an operation; None for the stream as a whole."""


class StreamTimer(Protocol):
    """Times of the streams of a file.  fitted: keys of the machine file that they depend on."""

    fitted: Sequence[str]

    def cycles(self, machine: Machine) -> Mapping[Operation, int]: ...


def open_clock(machine: Machine, streams: Path) -> StreamTimer:
    """The clock of a machine's streams.  Raises `BadInputError` for a machine without one."""
    named = next((clock for name, clock in STREAM_CLOCKS.items() if machine.name == name or machine.name.startswith(f"{name}-")), None)
    if named is None:
        raise BadInputError(f"--log: machine {machine.name} has no streams of its own; expected {', '.join(STREAM_CLOCKS)}")
    module, _, name = named.partition(":")
    try:
        return cast(StreamTimer, getattr(importlib.import_module(module), name)(streams.read_bytes()))
    except BadInputError as error:
        raise BadInputError(f"{streams}: {error}") from None


def read_log(path: Path) -> dict[Operation, list[int]]:
    """Readings by operation.  Raises `BadInputError` for rows of another shape."""
    readings = dict[Operation, list[int]]()
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        head = tuple(next(reader, ()))
        if head != _COLUMNS:
            raise BadInputError(f"{path}: columns {', '.join(head) or 'none'}: expected {', '.join(_COLUMNS)}")
        for number, row in enumerate(reader, 2):
            if len(row) != len(_COLUMNS) or number > _LARGEST_ROWS:
                raise BadInputError(f"{path}: line {number}: expected {len(_COLUMNS)} values in at most {_LARGEST_ROWS} lines")
            stream, word, cycles = (_number(path, number, *pair) for pair in zip(_COLUMNS, row, strict=True))
            if stream is None or not cycles:
                raise BadInputError(f"{path}: line {number}: {','.join(row)}: expected a stream, and at least one cycle")
            readings.setdefault((stream, word), []).append(cycles)
    if not readings:
        raise BadInputError(f"{path}: no rows: expected at least one")
    return readings


def _number(path: Path, line: int, column: str, text: str) -> int | None:
    if not text and column == "word":
        return None
    if not (text.isascii() and text.isdecimal()) or int(text) > _MOST_CYCLES:
        raise BadInputError(f"{path}: line {line}: {column} {text!r}: expected an integer from 0 on")
    return int(text)


class LogProblem(Problem):
    """Values of a machine that give the readings of a log."""

    def __init__(self, machine: Machine, keys: Sequence[Key], clock: StreamTimer, readings: Mapping[Operation, Sequence[int]]) -> None:
        super().__init__(machine, keys, ())
        self.clock, self.operations = clock, list(readings)
        self.observed_values = np.array([np.mean(values) for values in readings.values()])
        counts = np.array([len(values) for values in readings.values()])
        spread = np.array([np.std(values, ddof=1) if len(values) > 1 else 0.0 for values in readings.values()]) / np.sqrt(counts)
        self.error = np.maximum(spread, np.maximum(_LEAST_ERROR, _RELATIVE_ERROR * self.observed_values))

    def predict(self, machine: Machine) -> NDArray[np.float64]:
        """Times of the operations of the log, float64 [operations]."""
        cycles = self.clock.cycles(machine)
        return np.array([cycles[operation] for operation in self.operations], np.float64)

    @property
    def freedom(self) -> int:
        return max(1, len(self.operations) - len(self.keys))


def calibrate_log(machine: Machine, clock: StreamTimer, path: Path) -> Calibration:
    """The machine with values of which the clock has the times of a log."""
    readings = read_log(path)
    timed = clock.cycles(machine)
    for stream, word in readings:
        if (stream, word) not in timed:
            place = "" if word is None else f", word {word}"
            raise BadInputError(f"{path}: stream {stream}{place}: no operation of the streams begins there")
    problem = LogProblem(machine, [_key(name) for name in clock.fitted], clock, readings)
    values = solve(problem)
    estimates = estimate_accuracy(problem, values)
    count = sum(map(len, readings.values()))
    findings = tuple(finding_of(estimate, machine, count) for estimate in estimates)
    settled: Values = tuple(finding.value for finding in findings)
    deviation, noise = problem.residuals(settled), problem.error / problem.observed_values
    worst = int(np.argmax(np.abs(deviation)))
    stream, word = problem.operations[worst]
    fitted = ClassFindings(
        "streams", findings, len(readings), count, float(np.sqrt((deviation**2).mean())), float(np.sqrt((noise**2).mean())),
        float(deviation[worst]), f"stream {stream}" + ("" if word is None else f", word {word}"),
    )  # fmt: skip
    changed = with_values(machine, {finding.key.path: finding.value for finding in findings})
    return Calibration(machine, changed, (fitted,), count, float(np.median(noise)))


def _key(name: str) -> Key:
    if not name.endswith("bytes_per_cycle"):
        return cycles_key(name, _HIDDEN)
    return rate_key(name, _HIDDEN, 0.1 if name.startswith("ddr.") else 1)
