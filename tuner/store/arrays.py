"""Arrays as bytes: what travels between driver and actors, and lies in checkpoints.  No pickle: what is loaded may come from anywhere."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.npu.errors import BadInputError
from tuner.store.compressed import compressed, decompressed

Arrays = dict[str, NDArray[Any]]

_HEAD = 8  # bytes of the header's length


def prefixed(name: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """The arrays under `name/`, to lie beside others."""
    return {f"{name}/{key}": value for key, value in arrays.items()}


def below(name: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """What `prefixed` put there."""
    return {key.removeprefix(f"{name}/"): value for key, value in arrays.items() if key.startswith(f"{name}/")}


def to_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The same arrays give the same bytes: the length of a JSON header, the header, the arrays' own bytes one after the other; compressed.

    Not numpy's npz: twenty small arrays of one set of findings take a millisecond to read there, and everybody reads everybody's.
    """
    whole = {key: np.ascontiguousarray(value) for key, value in arrays.items()}
    head = json.dumps([[key, value.dtype.str, list(value.shape)] for key, value in whole.items()]).encode()
    return compressed(b"".join((len(head).to_bytes(_HEAD, "little"), head, *(value.tobytes() for value in whole.values()))))


def from_bytes(data: bytes) -> Arrays:
    """Raises `BadInputError` where they are not what `to_bytes` made."""
    try:
        data = decompressed(data).to_pybytes()
        at = _HEAD + int.from_bytes(data[:_HEAD], "little")
        found: Arrays = {}
        for key, dtype, shape in json.loads(data[_HEAD:at]):
            if np.dtype(dtype).hasobject:
                raise ValueError(f"{key}: no objects")
            count = math.prod(shape)
            # copies: aligned, writable, and no row keeps the whole message
            found[key] = np.frombuffer(data, dtype, count, at).reshape(shape).copy() if count else np.zeros(shape, dtype)
            at += found[key].nbytes
        if at != len(data):
            raise ValueError(f"{len(data):,} bytes instead of {at:,}")
        return found
    except (ValueError, TypeError, OSError) as error:
        raise BadInputError(f"not arrays of a search: {error}") from None
