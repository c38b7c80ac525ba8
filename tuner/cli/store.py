"""Commands `tilefarm store ls|gc`: the measurements that runs share (`--store`)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.command import new_app
from simulator.terminal import print_line, say
from tuner.cli.options import Json
from tuner.cli.text import print_json, print_table

if TYPE_CHECKING:
    from tuner.store.pack_store import Entry

app = new_app(no_args_is_help=True)

Url = Annotated[str, typer.Argument(metavar="URL", help="The store: a folder, or its URL.")]


@app.command()
def ls(url: Url, as_json: Json = False) -> None:
    """Contents of a store: runs, machine and tasks of each pack, and packs that no run reads any more."""
    from tuner.platform.remote_files import store_place
    from tuner.store.pack_store import entries

    root = store_place(url)
    packs = list(entries(root))  # damaged packs too: their state says so
    if as_json:
        print_json(
            [
                {
                    "file": entry.name,
                    "state": entry.state,
                    "bytes": entry.size_bytes,
                    "tasks": entry.tasks,
                    "machine": entry.pack and entry.pack.conditions.machine,
                    "simulator": entry.pack and entry.pack.conditions.simulator,
                    "runner": entry.pack and entry.pack.conditions.runner,
                    "whose": entry.pack and dict(entry.pack.whose),
                    "why": entry.why or None,
                }
                for entry in packs
            ]
        )
        return
    if packs:
        print_table(("<file", "<state", "bytes", "tasks", "<simulator", "<runner", "<whose"), [_row(entry) for entry in packs])
    states = Counter(entry.state for entry in packs)
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    tasks = sum(entry.tasks or 0 for entry in packs if entry.state == "used")
    print_line(
        f"{root}: {tasks:,} tasks in packs that are used: {states['used']}" + (f" ({counts})" if states.total() > states["used"] else "")
    )


def _row(entry: Entry) -> tuple[object, ...]:
    from tuner.store.pack_store import whose_line

    if (pack := entry.pack) is None:
        return entry.name, entry.state, entry.size_bytes, None, None, None, entry.why
    conditions = pack.conditions
    return entry.name, entry.state, entry.size_bytes, entry.tasks, conditions.simulator, conditions.runner, whose_line(pack.whose)


@app.command()
def gc(url: Url) -> None:
    """Delete unused data: damaged and dropped packs, packs of other simulators, and files left half-written for a day.

    Packs below 1 MiB are merged into larger ones.  No other command deletes; active runs continue.
    """
    from tuner.platform.real import REAL
    from tuner.platform.remote_files import store_place
    from tuner.store.pack_store import collect

    root = store_place(url)
    freed = collect(root, REAL.clock.epoch_us(), say)
    print_line(f"{root}: {freed:,} bytes freed")
