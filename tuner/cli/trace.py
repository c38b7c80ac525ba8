"""Command `tilefarm trace`: write a variant's instructions, or the inferences under a load, for a trace viewer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.command import new_app
from simulator.npu.errors import BadInputError
from simulator.terminal import print_line
from tuner.cli.group import FILE
from tuner.cli.options import Compiled, LoadOptions

if TYPE_CHECKING:
    from simulator.trace_events import Event, Trace

app = new_app()


@app.command()
def trace(
    compiled: Compiled,
    out: Annotated[
        Path, FILE, typer.Option(metavar="T.pftrace|T.json[.gz]", help="The trace: Perfetto's protobuf or Chrome's JSON, by its name.")
    ],
    level: Annotated[
        str | None, typer.Option(metavar="L", help="Contention level; the first one unless given. With --controller static: what runs.")
    ] = None,
    *,
    load: LoadOptions,
) -> None:
    contended = load.given()

    if not out.name.removesuffix(".gz").endswith((".pftrace", ".json")):
        raise BadInputError(f"--out {out}: a trace is called .pftrace or .json, with .gz behind it to have it compressed")
    if contended:
        from tuner.cli.contention import trace_inferences

        contents, description = trace_inferences(compiled, load, level)
    else:
        contents, description = _trace_variant(compiled, level)
    events = _write(out, contents)
    print_line(f"{out}: {description}, {events:,} events, {out.stat().st_size:,} bytes")
    print_line(f"open it in https://ui.perfetto.dev{'' if '.pftrace' in out.suffixes else ' or chrome://tracing'}")


def _trace_variant(path: Path, level: str | None) -> tuple[Trace, str]:
    """The trace of a variant, and a line that describes it."""
    from simulator.bundle.read import read_model
    from simulator.trace import trace_run

    compiled = read_model(path)
    level = level if level is not None else compiled.levels[0]
    timeline = compiled.timeline(level)
    compiled.check_cycles(level, timeline.cycles)
    header = {"file": path.name, "level": level, "plan": compiled.plan(level), "model": compiled.model_digest}
    variant = trace_run(timeline, [operator.name for operator in compiled.operators], header)
    return variant, f"level {level}, {timeline.cycles:,} cycles, {len(timeline.code):,} instructions"


def _write(out: Path, contents: Trace) -> int:
    """Write a trace in the format that its name says; returns the number of events."""
    from simulator.npu.files import atomic_write
    from simulator.trace_events import count_events
    from simulator.trace_file import trace_chunks

    events = 0

    def counted() -> Iterator[Event]:
        nonlocal events
        for event in contents.events:
            events += count_events(event)
            yield event

    atomic_write(out, trace_chunks(contents._replace(events=counted()), out.name))
    return events
