"""Events of a trace, as its writers read them: `simulator.trace_json` and `simulator.trace_perfetto`.

A trace is facts and a sequence of events.  Groups and lanes are declared before their events, and viewers show them in the order of
declaration.  Events of a lane come in order of time and do not overlap; spans may overlap.  Times are nanoseconds, the grain of viewers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.timing_state import Ints

_EXACT_CLOCK_HZ = 1 << 33  # up to here a remainder of a second, in cycles, times 10^9 fits int64


class Texts(NamedTuple):
    """A text for each event: choices[number]."""

    choices: Sequence[str]
    number: Ints

    @classmethod
    def of(cls, texts: Sequence[str]) -> Texts:
        return cls(texts, np.arange(len(texts)))


Floats = NDArray[np.float64]  # NaN: none
Column = Ints | Floats | Texts
Arguments = Mapping[str, Column]


class Group(NamedTuple):
    """Lanes that belong together, as of a core.  group: its number in the file, from 1."""

    group: int
    name: str


class Lane(NamedTuple):
    """lane: a number of the whole file, since some viewers need different ones in all groups."""

    group: int
    lane: int
    name: str


class Slices(NamedTuple):
    """Events of a lane.  kinds: events that have the same arguments, as numbers of events, with their arguments."""

    category: str
    group: int
    lane: int
    begin_ns: Ints
    end_ns: Ints
    name: Texts
    kinds: Sequence[tuple[Ints, Arguments]]


class AsyncSlice(NamedTuple):
    """One event that may overlap others of its category.  key: differs within the category."""

    category: str
    key: int
    group: int
    lane: int
    name: str
    begin_ns: int
    end_ns: int
    arguments: Mapping[str, int]


class Instant(NamedTuple):
    """One event without length."""

    category: str
    group: int
    lane: int
    name: str
    instant_ns: int
    arguments: Mapping[str, int | str]


class Counter(NamedTuple):
    """A step function: values from each time on."""

    group: int
    name: str
    unit: str
    step_ns: Ints
    values: Ints | Floats


Event = Group | Lane | Slices | AsyncSlice | Instant | Counter


class Trace(NamedTuple):
    """about: facts of the file, JSON values without lists."""

    about: Mapping[str, Any]
    events: Iterable[Event]


def count_events(event: Event) -> int:
    """Number of events; declarations are none."""
    if isinstance(event, Slices):
        return len(event.begin_ns)
    return len(event.step_ns) if isinstance(event, Counter) else isinstance(event, AsyncSlice | Instant)


def nanoseconds(cycle: Ints, clock_hz: int) -> Ints:
    """Cycles in nanoseconds, rounded to nearest; in steps, so that no product leaves int64."""
    seconds, remainder = np.divmod(cycle, clock_hz)
    if clock_hz <= _EXACT_CLOCK_HZ:
        fraction_ns = (remainder * 1_000_000_000 + clock_hz // 2) // clock_hz
    else:
        fraction_ns = np.rint(remainder / clock_hz * 1e9)
    return np.asarray(seconds * 1_000_000_000 + fraction_ns, np.int64)
