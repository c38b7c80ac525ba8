"""Checkpoint of a run: its state as JSON, and the findings behind it.  Written atomically, and never ahead of the log.

Findings only grow, so they are in a separate file, to which every checkpoint appends the new ones; the state has the counted length of
the file, and its digest.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from simulator.npu.errors import BadInputError
from simulator.npu.files import write_atomically
from tuner.log.digests import canonical_json, text_digest
from tuner.log.writer import RunLog
from tuner.platform.files import AnyPath
from tuner.runs.folder import read_json

VERSION = 19
FILE = "state.json"
FINDINGS = "findings.bin"
_LENGTH = struct.Struct("<Q")


class Checkpoint:
    """Checkpoint of one run.  folder: `RUN/checkpoint`."""

    def __init__(self, folder: AnyPath, log: RunLog) -> None:
        self.folder, self.log = folder, log
        self._size, self._digest = 0, hashlib.sha256()

    def save(self, state: Mapping[str, Any], findings: Sequence[bytes]) -> None:
        """Publish the log, then write `state`: any JSON with `numbers`, the committed task numbers (`Ranges`).

        findings: the new ones."""
        self.log.flush()
        data, findings_file = b"".join(_LENGTH.pack(len(finding)) + finding for finding in findings), self.folder / FINDINGS
        try:
            findings_file.put([data], self._size)  # overwrites uncounted bytes of a killed session
            findings_file.fsync()
            if not self._size:  # the name too: a crash may keep the newer name of the state and lose this one
                self.folder.fsync()
        except OSError as error:
            raise BadInputError(f"{findings_file}: cannot be written: {error.strerror or error}") from None
        self._size += len(data)
        self._digest.update(data)
        text = canonical_json(state)
        findings_head = {"bytes": self._size, "digest": self._digest.hexdigest()}
        head = {
            "version": VERSION,
            "digest": text_digest(text),
            "run": self.log.origin.run,
            "findings": findings_head,
        }
        write_atomically(self.folder / FILE, [f'{{"head":{canonical_json(head)},"state":{text}}}\n'.encode()])

    def load(self) -> tuple[dict[str, Any], list[bytes]] | None:
        """Load the last state and all findings; None without a checkpoint; `BadInputError` for another log's, or a damaged one."""
        path = self.folder / FILE
        if not path.exists():
            return None
        raw = read_json(path)
        try:
            head, state = raw["head"], raw["state"]
            version, run, expected = head["version"], head["run"], head["digest"]
        except (TypeError, KeyError):
            raise BadInputError(f"{path}: not a checkpoint") from None
        if version != VERSION:
            raise BadInputError(f"{path}: version {version!r}; this program reads {VERSION}")
        if not isinstance(state, dict) or text_digest(canonical_json(state)) != expected:
            raise BadInputError(f"{path}: damaged (digest differs); remove it to start from the log alone")
        if run != self.log.origin.run:
            raise BadInputError(f"{path}: made for run {run}, not for {self.log.origin.run}; remove it to start from the log alone")
        lost_tasks, missing = self.log.lost.get("tasks", 0), self.log.numbers.missing(state["numbers"])
        if lost_tasks or missing:
            # the search state includes the lost tasks, but the log, which later steps read, does not
            counts = " and ".join(
                f"{count} {noun}" for count, noun in ((missing, "measured tasks"), (lost_tasks, "rows of tasks/")) if count
            )
            raise BadInputError(
                f"{path}: counts what is not there, since {counts} were lost; remove it, and --resume measures from the start, "
                f"and logs what is missing"
            )
        return state, self._findings(int(head["findings"]["bytes"]), str(head["findings"]["digest"]))

    def _findings(self, size: int, digest: str) -> list[bytes]:
        path = self.folder / FINDINGS
        try:
            data = path.read_bytes()[:size]
        except OSError as error:
            raise BadInputError(f"{path}: cannot be read: {error.strerror or error}") from None
        self._size, self._digest = size, hashlib.sha256(data)
        if len(data) != size or self._digest.hexdigest() != digest:
            raise BadInputError(f"{path}: damaged (digest differs); remove {FILE} to start from the log alone")
        findings, offset = [], 0
        while offset < size:
            (length,) = _LENGTH.unpack_from(data, offset)
            findings.append(data[offset + _LENGTH.size : offset + _LENGTH.size + length])
            offset += _LENGTH.size + length
        return findings
