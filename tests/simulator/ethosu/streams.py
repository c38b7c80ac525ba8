"""Committed streams with LiteRT's outputs, and words by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.ethosu.command_table import BY_NAME
from simulator.ethosu.command_words import encode
from simulator.ethosu.executor import Execution, execute
from simulator.ethosu.memory_regions import Region
from simulator.ethosu.stream_error import StreamError
from tests.scripting import ROOT

FILE = ROOT / "tests" / "golden" / "ethosu_streams.npz"


class Case(NamedTuple):
    """A compiled model: regions 0 to 2 are constants, an arena in DRAM, an arena in SRAM."""

    name: str
    words: list[int]
    constants: NDArray[np.uint8]
    arena: int
    fast: int
    inputs: list[tuple[int, NDArray[Any]]]
    outputs: list[tuple[int, NDArray[Any]]]

    def regions(self) -> dict[int, Region]:
        """RegionMemory with the inputs in it, and every other byte set."""
        arena, fast = np.full(self.arena, 0x55, np.uint8), np.full(self.fast, 0xAA, np.uint8)
        for offset, values in self.inputs:
            arena[offset : offset + values.nbytes] = np.frombuffer(values.tobytes(), np.uint8)
        return {0: Region(self.constants, "dram", 1, False), 1: Region(arena, "dram", 1), 2: Region(fast, "sram", 0)}

    def run(self, words: list[int] | None = None) -> tuple[list[NDArray[Any]], Execution]:
        """Outputs of its stream, or of another one on its memory."""
        regions = self.regions()
        execution = execute(words or self.words, regions, commands=0)
        return [regions[1].data[offset : offset + y.nbytes].view(y.dtype).reshape(y.shape) for offset, y in self.outputs], execution


@cache
def cases() -> list[Case]:
    """All of them."""
    out = []
    with np.load(FILE) as file:
        for number, said in enumerate(json.loads(file["cases"].tobytes())):
            sides = {
                side: [(offset, file[f"{side}{number}_{index}"]) for index, offset in enumerate(said[f"{side}s"])]
                for side in ("input", "output")
            }
            name = f"{said['name']}, {said['compiler']}, {said['dtype']}"
            words = file[f"words{number}"].tolist()
            out.append(Case(name, words, file[f"constants{number}"], said["arena"], said["fast"], sides["input"], sides["output"]))
    return out


def case(name: str) -> Case:
    """The first whose name begins so."""
    return next(each for each in cases() if each.name.startswith(name))


def refusal(call: Callable[[], object]) -> str | None:
    """The message of a call that is refused; None where it is not."""
    try:
        call()
    except StreamError as error:
        return str(error)
    return None


def words_of(*commands: tuple[str, dict[str, int]]) -> list[int]:
    """A stream of commands by name, without `NPU_`."""
    return [word for name, values in commands for word in encode(BY_NAME[f"NPU_{name}"], values)]
