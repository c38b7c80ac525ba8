"""Values of a machine by the keys of its file, with dots: `vector.startup_cycles`, `paths.L1->L0A.bytes_per_cycle`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from simulator.npu.machine import Machine

Number = int | float
Unit = Literal["cycles", "B/cycle", "B", "entries", "share"]


@dataclass(frozen=True)
class Key:
    """One free value.

    step: the finest that the file takes, or that is asked for.  least, most: what is legal, and what is looked at.
    inverse: times go with 1/value (a rate).  choices: all that it may be, where it is no matter of degree.
    hidden: what hides it where no probe shows it, for people.
    """

    path: str
    unit: Unit
    least: Number
    most: Number
    step: Number = 1
    inverse: bool = False
    choices: tuple[int, ...] = ()
    hidden: str = "no probe's time depends on it"

    def rounded(self, value: float) -> Number:
        """The nearest legal value on the grid of `step`."""
        whole = round(min(max(value, self.least), self.most) / self.step)
        # 1/step is whole: dividing by it keeps 12.8 what YAML reads, where multiplying would give 12.800000000000001
        return whole * int(self.step) if self.step >= 1 else whole / round(1 / self.step)


def cycles(path: str, hidden: str, least: int = 0, most: int = 1 << 20) -> Key:
    """A time."""
    return Key(path, "cycles", least, most, hidden=hidden)


def rate(path: str, hidden: str, step: Number = 1) -> Key:
    """Bytes per cycle."""
    return Key(path, "B/cycle", step, 1 << 20, step, inverse=True, hidden=hidden)


def value_of(machine: Machine, path: str) -> Number:
    """Raises KeyError where the machine has no such key."""
    return _holder(_raw(machine), path)[path.rpartition(".")[2]]  # type: ignore[no-any-return]


def with_values(machine: Machine, values: Mapping[str, Number]) -> Machine:
    """The machine with other values, by key.  Raises pydantic's ValidationError for what the format refuses."""
    raw = _raw(machine)
    for path, value in values.items():
        _holder(raw, path)[path.rpartition(".")[2]] = value
    return Machine.model_validate(raw)


def path_key(source: str, destination: str, name: str) -> str:
    """The key of a value of a path."""
    return f"paths.{source}->{destination}.{name}"


def ends_of(path: str) -> tuple[str, str]:
    """Source and destination of a path's key."""
    source, _, destination = path.split(".")[1].partition("->")
    return source, destination


def _raw(machine: Machine) -> dict[str, Any]:
    return machine.model_dump(mode="json")


def _holder(raw: dict[str, Any], path: str) -> dict[str, Any]:
    """The mapping whose last part of the path is the key."""
    first, *rest = path.split(".")
    if first == "paths":
        source, destination = ends_of(path)
        return next(each for each in raw["paths"] if (each["source"], each["destination"]) == (source, destination))
    at = raw
    for part in (first, *rest)[:-1]:
        at = at[part]
    if (first, *rest)[-1] not in at:
        raise KeyError(path)
    return at
