"""Files that a part's own stack loads, which a packager makes beside `best.onnx`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from simulator.npu.controller_table import VariantRow


class VariantCounters(NamedTuple):
    """Facts of a controller's table.  rows: variants, with counters at each share of `grid`, in 1/65536 and descending.

    costs: of levels, by which they are in order.  made_for: variant of each level.
    """

    rows: tuple[VariantRow, ...]
    grid: tuple[int, ...]
    costs: Mapping[str, tuple[int, int]]
    made_for: Mapping[str, int]


class PackagedFiles(NamedTuple):
    """Contents of files by suffix, the main one first.  lines: what they have, for a report.

    moved: bytes of DRAM of one inference, by channel.  on_processor: operators that the part has not, a line each.
    variants: counters of what the files have.
    """

    files: Mapping[str, bytes]
    lines: tuple[str, ...]
    moved: Mapping[str, int]
    on_processor: tuple[str, ...]
    variants: VariantCounters
