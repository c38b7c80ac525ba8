"""Command `tilefarm trace`: write a variant's instructions, or the inferences under a load, for a trace viewer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from simulator.command import new_app
from simulator.npu.errors import BadInputError
from simulator.terminal import print_line
from tuner.cli.group import FILE
from tuner.cli.options import Compiled, LoadOptions

app = new_app()


@app.command()
def trace(
    compiled: Compiled,
    out: Annotated[Path, FILE, typer.Option(metavar="T.json[.gz]", help="The trace, for ui.perfetto.dev or chrome://tracing.")],
    level: Annotated[
        str | None, typer.Option(metavar="L", help="Contention level; the first one unless given. With --controller static: what runs.")
    ] = None,
    *,
    load: LoadOptions,
) -> None:
    contended = load.given()

    if not out.name.endswith((".json", ".json.gz")):
        raise BadInputError(f"--out {out}: a trace is called .json, or .json.gz to have it compressed")
    if contended:
        from tuner.cli.contention import served_events

        pieces, description = served_events(compiled, load, level)
    else:
        pieces, description = _instructions(compiled, level)
    events = _write(out, pieces)
    print_line(f"{out}: {description}, {events:,} events, {out.stat().st_size:,} bytes")
    print_line("open it in https://ui.perfetto.dev or chrome://tracing")


def _instructions(path: Path, level: str | None) -> tuple[Iterable[bytes], str]:
    """Events of a variant, and a line that describes them."""
    from simulator.bundle.read import read_model
    from simulator.trace import chrome_trace

    compiled = read_model(path)
    level = level if level is not None else compiled.levels[0]
    timeline = compiled.timeline(level)
    compiled.check_cycles(level, timeline.cycles)
    header = {"file": path.name, "level": level, "plan": compiled.plan(level), "model": compiled.model_digest}
    events = chrome_trace(timeline, [operator.name for operator in compiled.operators], header)
    return events, f"level {level}, {timeline.cycles:,} cycles, {len(timeline.code):,} instructions"


def _write(out: Path, pieces: Iterable[bytes]) -> int:
    """Write events, compressed if the name ends in .gz; returns their count: each is a line, after a comma except the first."""
    from simulator.npu.files import atomic_write
    from simulator.trace_events import gzipped

    events = 1

    def chunks() -> Iterable[bytes]:
        nonlocal events
        for piece in pieces:
            events += piece.count(b",\n{")
            yield piece

    atomic_write(out, gzipped(chunks()) if out.name.endswith(".gz") else chunks())
    return events
