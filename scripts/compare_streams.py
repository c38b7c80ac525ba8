"""Command streams of Ethos-U65 beside Vela's, both by the executor and its clock: bytes of DRAM and cycles at shares of DRAM.

`scripts/compare_vela.py --streams` prints the table.  Of Vela the better of its two compilers counts, for bytes and for cycles each; ours
are the streams of each level by predicted plans, without a search.  `least` is what no stream can leave out: coded weights, biases, scales
and tables, inputs and outputs, once.  Needs the extras `ethos-u` and `litert`.

Goals: in the geometric mean at most half of Vela's bytes, and of none above 0.8, unless that is below `least`: then at most 1.05 of its
mean; cycles at most 1.02 of Vela's at all of DRAM, and 0.9 at a fourth.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

import numpy as np

from compiler.ethosu.level_streams import compiled_cycles
from compiler.ethosu.machine_clock import memories_of
from scripts.our_streams import MACHINE, OurStream, compile_level_streams
from simulator.ethosu.stream_cycles import stream_times
from simulator.npu.level import Level
from simulator.npu.machine_file import load_machine

SHARES = {"none": 1.0, "half": 0.5, "quarter": 0.25}
BYTES_GOAL, WORST_BYTES, OF_LEAST, CYCLES_GOALS = 0.5, 0.8, 1.05, {1.0: 1.02, 0.25: 0.9}
_COLUMNS = ("network", "share", "bytes", "of Vela's", "ratio", "constants", "least", "ratio", "cycles", "of Vela's", "ratio", "compiler")


class VelaStream(NamedTuple):
    """A stream of Vela: bytes of DRAM, and cycles by level."""

    compiler: str
    moved: int
    cycles: Mapping[str, int]


def compare_networks(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A row for each network and share."""
    from scripts.tflite_networks import NETWORKS

    given = load_machine(MACHINE)
    levels = {name: Level(share=share) for name, share in SHARES.items()}
    machine = given.model_copy(update={"contention": levels})
    for name in names or list(NETWORKS):
        model = NETWORKS[name]()
        vela = [
            _vela_stream(model, compiler, {level: memories_of(machine, levels[level]) for level in levels})
            for compiler in ("regor", "python")
        ]
        ours = compile_level_streams(model, machine)
        for level, share in SHARES.items():
            fewest, fastest = min(vela, key=lambda row: row.moved), min(vela, key=lambda row: row.cycles[level])
            compiled = ours[level].compiled
            yield {
                "network": name, "share": share, "bytes": sum(ours[level].planned.values()), "vela_bytes": fewest.moved,
                "constants": constant_bytes(ours[level]), "least": least_bytes(ours[level]),
                "cycles": compiled_cycles(compiled, machine, levels[level]), "vela_cycles": fastest.cycles[level],
                "vela_compiler": fastest.compiler,
            }  # fmt: skip


def _vela_stream(model: bytes, compiler: str, memories: Mapping[str, Any]) -> VelaStream:
    from scripts.litert_reference import Reference
    from scripts.vela_streams import compile_model

    with tempfile.TemporaryDirectory() as folder:
        stream = compile_model(model, compiler, Path(folder))
    _, execution = stream.run(Reference(model).draw(np.random.default_rng(0)))
    moved = sum(count.bytes for channel, count in execution.bytes.items() if channel.memory == "dram")
    return VelaStream(compiler, moved, {level: stream_times(stream.words, times).cycles for level, times in memories.items()})


def constant_bytes(stream: OurStream) -> int:
    """Weights as they are coded, biases, scales and tables."""
    return sum(len(part.stream.constants) for part in stream.compiled.parts)


def least_bytes(stream: OurStream) -> int:
    """Constants, inputs and outputs, once."""
    network = stream.compiled.network
    return constant_bytes(stream) + sum(network.tensors[number].nbytes for number in (*network.inputs, *network.outputs))


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[float, tuple[float, float, float]]:
    """Geometric means by share: of bytes, of the least bytes, and of cycles, each over Vela's."""
    return {
        share: tuple(
            geometric_mean(row[ours] / row[theirs] for row in rows if row["share"] == share)
            for ours, theirs in (("bytes", "vela_bytes"), ("least", "vela_bytes"), ("cycles", "vela_cycles"))
        )
        for share in sorted({row["share"] for row in rows}, reverse=True)
    }  # type: ignore[return-value]


def goals_reached(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether bytes and cycles are as few as the goals want; where the least bytes are more, bytes have to be nearly those."""
    means = summarise(rows)
    few = all(moved <= max(BYTES_GOAL, OF_LEAST * least) for moved, least, _ in means.values())
    few = few and all(row["bytes"] <= WORST_BYTES * row["vela_bytes"] or row["least"] > WORST_BYTES * row["vela_bytes"] for row in rows)
    return few and all(cycles <= CYCLES_GOALS.get(share, cycles) for share, (_, _, cycles) in means.items())


def table_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table, and a line of means for each share."""
    lines = [f"| {' | '.join(_COLUMNS)} |", f"|---|{'---:|' * (len(_COLUMNS) - 2)}---|"]
    for row in rows:
        moved, least = (row[name] / row["vela_bytes"] for name in ("bytes", "least"))
        cycles = row["cycles"] / row["vela_cycles"]
        lines.append(
            f"| {row['network']} | {row['share']:g} | {row['bytes']:,} | {row['vela_bytes']:,} | {moved:.3f} | {row['constants']:,} | "
            f"{row['least']:,} | {least:.3f} | {row['cycles']:,} | {row['vela_cycles']:,} | {cycles:.3f} | {row['vela_compiler']} |"
        )
    for share, (moved, least, cycles) in summarise(rows).items():
        lines.append(f"share {share:g}: bytes {moved:.3f} of Vela's in the geometric mean, at least {least:.3f}; cycles {cycles:.3f}")
    return lines
