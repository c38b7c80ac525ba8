"""Rows and columns that the matrix unit works on together, apart from `machine`: who only looks at plans need not load a machine."""

from __future__ import annotations

M0, N0 = 16, 16  # of every data type's products; a record's N1 and a plan's `tile_n1` count in N0
