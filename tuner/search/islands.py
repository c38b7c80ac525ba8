"""An island's state as bytes: its members and where its random numbers stand."""

from __future__ import annotations

import json

import numpy as np

from tuner.search.packing import pack_individuals, unpack_individuals
from tuner.search.population import Island
from tuner.store.arrays import below, from_bytes, prefixed, to_bytes


def pack_island(island: Island, levels: int) -> bytes:
    rng = json.dumps(island.rng.bit_generator.state, sort_keys=True).encode()
    return to_bytes({"rng": np.frombuffer(rng, np.uint8)} | prefixed("members", pack_individuals(island.members, levels)))


def unpack_island(data: bytes) -> Island:
    arrays = from_bytes(data)
    rng = np.random.default_rng(0)
    rng.bit_generator.state = json.loads(arrays["rng"].tobytes())
    return Island(rng, unpack_individuals(below("members", arrays)))
