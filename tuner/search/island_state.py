"""State of an island as bytes: its members, outcomes of its children, and its random state."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa

from tuner.log.columns import INTS, from_bytes, schema_of, to_bytes
from tuner.search.packing import pack_individuals, unpack_individuals
from tuner.search.population import ChildRecord, Island

_STATE = schema_of(rng=pa.string(), grown=pa.int64(), genome=INTS, cycles=pa.int64(), task=pa.string())


def pack_island(island: Island) -> bytes:
    rng = json.dumps(island.rng.bit_generator.state, sort_keys=True)
    grown = [number for level, record in sorted(island.grown.items()) for number in (level, *record)]
    return to_bytes({"rng": [rng], "grown": grown} | pack_individuals(island.members), _STATE)


def unpack_island(data: bytes) -> Island:
    columns = from_bytes(data, _STATE)
    rng = np.random.default_rng(0)
    (text,) = columns.texts("rng")
    rng.bit_generator.state = json.loads(text)
    grown = {level: ChildRecord(cycles, since) for level, cycles, since in columns["grown"].reshape(-1, 3).tolist()}
    return Island(rng, unpack_individuals(columns), grown)
