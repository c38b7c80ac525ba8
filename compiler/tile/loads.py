"""How often tiles of a product's operands come to L0: the one place that says so, for estimates, features and stages alike.

`emit.conv` goes over the tiles of a chunk in the order of the tiling, those of k inside, and loads a tile only where another one came
between: that is what this counts.
"""

from __future__ import annotations

from numba import njit


@njit(cache=True)
def loads_of_tiles(tiles_m: int, tiles_n: int, tiles_k: int, n_outer: int) -> tuple[int, int]:
    """(left, right): loads of every tile of the left operand into L0A, and of the right one into L0B, in one chunk of weights.

    Once where k is one tile and the other operand's loop is inside or has a single tile too, else for every product.
    """
    left = 1 if tiles_k == 1 and (n_outer == 0 or tiles_m == 1) else tiles_n
    right = 1 if tiles_k == 1 and (n_outer == 1 or tiles_n == 1) else tiles_m
    return left, right
