"""What an operating system refuses is a line and exit code 2, wherever it was met."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import tempfile
import threading
import time
import weakref

import pytest
import typer

from simulator.command import OS_ERROR_HINTS, new_app, run_command


def app_that_raises(error: BaseException) -> typer.Typer:
    app = new_app()

    @app.command()
    def main() -> None:
        raise error

    return app


@pytest.mark.parametrize("number", OS_ERROR_HINTS)
def test_a_disk_is_nobodys_bug(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(app_that_raises(OSError(number, os.strerror(number), "some/file")), "tool", []) == 2
    assert capsys.readouterr().err == f"tool: some/file: {OS_ERROR_HINTS[number]}\n"


def test_no_temporary_folder(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    with pytest.raises(FileNotFoundError) as found:
        tempfile.gettempdir()
    assert run_command(app_that_raises(found.value), "tool", []) == 2
    assert "set TMPDIR to a folder that can be written" in capsys.readouterr().err


def test_others_are_bugs() -> None:
    assert run_command(app_that_raises(OSError(errno.EBADF, "bad")), "tool", [], bug=str) == 70


def test_the_handler_of_a_caller_stays(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        app = new_app()

        @app.command()
        def main() -> None:
            os.kill(os.getpid(), signal.SIGTERM)

        assert run_command(app, "tool", []) == 143
        assert capsys.readouterr().err == "tool: terminated\n"
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy computer"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_a_callback_is_not_lost(
    number: signal.Signals, code: int, busy: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """busy: the hook for dropped exceptions goes on after its thread has begun."""
    app, start = new_app(), threading.Thread.start

    def start_slowly(thread: threading.Thread) -> None:
        start(thread)
        time.sleep(0.2)

    if busy:
        monkeypatch.setattr(threading.Thread, "start", start_slowly)

    def interrupt(_: object) -> None:
        os.kill(os.getpid(), number)
        time.sleep(0.1)  # ended by the interrupt, which Python drops here

    @app.command()
    def main() -> None:
        target = new_app()
        reference = weakref.ref(target, interrupt)
        del target
        gc.collect()
        assert reference() is None
        time.sleep(30)

    hook = sys.unraisablehook
    begin = time.monotonic()
    assert run_command(app, "tool", []) == code
    assert time.monotonic() - begin < 20
    assert "Exception ignored" not in capsys.readouterr().err
    assert sys.unraisablehook is hook
