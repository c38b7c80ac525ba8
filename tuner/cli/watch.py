"""Command `tilefarm watch`: serve the page of an active run to a browser on this computer."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from simulator.command import new_app
from simulator.npu.errors import BadInputError
from simulator.terminal import print_line
from tuner.cli.options import RunPlace

app = new_app()


@app.command()
def watch(
    folder: RunPlace,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the page, on this computer alone; 0: any free one.")] = 0,
) -> None:
    from tuner.platform.remote_files import place
    from tuner.report.live_page import live_page
    from tuner.report.served_page import LOOPBACK, ServedPage

    path = place(folder)
    live_page(path)  # faults of the folder are raised here, not in the browser
    try:
        served = ServedPage(port, lambda: live_page(path))
    except OSError as error:
        raise BadInputError(f"--port {port}: {error.strerror}; 0 takes any free one") from None
    print_line(f"http://{LOOPBACK}:{served.server_port}/ (Ctrl-C ends it)")
    with served, suppress(KeyboardInterrupt):
        served.serve_forever()
