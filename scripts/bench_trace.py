"""Size, CPU time and memory of a trace in each format, beside those of making its events alone.

    python scripts/bench_trace.py [FILE.onnx] [--level L] [--size N] [--out DIR]

Without a file: the vendor's product m = n = k = N on 24 cores of `ascend910b` (`scripts/vendor_gemm.py`).  Memory is the peak of the
process above what the simulated run itself holds, by Linux.  Files stay in DIR, if it is given.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.vendor_gemm import vendor_program  # noqa: E402
from simulator.compiled import read_compiled  # noqa: E402
from simulator.npu.files import atomic_write  # noqa: E402
from simulator.npu.level import NO_CONTENTION  # noqa: E402
from simulator.npu.machine_file import load_machine  # noqa: E402
from simulator.timeline import Timeline, timeline  # noqa: E402
from simulator.trace import trace_run  # noqa: E402
from simulator.trace_events import count_events  # noqa: E402
from simulator.trace_file import trace_chunks  # noqa: E402

FORMATS = "json", "json.gz", "pftrace", "pftrace.gz"


def bench(task: Callable[[], object]) -> tuple[float, int]:
    """CPU seconds of a task, and bytes of memory that it takes at most."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # memory of earlier tasks is given back
    Path("/proc/self/clear_refs").write_text("5")  # and the peak so far is forgotten
    before, start = _memory("VmRSS"), time.process_time()
    task()
    return time.process_time() - start, _memory("VmHWM") - before


def _memory(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:"))


def run_of(file: Path | None, level: str | None, size: int) -> tuple[Timeline, list[str]]:
    """A run and the names of its operators."""
    if file is None:
        machine = load_machine("ascend910b")
        return timeline(vendor_program(machine, size, size, size), machine, NO_CONTENTION), ["product"]
    compiled = read_compiled(file)
    return compiled.timeline(level or compiled.levels[0]), [operator.name for operator in compiled.operators]


def main(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE.onnx]", help="A compiled file.")] = None,
    level: Annotated[str | None, typer.Option(help="Level of the file; the first one unless given.")] = None,
    size: Annotated[int, typer.Option(help="m = n = k of the product; a multiple of 1536.")] = 3072,
    out: Annotated[Path | None, typer.Option(help="Where files stay.")] = None,
) -> None:
    """Size, time and memory of a trace in each format."""
    run, operators = run_of(file, level, size)
    events = 0

    def make() -> None:
        nonlocal events
        events = sum(map(count_events, trace_run(run, operators).events))

    def write(path: Path) -> None:
        atomic_write(path, trace_chunks(trace_run(run, operators), path.name))

    make()  # columns of the run that all formats read, and kernels
    seconds, memory = bench(make)
    print(f"{len(run.code):,} instructions, {events:,} events: made in {seconds:.1f} CPU s, {memory / 1e6:,.0f} MB")
    with tempfile.TemporaryDirectory() as folder:
        for name in FORMATS:
            path = (out or Path(folder)) / f"trace.{name}"
            seconds, memory = bench(partial(write, path))
            size_bytes = path.stat().st_size
            figures = f"{size_bytes / 1e6:8,.1f} MB {size_bytes / events:6.1f} B/event"
            print(f"{name:10} {figures} {seconds:6.1f} CPU s {memory / 1e6:7,.0f} MB memory")


if __name__ == "__main__":
    typer.run(main)
