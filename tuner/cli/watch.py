"""Command `tilefarm watch`: serve the page of an active run to a browser on this computer."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from simulator.command import new_app
from simulator.npu.errors import BadInputError
from simulator.terminal import print_line
from tuner.cli.options import Json, RunPlace
from tuner.cli.text import print_json

app = new_app()
STATUS = "/status.json"


@app.command()
def watch(
    folder: RunPlace,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the page, on this computer alone; 0: any free one.")] = 0,
    as_json: Json = False,
) -> None:
    """`/status.json` beside the page has what `tilefarm status --json` prints; --json prints both addresses."""
    from tuner.platform.remote_files import place
    from tuner.report.live_page import live_page
    from tuner.report.served_page import LOOPBACK, ServedPage
    from tuner.report.standing_rows import progress_json
    from tuner.runs.list_runs import open_run

    path = place(folder)
    live_page(path)  # faults of the folder are raised here, not in the browser
    try:
        served = ServedPage(port, lambda: live_page(path), {STATUS: lambda: progress_json(open_run(path))})
    except OSError as error:
        raise BadInputError(f"--port {port}: {error.strerror}; 0 takes any free one") from None
    address = f"http://{LOOPBACK}:{served.server_port}"
    if as_json:
        print_json({"page": f"{address}/", "status": f"{address}{STATUS}"})
    else:
        print_line(f"{address}/ (Ctrl-C ends it)")
    with served, suppress(KeyboardInterrupt):
        served.serve_forever()
