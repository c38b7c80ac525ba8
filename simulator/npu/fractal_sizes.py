"""Rows and columns of a fractal; apart from `machine`, so that readers of plans need not load a machine."""

from __future__ import annotations

ROWS, COLUMNS = 16, 16  # equal for every data type; a plan's `tile_m` is a multiple of ROWS, `tile_n1` and a record's N1 count in COLUMNS
