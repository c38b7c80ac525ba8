"""`report`: a run, a study or a sweep as one HTML page."""

from __future__ import annotations

from pathlib import Path

from compiler.build import check_out
from simulator.npu.errors import BadInputError
from simulator.npu.files import atomic_write
from simulator.terminal import print_line
from tuner.commands.text import print_json
from tuner.folder.place import Folder, Place
from tuner.folder.runs import kind_of


def report(folder: Folder, out: Path | None, as_json: bool) -> None:
    """`tilefarm report`: writes report.html into the folder unless `out` is given."""
    if out is None:
        if isinstance(folder, Place):
            raise BadInputError(f"{folder}: only read from there; say with --out where the page goes")
        out = folder / "report.html"
    text = _page(folder)
    check_out(out)
    atomic_write(out, [text.encode()])
    size = out.stat().st_size
    if as_json:
        print_json({"report": str(out), "bytes": size})
    else:
        print_line(f"{out}: {size:,} bytes, opens in any browser, offline")


def _page(folder: Folder) -> str:
    kind = kind_of(folder)
    if kind == "study":
        from tuner.report.study_page import study_page

        if isinstance(folder, Place):
            raise BadInputError(f"{folder}: a study; its page is made where its folder is")
        return study_page(folder)
    if kind == "sweep":
        from tuner.report.sweep_page import sweep_page

        return sweep_page(folder)
    from tuner.report.run_page import run_page
    from tuner.report.view import open_view

    return run_page(open_view(folder))
