"""`report`: a run as one HTML page."""

from __future__ import annotations

from pathlib import Path

from simulator.npu.files import atomic_write
from tuner.build import check_out
from tuner.commands.text import print_json
from tuner.report.page import page
from tuner.report.view import open_view


def report(run: Path, out: Path | None, as_json: bool) -> None:
    """`tilefarm report`: writes RUN/report.html unless `out` is given."""
    out = run / "report.html" if out is None else out
    view = open_view(run)
    check_out(out)
    atomic_write(out, [page(view).encode()])
    size = out.stat().st_size
    if as_json:
        print_json({"report": str(out), "bytes": size})
    else:
        print(f"{out}: {size:,} bytes, opens in any browser, offline")
