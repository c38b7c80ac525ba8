"""What an operating system refuses is a line and exit code 2, wherever it was met."""

from __future__ import annotations

import errno
import os
import signal
import tempfile

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
