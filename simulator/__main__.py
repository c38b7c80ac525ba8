"""`python -m simulator FILE.onnx`: cycles of a compiled file at every level, and its outputs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from simulator.command import new_app, run_command
from simulator.terminal import print_line

app = new_app()


@app.command()
def main(
    file: Annotated[Path, typer.Argument(metavar="FILE.onnx", help="A compiled ONNX file.")],
    level: Annotated[
        str | None, typer.Option(metavar="L", help="Contention level; all are timed, the first one runs, unless given.")
    ] = None,
    given: Annotated[Path | None, typer.Option("--input", metavar="X.npz", help="Run it too, with these arrays by input name.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="Y.npz", help="Write the outputs of that run_command.")] = None,
) -> None:
    """Time a compiled file on the simulated NPU; with --input, run it and print its outputs."""
    import numpy as np

    from simulator.compiled import Compiled
    from simulator.feeds import load_feeds, npz_bytes
    from simulator.npu.errors import BadInputError
    from simulator.npu.files import atomic_write
    from simulator.outputs import check_out
    from simulator.session import InferenceSession
    from simulator.subgraph_sequence import simulate_all

    if out is not None and given is None:
        raise BadInputError(f"--out {out}: goes with --input")
    if out is not None and given is not None:
        check_out(out, [file, given])
    # time every level, or the requested one
    session = InferenceSession(file)
    compiled: Compiled = session.compiled
    for name in compiled.levels if level is None else (compiled.variants(level)[0].level,):
        cycles = simulate_all(compiled.prepared(name), compiled.machine, compiled.level(name)).cycles
        pace = compiled.pace(cycles)
        per_frame = f"; {compiled.frames} frames, {pace.cycles_per_frame:,.0f} cycles each" if compiled.frames > 1 else ""
        print_line(f"{name}: {cycles:,} cycles, {pace.latency_us:,.1f} us{per_frame}, {pace.frames_per_s:,.1f} frames/s")
    if given is None:
        return
    names = [port.name for port in session.get_outputs()]
    outputs = dict(zip(names, session.run(names, load_feeds(given), level=level), strict=True))
    for name, value in outputs.items():
        print_line(f"{name}: {value.dtype} {list(value.shape)}, mean {np.mean(value, dtype=np.float64):.6g}")
    if out is not None:
        atomic_write(out, [npz_bytes(outputs)])


if __name__ == "__main__":
    sys.exit(run_command(app, "python -m simulator", sys.argv[1:]))
