"""Transforms of segments, in the order in which they are applied.

A split over cores (`segment.core_channels`) or into strips (`segment.strips`) is not a transform: it makes several graphs with the same
operators from one graph, and does not change the plan.
"""

from __future__ import annotations

from compiler.segment.batch_tiles import BATCH_TILES
from compiler.segment.channel_splits import CHANNEL_SPLITS
from compiler.segment.engine_split import ENGINE_SPLIT
from compiler.segment.segment_transform import SegmentTransform

TRANSFORMS: tuple[SegmentTransform, ...] = (BATCH_TILES, CHANNEL_SPLITS, ENGINE_SPLIT)
