"""`tilefarm export`: the plans of a run, compiled again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.command import new_app
from simulator.npu.errors import BadInputError
from tuner import request
from tuner.cli.compile import show
from tuner.cli.options import CompiledOut, Json, RunFolder, Variants

app = new_app()


@app.command()
def export(
    run: RunFolder,
    out: CompiledOut,
    plan: Annotated[
        str | None, typer.Option(metavar="DIGEST", help="One plan of the run for all levels, by the first digits of its digest.")
    ] = None,
    plans: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder with <level>.json instead of RUN/plans; robust: RUN/plans/robust.json alone."),
    ] = None,
    variants: Variants = None,
    style: Annotated[request.Style | None, typer.Option(help="As in compile. (default: the run's)")] = None,
    as_json: Json = False,
) -> None:
    from compiler.build import check_out
    from tuner.cli.exporting import few_plans, open_run, run_plans, write_compiled

    check_out(out)
    if variants is not None and (plan is not None or plans is not None):
        raise BadInputError(f"--variants {variants}: chooses the plans, so it goes with neither --plan nor --plans")
    opened, saved = open_run(run)
    chosen = run_plans(run, opened.machine, plan, plans) if variants is None else few_plans(run, opened, variants)
    show(write_compiled(opened, chosen, out, style or saved.style), as_json)
