"""Bandwidth of three streams on each DRAM, in percent of its pins, compared with published figures for the same kind of stream.

    python scripts/compare_dram.py [--json]

Each stream runs on the simulator, on a core whose paths are as fast as the pins: one long read; equally many reads and writes side by side;
reads of 64 bytes, each in a different row.  `queue full` is the third stream with a controller that sees 32 requests of a channel, by the
closed form of simulator/npu/dram.py alone: the published runs have such a queue, while a DMA is assumed to have `IN_FLIGHT` requests.

Published, in percent of the pins:
    97   Ramulator, DDR3-1600, 64-byte reads of a stream: 9,000 in 37,159 cycles of which each needs 4 (CMU-SAFARI/ramulator, issue 109)
    98   DRAMsim3, HBM1, one channel, consecutive addresses: 15.71 of 16 GB/s (umd-memsys/DRAMsim3, issue 36)
    66   DRAMsim3, DDR4-3200, two reads beside a write of a stream: 16.85 of 25.6 GB/s (umd-memsys/DRAMsim3, issue 54)
    74   DRAMsim3, DDR4-3200 of two ranks, random reads and writes, queues full: 18.84 of 25.6 GB/s (the same issue)
    40   AMD's memory controllers, DDR4-2400, random reads of 64 bytes; LPDDR5-6400: 50, near 80 without inline error correction (WP570)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.gemm import array_machine, program, record  # noqa: E402
from simulator.npu.dram import DRAMS  # noqa: E402
from simulator.npu.isa import Op  # noqa: E402
from simulator.npu.level import NO_CONTENTION  # noqa: E402
from simulator.npu.machine import Machine  # noqa: E402
from simulator.npu.parts import Engine, Memory  # noqa: E402
from simulator.npu.program import Code  # noqa: E402
from simulator.timing import simulate  # noqa: E402

QUEUE_FULL = 32
_LONG = 1 << 14  # blocks of a long run
_SHORT, _SHORTS, _APART = 2, 1 << 11, 1 << 9  # blocks of a short one, how many, and blocks between them: more than any page


class Stream(NamedTuple):
    """Stream.  least, most: range of its share of the pins over parts of any kind, in percent.  published: by DRAM."""

    name: str
    least: int
    most: int
    published: dict[str, str]


STREAMS = (
    Stream("sequential read", 88, 96, {"ddr4": "97 (Ramulator, DDR3)", "hbm2": "98 (DRAMsim3, HBM1)"}),
    Stream("reads beside writes", 70, 85, {"ddr4": "66 (DRAMsim3)"}),
    Stream("random 64-byte reads", 15, 50, {"ddr4": "40 (AMD); 74 (DRAMsim3, full queues)", "lpddr5": "50 to 80 (AMD)"}),
)


def dram_machine(dram: str) -> Machine:
    """Machine with a core as fast as the pins of one channel: percent of the pins follow from the timings, for any clock."""
    pins = DRAMS[dram].channel_gbps
    base = array_machine(8, 8, "weight-stationary", True).model_dump()
    ddr = {"rate": "pins", "dram": dram, "bytes_per_cycle": pins, "latency_cycles": 0, "outstanding": 64}
    paths = [path | {"bytes_per_cycle": pins} if "DDR" in (path["source"], path["destination"]) else path for path in base["paths"]]
    return Machine.model_validate(base | {"name": f"pins-{dram}", "clock_hz": 10**9, "ddr": ddr, "paths": paths})


def _transfer(engine: Engine, length: int, count: int, stride: int) -> Code:
    reads = engine == Engine.MTE2
    ways, strides = ((Memory.DDR, Memory.L1), (stride, length)) if reads else ((Memory.UB, Memory.DDR), (length, stride))
    return record(Op.COPY, engine, *ways, (0, 0, -1), (length, count, *strides, 1, 0, 0))


def percent(machine: Machine, *transfers: Code) -> float:
    """Useful bytes per cycle, in percent of the pins."""
    timing = simulate(program(machine, list(transfers)), machine, NO_CONTENTION)
    return 100 * (timing.ddr_read_bytes + timing.ddr_write_bytes) / timing.cycles / float(machine.ddr.bytes_per_cycle)


def compare() -> list[dict[str, Any]]:
    """A row per DRAM and stream: percent of the pins here and as published, and for random reads with full queues."""
    rows = []
    for name, dram in DRAMS.items():
        machine = dram_machine(name)
        read, write = (_transfer(engine, _LONG, 1, _LONG) for engine in (Engine.MTE2, Engine.MTE3))
        shares = percent(machine, read), percent(machine, read, write), percent(machine, _transfer(Engine.MTE2, _SHORT, _SHORTS, _APART))
        # the rate of row activations with a full queue limits random reads; 64: bytes of a read
        full = 100 * float(dram.delivered * min(1, 64 / (dram.activate_ns(QUEUE_FULL) * machine.ddr.deliverable / dram.delivered)))
        for stream, share in zip(STREAMS, shares, strict=True):
            rows.append(
                {
                    "dram": name, "stream": stream.name, "percent": share, "least": stream.least, "most": stream.most,
                    "full_queues": full if stream is STREAMS[-1] else None, "published": stream.published.get(name),
                }
            )  # fmt: skip
    return rows


def main(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list instead of a table.")] = False) -> None:
    """Bandwidth of three streams on each DRAM, in percent of its pins."""
    rows = compare()
    if as_json:
        print(json.dumps(rows))
        return
    print("| DRAM | stream | percent of the pins | queues full | published |\n|---|---|---|---|---|")
    for r in rows:
        full = "" if r["full_queues"] is None else f"{r['full_queues']:.1f}"
        print(f"| {r['dram']} | {r['stream']} | {r['percent']:.1f} | {full} | {r['published'] or 'no figure found'} |")


if __name__ == "__main__":
    typer.run(main)
