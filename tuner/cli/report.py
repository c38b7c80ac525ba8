"""Command `tilefarm report`: write a run, a study or a sweep as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.command import new_app
from simulator.npu.errors import BadInputError
from simulator.terminal import print_line
from tuner.cli.group import FILE, READ
from tuner.cli.options import Json
from tuner.cli.text import print_json

if TYPE_CHECKING:
    from tuner.platform.files import AnyPath

app = new_app()


@app.command()
def report(
    folder: Annotated[str, READ, typer.Argument(metavar="DIR", help="The folder of a run, a study or a sweep, or its URL.")],
    out: Annotated[Path | None, FILE, typer.Option(metavar="F.html", help="Where to write the page. (default: DIR/report.html)")] = None,
    as_json: Json = False,
) -> None:
    from simulator.npu.files import atomic_write
    from simulator.outputs import check_out
    from tuner.platform.local_files import LocalPath
    from tuner.platform.remote_files import place

    path = place(folder)
    if out is None:
        if not isinstance(path, LocalPath):
            raise BadInputError(f"{path}: only read from there; say with --out where the page goes")
        out = path / "report.html"
    text = _page(path)
    check_out(out)
    atomic_write(out, [text.encode()])
    size = out.stat().st_size
    if as_json:
        print_json({"report": str(out), "bytes": size})
    else:
        print_line(f"{out}: {size:,} bytes, opens in any browser, offline")


def _page(folder: AnyPath) -> str:
    from tuner.platform.local_files import LocalPath
    from tuner.runs.list_runs import kind_of

    kind = kind_of(folder)
    if kind == "study":
        from tuner.report.study_page import study_page

        if not isinstance(folder, LocalPath):
            raise BadInputError(f"{folder}: a study; its page is made where its folder is")
        return study_page(folder)
    if kind == "sweep":
        from tuner.report.sweep_page import sweep_page

        return sweep_page(folder)
    from tuner.report.run_page import run_page
    from tuner.report.view import open_view

    return run_page(open_view(folder))
