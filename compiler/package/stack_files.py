"""Files that a part's own stack loads, which a packager makes beside `best.onnx`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class PackagedFiles(NamedTuple):
    """Contents of files by suffix, the main one first.  lines: what they have, for a report.

    moved: bytes of DRAM of one inference, by channel.  on_processor: operators that the part has not, a line each.
    """

    files: Mapping[str, bytes]
    lines: tuple[str, ...]
    moved: Mapping[str, int]
    on_processor: tuple[str, ...]
