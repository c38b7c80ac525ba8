"""Arrays by name, from and to `.npz` files."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.npu.errors import BadInputError


def load_feeds(path: Path) -> dict[str, NDArray[Any]]:
    """Arrays of an .npz file by name; nothing in it is ever executed.  Raises `BadInputError`."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise BadInputError(f"{path}: one array without a name; expected an .npz file with an array per input")
        with loaded as arrays:
            return {name: arrays[name] for name in arrays.files}
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, zipfile.BadZipFile, KeyError) as error:
        raise BadInputError(f"{path}: not an .npz file of plain arrays ({' '.join(str(error).split())[:160]})") from None


def npz_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Bytes of an .npz file: equal arrays give equal bytes, and every name is allowed (`numpy.savez` reserves some names)."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, array in arrays.items():
            with file.open(zipfile.ZipInfo(f"{name}.npy"), "w") as entry:
                np.lib.format.write_array(entry, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()
