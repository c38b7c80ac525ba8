"""Packaged cost model: trained on networks drawn from seeds (`scripts/make_cost_model.py`), never on a named one.

A compressed file in the package, in the form of every other model: it names its requirements, and contains no pickle.
"""

from __future__ import annotations

import lzma
from importlib.resources import files

from simulator.npu.errors import BadInputError
from tuner.cost_model.model_file import SUFFIX, StoredModel, decode_model

NAME = "the packaged cost model"
FILE = f"packaged{SUFFIX}.xz"
CARD = f"packaged{SUFFIX}.json"
MAKE = "python scripts/make_cost_model.py"
MOST_BYTES = 2 << 20  # unpacked: a run keeps a copy


def packaged_model() -> tuple[bytes, StoredModel]:
    """Model's file, and its parsed content.

    Raises `BadInputError` for a model of other features, another simulator or other log columns than this program's.
    """
    try:
        data = lzma.decompress((files("tuner.cost_model") / FILE).read_bytes())
    except (OSError, lzma.LZMAError) as error:
        raise BadInputError(f"{NAME}: cannot be read: {error}; it is made by `{MAKE}`") from None
    return data, decode_model(data, NAME, MAKE)


def compress_model(data: bytes) -> bytes:
    """Compress a model for the package; equal bytes give equal results."""
    return lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)
