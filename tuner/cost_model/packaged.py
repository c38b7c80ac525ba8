"""The cost model that comes along: trained on networks that are drawn from seeds (`scripts/make_cost_model.py`), never on a named one.

It lies in the package, compressed, in the form of every other model, so it names what it was made for, and nothing of it is pickled.
"""

from __future__ import annotations

import lzma
from importlib.resources import files

from simulator.npu.errors import BadInputError
from tuner.cost_model.model_file import SUFFIX, KeptModel, decoded_model

NAME = "the packaged cost model"
FILE = f"packaged{SUFFIX}.xz"
CARD = f"packaged{SUFFIX}.json"
MAKE = "python scripts/make_cost_model.py"
MOST_BYTES = 2 << 20  # unpacked: a run keeps a copy


def packaged_model() -> tuple[bytes, KeptModel]:
    """The model's file, and what it holds.

    Raises `BadInputError` where it was made for other features, another simulator or other columns of a log than this program has.
    """
    try:
        data = lzma.decompress((files("tuner.cost_model") / FILE).read_bytes())
    except (OSError, lzma.LZMAError) as error:
        raise BadInputError(f"{NAME}: cannot be read: {error}; it is made by `{MAKE}`") from None
    return data, decoded_model(data, NAME, MAKE)


def compressed(data: bytes) -> bytes:
    """What lies in the package: the same bytes give the same."""
    return lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)
