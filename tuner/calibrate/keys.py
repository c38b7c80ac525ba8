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


def value_of(machine: Machine, path: str) -> Number:
    """Raises KeyError where the machine has no such key."""
    folder, name = _holder(machine.model_dump(mode="json"), path)
    found: Number = folder[name]
    return found


def with_values(machine: Machine, values: Mapping[str, Number]) -> Machine:
    """The machine with other values, by key.  Raises pydantic's ValidationError for what the format refuses, KeyError as `value_of`."""
    raw = machine.model_dump(mode="json")
    for path, value in values.items():
        folder, name = _holder(raw, path)
        folder[name] = value
    return Machine.model_validate(raw)


def path_key(source: str, destination: str, name: str) -> str:
    """The key of a value of a path."""
    return f"paths.{source}->{destination}.{name}"


def split(path: str) -> tuple[str, ...]:
    """The parts of a key.  A level's name may have dots."""
    first, _, rest = path.partition(".")
    if first in ("paths", "contention"):
        return first, *rest.rsplit(".", 1)
    return tuple(path.split("."))


def _holder(raw: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    """The mapping that has the value, and its name there."""
    *folders, name = split(path)
    at: Any = raw
    for part in folders:
        if isinstance(at, list):
            at = next((each for each in at if f"{each['source']}->{each['destination']}" == part), {})
        else:
            at = at.get(part, {})
    if name not in at:
        raise KeyError(path)
    return at, name
