"""Session folder and token of a local Ray, without importing Ray."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from simulator.npu.errors import BadInputError
from simulator.npu.own_folders import private_folder, write_error

MOST_FOLDER = 40  # sockets lie up to 64 characters deeper, and a socket's path has at most 107
TOKEN = "RAY_AUTH_TOKEN"


def ray_folder() -> Path:
    """Session folder of a local Ray: RAY_TMPDIR/ray, else the first usable of some.  Raises `BadInputError`."""
    if folder_name := os.environ.get("RAY_TMPDIR"):
        folder = Path(folder_name).absolute() / "ray"
        if reason := f"longer than {MOST_FOLDER} characters" if len(str(folder)) > MOST_FOLDER else write_error(folder):
            raise BadInputError(f"RAY_TMPDIR {folder_name}: Ray cannot use {folder}: {reason}; expected a short path that can be written")
        return folder
    common = Path("/tmp/ray")
    if os.access(common if common.exists() else common.parent, os.W_OK | os.X_OK):
        return common  # shared by all users, Ray's default
    for base in ("", "/dev/shm"):
        with suppress(BadInputError):
            folder = private_folder(base) / "ray"
            if len(str(folder)) <= MOST_FOLDER and not write_error(folder):
                return folder
    raise BadInputError(
        f"{common}: Ray cannot write there, nor below TMPDIR or /dev/shm; set RAY_TMPDIR to a short path that can be written"
    )


def provide_token() -> bool:
    """Put a token into the environment for Ray's processes, if a token file cannot be written; returns whether the environment has one."""
    path = token_path()
    if not os.environ.keys() & {TOKEN, f"{TOKEN}_PATH"} and (path is None or (not path.is_file() and write_error(path.parent))):
        os.environ[TOKEN] = secrets.token_hex(32)
    return TOKEN in os.environ


def token_path() -> Path | None:
    """Path of the token file; None for a user without a home."""
    try:
        return Path(os.environ.get(f"{TOKEN}_PATH") or Path.home() / ".ray" / "auth_token")
    except RuntimeError:
        return None
