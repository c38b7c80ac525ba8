"""Interface of a runner, which measures programs on a board: its input, its output, and the bench that repeats readings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple, Protocol

from simulator.npu.errors import BadInputError
from simulator.npu.grant import Grant
from simulator.npu.machine import Machine

Kind = Literal["segment", "stage", "program"]
Status = Literal["ok", "crash", "timeout", "invalid"]


class Encoded(NamedTuple):
    """Program in the form of the machine.

    container: bytes of `simulator.npu.container_file`, the same variant for all levels.  kind: segments and stages are parts of a
    model; they read data that earlier parts would have left in DDR.
    """

    container: bytes
    machine: Machine
    kind: Kind

    def granted(self, level: str) -> Grant:
        """Memory and cores that the level grants.  The program fits them; a runner with `grants` has to enforce them."""
        return self.machine.granted(level)


class Reading(NamedTuple):
    """Result of a reading.  cycles: cycles of the machine's clock, above 0, if the status is ok; else `error` has the reason, in one line.

    crash: it did not end normally.  timeout: it took too long.  invalid: it ended, but its output is impossible.
    """

    cycles: int | None = None
    status: Status = "ok"
    error: str | None = None

    @classmethod
    def of_seconds(cls, seconds: float, machine: Machine) -> Reading:
        """A time on the machine's clock."""
        return cls(max(1, round(seconds * machine.clock_hz)))


class Runner(Protocol):
    """Runs an encoded program on real hardware, at a DDR contention level that it produces, and returns its time.

    A function or a class; a class is instantiated once per measuring process, without arguments.  One program at a time.
    If its attribute `grants` is True (of the function or the class), it enforces `Encoded.granted`; other runners get only levels
    that grant all.  If it has `board()`, that returns the name of the board and its firmware: two texts.
    """

    def __call__(self, program: Encoded, level: str, /) -> Reading: ...


@dataclass(frozen=True)
class Bench:
    """Runner with repetition of failed readings.  tries: tries of one reading."""

    measure: Runner
    repeats: int = 1
    tries: int = 1

    def cycles(self, program: Encoded, levels: Sequence[str]) -> list[int] | Reading:
        """The median of the repeats at every level, or the first reading that failed.

        Levels take turns, so that a drift of the board is in all of them.
        """
        readings: dict[str, list[int]] = {level: [] for level in levels}
        for _ in range(self.repeats):
            for level in levels:
                reading = self.once(program, level)
                if reading.cycles is None:
                    return reading
                readings[level].append(reading.cycles)
        return [round(median(readings[level])) for level in levels]

    def identity(self) -> tuple[str | None, str | None]:
        """Board and firmware; None if the runner has no `board()`.  Raises `BadInputError` if they are not texts."""
        board = getattr(self.measure, "board", None)
        if board is None:
            return None, None
        try:
            answer = board()
        except Exception as error:  # noqa: BLE001  somebody else's code
            raise BadInputError(f"the runner's board(): {_line(f'{type(error).__name__}: {error}')}") from None
        if answer is None:
            return None, None
        if not (isinstance(answer, tuple) and len(answer) == 2 and all(isinstance(text, str) and text for text in answer)):
            raise BadInputError(f"the runner's board() answered {_line(repr(answer))}, expected two texts, board and firmware")
        return answer

    def once(self, program: Encoded, level: str) -> Reading:
        """One reading: the first try that does not fail, or the last one."""
        for _ in range(self.tries - 1):
            reading = self._ask_runner(program, level)
            if reading.cycles is not None:
                return reading
        return self._ask_runner(program, level)

    def _ask_runner(self, program: Encoded, level: str) -> Reading:
        """Ask the runner; an answer that is no reading becomes one that failed."""
        try:
            reading = self.measure(program, level)
        except Exception as error:  # noqa: BLE001  somebody else's code; one bad candidate must not end the run
            return Reading(None, "crash", _line(f"{type(error).__name__}: {error}"))
        if not isinstance(reading, Reading):
            return Reading(None, "invalid", _line(f"the runner answered {reading!r}, expected a Reading"))
        if reading.status != "ok":
            return Reading(None, reading.status, _line(reading.error or "no reason given"))
        if isinstance(reading.cycles, bool) or not isinstance(reading.cycles, int) or reading.cycles <= 0:
            return Reading(None, "invalid", _line(f"{reading.cycles!r} cycles, expected a whole number above 0"))
        return reading


def _line(text: str) -> str:
    return " ".join(text.split())[:500]
