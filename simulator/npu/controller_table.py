"""The controller's table: the facts by which a run time chooses a variant, in integers only.

A compiled file carries it; a bundle has it as JSON and as C, and both languages decide by it.  Rho is the compute cycles of an inference
per load-store cycle; its thresholds are in 1/65536.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from simulator.npu.grant import Grant
from simulator.npu.level import SHARE_UNIT, LevelText

RHO_UNIT = 1 << 16  # thresholds are multiples of 1 / RHO_UNIT
MAX_THRESHOLD = (1 << 32) - 1
COUNTER_BITS = MAX_THRESHOLD.bit_length()  # with counters of this size both sides of a comparison fit 64 bits

_Share = Annotated[int, Field(ge=1, le=SHARE_UNIT)]
_Count = Annotated[int, Field(ge=0, le=2**62)]
_Counts = Annotated[tuple[_Count, ...], Field(min_length=1)]


def check_thresholds(ladder: Sequence[int], t_min: Sequence[int], t_max: Sequence[int], slice_cycles: int) -> None:
    """Check thresholds: sizes, ranges and distinct variants.  Raises ValueError."""
    if not ladder or len(set(ladder)) != len(ladder):
        raise ValueError(f"ladder {tuple(ladder)}; accepted: at least one variant, each once")
    if not len(t_min) == len(t_max) == len(ladder) - 1:
        raise ValueError(f"{len(t_min)} t_min and {len(t_max)} t_max; accepted: one of each per border of {tuple(ladder)}")
    for value in (*t_min, *t_max):
        if not 1 <= value <= MAX_THRESHOLD:
            raise ValueError(f"threshold {value}; accepted: 1 to {MAX_THRESHOLD}, in 1/{RHO_UNIT}")
    if not 0 <= slice_cycles < 1 << 63:
        raise ValueError(f"time slice of {slice_cycles} cycles; accepted: 0 or more (0: one inference)")


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class LevelRow(_Row):
    """Contention level of the machine, and its variant; None: the level has none, and is never chosen."""

    name: LevelText
    share_units: _Share  # DDR share in 1/65536
    latency_cycles: _Count  # on top of the machine's own
    variant: _Count | None


class VariantRow(_Row):
    """Counters of one inference with a variant at every share of the table's grid, summed over the pieces of the model.

    name: the first level that the variant was made for.  compute_cycles: cycles with compute; load_store_cycles: cycles with loads or
    stores; both summed over cores, as an NPU's counters are.  l1_bytes, shared_bytes, cores: its needs (`simulator.npu.grant`).
    """

    name: LevelText
    l1_bytes: _Count
    shared_bytes: _Count
    cores: _Count
    ddr_bytes: _Count
    cycles: _Counts
    compute_cycles: _Counts
    load_store_cycles: _Counts


class GrantedRow(_Row):
    """Threshold rule for a grant that some variants exceed: its ladder has every variant that fits."""

    l1_bytes: _Count
    shared_bytes: _Count
    cores: _Count
    ladder: tuple[_Count, ...]
    t_min: tuple[int, ...]
    t_max: tuple[int, ...]


class ControllerTable(_Row):
    """Table of the controller.  levels: by the cycles of their fastest variant, then by the cycles of all variants, ascending.

    variants: in the order in which the file first names them.

    grid: shares in 1/65536, descending.  ladder: variants of the threshold rule, from light load to heavy.  t_min, t_max: one per border,
    see `simulator.controller.ThresholdRule`.  granted: rules for grants that do not fit all variants, the largest grant first.
    """

    levels: Annotated[tuple[LevelRow, ...], Field(min_length=1)]
    variants: Annotated[tuple[VariantRow, ...], Field(min_length=1)]
    grid: Annotated[tuple[_Share, ...], Field(min_length=1)]
    ladder: tuple[_Count, ...]
    t_min: tuple[int, ...]
    t_max: tuple[int, ...]
    slice_cycles: int
    granted: tuple[GrantedRow, ...]

    def needs(self, variant: int) -> Grant:
        """The grant that a variant needs."""
        row = self.variants[variant]
        return Grant(row.l1_bytes, row.shared_bytes, row.cores)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        rules = [(self.ladder, self.t_min, self.t_max), *((row.ladder, row.t_min, row.t_max) for row in self.granted)]
        for ladder, t_min, t_max in rules:
            check_thresholds(ladder, t_min, t_max, self.slice_cycles)
        if not all(a > b for a, b in pairwise(self.grid)):
            raise ValueError("grid: accepted: shares that descend")
        for kind, names in (("level", [row.name for row in self.levels]), ("variant", [row.name for row in self.variants])):
            if len(set(names)) != len(names):
                raise ValueError(f"a {kind} is given twice: {', '.join(names)}")
        for variant_row in self.variants:
            if not len(variant_row.cycles) == len(variant_row.compute_cycles) == len(variant_row.load_store_cycles) == len(self.grid):
                raise ValueError(f"variant {variant_row.name!r}: accepted: {len(self.grid)} values in every column, as the grid has")
        # every variant is of a level, and has the name of one
        made_for = {row.name: row.variant for row in self.levels}
        used = set(made_for.values()) - {None}
        if used != set(range(len(self.variants))):
            raise ValueError(f"levels name variants {sorted(v for v in used if v is not None)}, there are {len(self.variants)}")
        for v, variant in enumerate(self.variants):
            if made_for.get(variant.name) != v:
                raise ValueError(f"variant {variant.name!r}: accepted: the name of a level that it was made for")
        # every ladder has only existing variants, and only fitting ones under a grant
        for ladder, _, _ in rules:
            if max(ladder) >= len(self.variants):
                raise ValueError(f"ladder {ladder}: there are {len(self.variants)} variants")
        for row in self.granted:
            granted = Grant(row.l1_bytes, row.shared_bytes, row.cores)
            for number in row.ladder:
                if shortage := self.needs(number).shortage(granted):
                    raise ValueError(f"granted: variant {self.variants[number].name!r} {shortage}")
        if list(self.granted) != sorted(self.granted, key=lambda row: (-row.l1_bytes, -row.shared_bytes, -row.cores)):
            raise ValueError("granted: accepted: the largest grant first")
        return self

    @property
    def digest(self) -> str:
        """32 hex digits."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:32]

    def dump(self) -> dict[str, Any]:
        """JSON values of the table."""
        return self.model_dump(mode="json")
