"""Where a Ray of our own lies, and its token, for users who cannot write where Ray would."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from simulator.npu.errors import BadInputError
from tests.messages import naming
from tuner.platform import ray_files
from tuner.platform.ray_files import MOST_FOLDER, TOKEN, provide_token, ray_folder, token_path


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_TMPDIR", "XDG_RUNTIME_DIR", TOKEN, f"{TOKEN}_PATH"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_the_folder_that_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert ray_folder() == Path("/tmp/ray")
    short = Path("/dev/shm") / f"ray-test-{os.getpid()}"
    monkeypatch.setenv("RAY_TMPDIR", str(short))
    assert ray_folder() == short / "ray"
    (short / "ray").rmdir()
    short.rmdir()
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(ray_files, "MOST_FOLDER", 500)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "file"))
    with pytest.raises(BadInputError, match=naming("RAY_TMPDIR", "Not a directory")):
        ray_folder()
    monkeypatch.undo()
    monkeypatch.setenv("RAY_TMPDIR", "/tmp/" + "x" * MOST_FOLDER)
    with pytest.raises(BadInputError, match=f"longer than {MOST_FOLDER} characters"):
        ray_folder()


def test_a_folder_of_somebody_else_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(ray_files, "MOST_FOLDER", 500)
    assert ray_folder() == tmp_path / f"tilefarm-{os.getuid()}" / "ray"
    monkeypatch.setattr(ray_files, "write_error", lambda _: "Read-only file system")
    with pytest.raises(BadInputError, match="set RAY_TMPDIR to a short path"):
        ray_folder()


@pytest.mark.parametrize("home", ["read only", "none"])
def test_a_token_without_a_home(home: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    if home == "none":
        monkeypatch.setattr(Path, "home", lambda: 1 // 0)
        monkeypatch.setattr(ray_files, "token_path", lambda: None)
    else:
        monkeypatch.setenv("HOME", str(tmp_path / "file"))
        assert token_path() == tmp_path / "file/.ray/auth_token"
    assert provide_token()
    token = os.environ[TOKEN]
    assert len(token) == 64
    assert provide_token()
    assert os.environ[TOKEN] == token


def test_a_token_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not provide_token()
    assert TOKEN not in os.environ
