"""The past of a core as rows of DDR and pieces on chip, against a table of single granules."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit
from numpy.typing import NDArray

from compiler.schedule.access_history import Intervals, collect_accesses, empty_ddr_history, empty_intervals, locate_pieces, record_part
from compiler.schedule.local_dependences import ENGINES, WRITER, WRITER_ENGINE
from simulator.pointer import pointer

GRANULES = 60
Ints32 = NDArray[np.int32]


@njit
def met(need: NDArray[np.int64], write: int, c: int, bound: Ints32, ddr: Ints32, past: Intervals, pieces: int, piece: Ints32) -> None:
    """need: int64 [6], of a cell."""
    collect_accesses(
        pointer(need), write, c, c + 1, pointer(bound), ddr.shape[0], pointer(ddr), pointer(past.bound), pointer(past.last), pieces,
        pointer(piece),
    )  # fmt: skip


def needed(write: int, c: int, bound: Ints32, ddr: Ints32, past: Intervals, pieces: int, piece: Ints32) -> list[int]:
    need = np.full(ENGINES, -1)
    met(need, write, c, bound, ddr, past, pieces, piece)
    return list(need.tolist())


@pytest.mark.parametrize("rows", [0, 1, 25, GRANULES])
@pytest.mark.parametrize("seed", range(10))
def test_rows_and_pieces_equal_a_table_of_granules(seed: int, rows: int) -> None:
    """rows: how many of the granules are DDR's; no cell that is touched lies in both."""
    rng = np.random.default_rng(seed)
    writer, engine = np.full(GRANULES, -1), np.full(GRANULES, -1)
    reader = np.full((GRANULES, ENGINES), -1)
    ddr, past, other, pieces, first = empty_ddr_history(rows), empty_intervals(GRANULES - rows), empty_intervals(GRANULES - rows), 0, 0
    for _ in range(12):
        bound = np.sort(rng.choice(GRANULES + 1, int(rng.integers(2, 12)), replace=False)).astype(np.int32)
        touched = rng.integers(0, 2, len(bound) - 1).astype(np.uint8)
        touched[(bound[:-1] < rows) & (bound[1:] > rows)] = 0
        piece = np.full(len(touched), 99, np.int32)
        locate_pieces(bound, touched, rows, past, pieces, piece)
        for c in np.flatnonzero(touched):
            inside = slice(bound[c], bound[c + 1])
            last_writers = [writer[inside][engine[inside] == e].max(initial=-1) for e in range(ENGINES)]
            assert needed(0, c, bound, ddr, past, pieces, piece) == last_writers
            assert needed(1, c, bound, ddr, past, pieces, piece) == np.maximum(last_writers, reader[inside].max(0)).tolist()
        mine = np.full((len(touched), 8), -1, np.int32)
        for i in range(first, first + int(rng.integers(1, 20))):
            c, e = int(rng.choice(np.flatnonzero(touched))) if touched.any() else -1, int(rng.integers(ENGINES))
            if c < 0:
                continue
            inside = slice(bound[c], bound[c + 1])
            if rng.integers(2):
                mine[c], mine[c, WRITER], mine[c, WRITER_ENGINE] = -1, i - first, e
                writer[inside], engine[inside], reader[inside] = i, e, -1
            else:
                mine[c, e] = i - first
                reader[inside, e] = i
        pieces = record_part(bound, touched, mine, first, ddr, past, pieces, other)
        past, other, first = other, past, first + 20
        assert pieces <= GRANULES - rows
        assert (np.diff(past.bound[: pieces + 1]) > 0).all()


def test_part_without_accesses_leaves_the_past_alone() -> None:
    ddr, past, other = empty_ddr_history(0), empty_intervals(8), empty_intervals(8)
    bound, mine = np.array([2, 5], np.int32), np.array([[-1] * ENGINES + [7, 3]], np.int32)
    pieces = record_part(bound, np.ones(1, np.uint8), mine, 0, ddr, past, 0, other)
    pieces = record_part(np.array([0, 1, 4, 8], np.int32), np.zeros(3, np.uint8), np.zeros((3, 8), np.int32), 9, ddr, other, pieces, past)
    bound, piece = np.arange(9, dtype=np.int32), np.empty(8, np.int32)
    locate_pieces(bound, np.ones(8, np.uint8), 0, past, pieces, piece)
    assert [needed(0, c, bound, ddr, past, pieces, piece)[3] for c in range(8)] == [-1, -1, 7, 7, 7, -1, -1, -1]
