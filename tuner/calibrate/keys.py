"""Machine values by dotted keys of the file: `vector.startup_cycles`, `paths.L1->L0A.bytes_per_cycle`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from simulator.npu.machine import Machine

Number = int | float
Unit = Literal["cycles", "B/cycle", "B", "entries", "share"]


@dataclass(frozen=True)
class Key:
    """Free value of a machine file.

    path: dotted key of the value in the file.  step: the finest legal or useful step.
    least, greatest: the legal range, searched completely.
    inverse: times are proportional to 1/value (a rate).  choices: all possible values of a discrete key.
    hidden: reason, for people, why no probe may show the value.
    """

    path: str
    unit: Unit
    least: Number
    greatest: Number
    step: Number = 1
    inverse: bool = False
    choices: tuple[int, ...] = ()
    hidden: str = "no probe's time depends on it"

    def rounded(self, value: float) -> Number:
        """Nearest legal value on the grid of `step`."""
        steps = round(min(max(value, self.least), self.greatest) / self.step)
        # 1/step is an integer: division gives the 12.8 that YAML reads, multiplication 12.800000000000001
        return steps * int(self.step) if self.step >= 1 else steps / round(1 / self.step)


def read_value(machine: Machine, key: str) -> Number:
    """Value of a key.  Raises KeyError for a key that the machine lacks."""
    holder, name = _holder(machine.model_dump(mode="json"), key)
    number: Number = holder[name]
    return number


def with_values(machine: Machine, values: Mapping[str, Number]) -> Machine:
    """Machine with other values, by key.  Raises pydantic's ValidationError for illegal values, KeyError as `read_value`."""
    raw = machine.model_dump(mode="json")
    for key, value in values.items():
        holder, name = _holder(raw, key)
        holder[name] = value
    return Machine.model_validate(raw)


def path_key(source: str, destination: str, name: str) -> str:
    """Key of a value of a data path between two memories."""
    return f"paths.{source}->{destination}.{name}"


def split_key(key: str) -> tuple[str, ...]:
    """Parts of a key.  A level's name may contain dots."""
    section, _, tail = key.partition(".")
    if section in ("paths", "contention"):
        return section, *tail.rsplit(".", 1)
    return tuple(key.split("."))


def _holder(raw: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """Mapping of the machine file that contains the value, and the value's name there."""
    *sections, name = split_key(key)
    node: Any = raw
    for section in sections:
        if isinstance(node, list):  # data paths
            node = next((entry for entry in node if f"{entry['source']}->{entry['destination']}" == section), {})
        else:
            node = node.get(section, {})
    if name not in node:
        raise KeyError(key)
    return node, name
