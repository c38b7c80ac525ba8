"""State of an L2 when a segment begins that is timed alone: what the cache still has of its inputs.

In a program the operators before a segment have written its inputs, so the cache holds them, as far as not too much was moved since.
How much that is does not depend on segments: results and weights of the operators between the writer of an input and the writer of the
last one.  Weights and inputs of the model are cold, and so is a storage that the segment itself writes to.  Results of all operators are
dirty until fills have evicted them, so a fill of the segment may write some back.
"""

from __future__ import annotations

import math

import numpy as np

from compiler.ops.conv import product_of
from compiler.schedule.segment_accesses import Ints
from compiler.target.target_graph import TargetGraph
from simulator.l2_traffic import L2Start
from simulator.npu.level import SHARE_UNIT
from simulator.npu.parts import BLOCK_BYTES


class WarmInputs:
    """Inputs of the segments of a target graph, in an L2 of `size_bytes` with lines of `line_bytes`."""

    def __init__(self, target_graph: TargetGraph, size_bytes: int, line_bytes: int) -> None:
        storages, capacity = target_graph.storages, size_bytes // BLOCK_BYTES
        # blocks moved, and blocks dirty, when a storage is complete; -1: no operator writes it
        written, dirty = np.full((2, len(storages)), -1)
        moved, stale = 0, 0.0
        for spec in target_graph.operators:
            product = product_of(spec)
            results = storages[spec.y.storage].n * spec.y.planes * storages[spec.y.storage].plane_blocks
            fills = results + (0 if product is None else product.stored_weight_blocks)
            moved, stale = moved + fills, stale * math.exp(-fills / capacity) + capacity * (1 - math.exp(-results / capacity))
            written[spec.y.storage], dirty[spec.y.storage] = moved, round(stale)
        addresses = np.array([storage.address for storage in storages])
        order = np.argsort(addresses, kind="stable")
        self._address, self._written, self._dirty = addresses[order], written[order], dirty[order]
        self._stop = self._address + np.array([storage.n * storage.image_blocks for storage in storages])[order]
        self._line, self._lines = line_bytes // BLOCK_BYTES, -(-target_graph.memory.size_blocks * BLOCK_BYTES // line_bytes) + 1

    def start(self, access: Ints) -> L2Start | None:
        """The state before transfers (`l2_traffic`); None where all are cold."""
        storage = np.searchsorted(self._address, access[:, 2], "right") - 1
        storage[access[:, 2] >= self._stop[storage]] = -1  # constants lie between storages
        is_write = access[:, 1] > 0
        inputs = np.setdiff1d(storage[~is_write], storage[is_write])
        inputs = inputs[(inputs >= 0) & (self._written[inputs] >= 0)]
        if not len(inputs):
            return None
        moved = self._written[inputs]
        filled = (moved - moved.min()) * SHARE_UNIT // self._line
        touched = np.full(self._lines, -1, np.int64)
        for number, amount in zip(inputs.tolist(), filled.tolist(), strict=True):
            touched[self._address[number] // self._line : (self._stop[number] - 1) // self._line + 1] = amount
        return L2Start(int(filled.max()), int(self._dirty[inputs[moved.argmax()]]) * SHARE_UNIT // self._line, touched)
