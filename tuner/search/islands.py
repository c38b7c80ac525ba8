"""An island's state as bytes: its members, where its random numbers stand, and what has paid."""

from __future__ import annotations

import json

import numpy as np

from tuner.config import TuneConfig
from tuner.search.credit import Credit
from tuner.search.packing import below, from_bytes, pack_individuals, prefixed, to_bytes, unpack_individuals
from tuner.search.population import Island


def first_states(levels: int, config: TuneConfig, seed: int) -> list[bytes]:
    """Of all islands of a run: nobody yet, each with random numbers of its own."""
    count = config.search.islands if config.use.islands else 1
    return [pack_island(Island(np.random.default_rng([seed, 1 + number])), levels) for number in range(count)]


def pack_island(island: Island, levels: int) -> bytes:
    small = {"rng": island.rng.bit_generator.state, "gains": island.credit.gains, "looks": island.credit.looks}
    text = json.dumps(small, sort_keys=True).encode()
    return to_bytes({"small": np.frombuffer(text, np.uint8)} | prefixed("members", pack_individuals(island.members, levels)))


def unpack_island(data: bytes) -> Island:
    arrays = from_bytes(data)
    rng, small = np.random.default_rng(0), json.loads(arrays["small"].tobytes())
    rng.bit_generator.state = small["rng"]
    return Island(rng, unpack_individuals(below("members", arrays)), Credit(small["gains"], small["looks"]))
