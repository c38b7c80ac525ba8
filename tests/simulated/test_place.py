"""A simulated place is a place."""

from __future__ import annotations

from random import Random

from tests.simulated.disk import SimDisk, SimPlace
from tests.tuner.platform.place_contract import PlaceContract


class TestSimPlace(PlaceContract):
    def fresh(self, tmp_path: object) -> SimPlace:
        del tmp_path
        folder = SimPlace(SimDisk(Random(0)), ("run",))
        folder.mkdir()
        return folder
