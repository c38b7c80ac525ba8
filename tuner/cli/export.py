"""`tilefarm export`: the plans of a run, compiled again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator import onnx_names
from simulator.command import new_app
from tuner.cli.compile import show
from tuner.cli.options import CompiledOut, Json, RunFolder

app = new_app()


@app.command()
def export(
    run: RunFolder,
    out: CompiledOut,
    plan: Annotated[
        str | None, typer.Option(metavar="DIGEST", help="One plan of the run for all levels, by the first digits of its digest.")
    ] = None,
    plans: Annotated[Path | None, typer.Option(metavar="DIR", help="A folder with <level>.json instead of RUN/plans.")] = None,
    style: Annotated[onnx_names.Style | None, typer.Option(help="As in compile. (default: the run's)")] = None,
    as_json: Json = False,
) -> None:
    from compiler.build import check_out
    from tuner.cli.exporting import open_run, run_plans, write_compiled

    check_out(out)
    opened, saved = open_run(run)
    show(write_compiled(opened, run_plans(run, opened.machine, plan, plans), out, style or saved.style), as_json)
