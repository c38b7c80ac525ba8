"""Provenance of a machine's values: documented, measured, derived or assumed, by patterns of dotted keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import islice
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BaseModel, Field, field_validator

from simulator.npu.machine_parts import DataPath, Spec

Text = Annotated[str, Field(min_length=1, max_length=1000)]
Pattern = Annotated[str, Field(min_length=1, max_length=1000)]
_NAMES = ("name", "description", "source", "destination", "provenance")  # fields that are no values of a part


class ValueOrigin(NamedTuple):
    """Provenance of one value.  kind: field of `Provenance`.  text: source, formula or reason."""

    kind: str
    text: str


class Provenance(Spec):
    """Texts by key pattern (`vector.simple_cycles`, `paths.DDR->*.bytes_per_cycle`, `host` with all in it), in one field for each kind.

    documented: source.  measured: source.  derived: formula.  assumed: reason.  given: what replaced the file's value.
    sources: titles by the short names that texts use.
    A key of a file may list patterns, with commas between.  Of the patterns of a value that with most characters besides `*` decides, of
    such the one with fewest `*`.
    """

    sources: dict[Annotated[str, Field(min_length=1, max_length=64)], Text] = Field(default_factory=dict)
    documented: dict[Pattern, Text] = Field(default_factory=dict)
    measured: dict[Pattern, Text] = Field(default_factory=dict)
    derived: dict[Pattern, Text] = Field(default_factory=dict)
    assumed: dict[Pattern, Text] = Field(default_factory=dict)
    given: dict[Pattern, Text] = Field(default_factory=dict)

    @field_validator("documented", "measured", "derived", "assumed", "given")
    @classmethod
    def _one_pattern_each(cls, texts: dict[str, str]) -> dict[str, str]:
        """One entry for each pattern of a list."""
        pairs = [(pattern.strip(), text) for patterns, text in texts.items() for pattern in patterns.split(",")]
        if len(dict(pairs)) < len(pairs):
            twice, _ = Counter(pattern for pattern, _ in pairs).most_common(1)[0]
            raise ValueError(f"{twice} is listed twice")
        return dict(pairs)

    @property
    def patterns(self) -> dict[tuple[str, str], str]:
        """Texts by kind and pattern."""
        return {(kind, pattern): text for kind, texts in self if kind != "sources" for pattern, text in texts.items()}

    def deciding(self, keys: Collection[str]) -> dict[str, tuple[str, str]]:
        """Kind and pattern that decide, by key; without keys of which nothing is said.  Raises ValueError for two patterns alike."""
        ranked = sorted(self.patterns, key=lambda entry: _width(entry[1]))
        deciding = {}
        for key in keys:
            longest = list(islice((entry for entry in ranked if matches(key, entry[1])), 2))
            if len({_width(pattern) for _, pattern in longest}) < len(longest):
                first, second = (".".join(entry) for entry in longest)
                raise ValueError(f"{first} and {second} are both of {key}; accepted: one of them, or a longer one")
            if longest:
                deciding[key] = longest[0]
        return deciding

    def origins(self, keys: Collection[str]) -> dict[str, ValueOrigin]:
        """Provenance by key; without keys of which nothing is said.  Raises as `deciding`."""
        return {key: ValueOrigin(entry[0], self.patterns[entry]) for key, entry in self.deciding(keys).items()}

    def replaced(self, kind: str, texts: Mapping[str, str], keys: Collection[str]) -> Self:
        """Provenance with texts of one kind for some of a machine's keys, without patterns that decide nothing any more."""
        entries = {entry: text for entry, text in self.patterns.items() if entry[1] not in texts}
        entries |= {(kind, key): text for key, text in texts.items()}
        wide = self._of_entries(entries)
        used = set(wide.deciding(keys).values())
        return self._of_entries({entry: text for entry, text in wide.patterns.items() if entry in used})

    def _of_entries(self, entries: Mapping[tuple[str, str], str]) -> Self:
        kinds: dict[str, dict[str, str]] = {}
        for (kind, pattern), text in entries.items():
            kinds.setdefault(kind, {})[pattern] = text
        return type(self)(sources=self.sources, **kinds)


def matches(key: str, pattern: str) -> bool:
    """Whether a pattern is of a key, or of a part that contains it."""
    return fnmatchcase(key, pattern) or fnmatchcase(key, f"{pattern}.*")


def is_number(value: object) -> bool:
    """Whether a machine's value is a number: one that needs a provenance in a preset."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def list_values(part: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Values of a machine or of a part by dotted key, defaults too; without names, and without what the machine lacks."""
    if isinstance(part, BaseModel):
        for name in type(part).model_fields:
            if name not in _NAMES:
                yield from list_values(getattr(part, name), f"{key}.{name}" if key else name)
    elif isinstance(part, Mapping):
        for name, value in part.items():
            yield from list_values(value, f"{key}.{name}")
    elif isinstance(part, tuple):
        for path in part:
            assert isinstance(path, DataPath), "no other lists are in a machine"
            yield from list_values(path, f"{key}.{path.name}")
    elif part is not None:
        yield key, part


def _width(pattern: str) -> tuple[int, int]:
    stars = pattern.count("*")
    return stars - len(pattern), stars
