"""Files of this computer, and what was asked of them."""

from __future__ import annotations

from typing import NamedTuple

from tuner.platform.local_files import LocalPath


class Call(NamedTuple):
    what: str
    path: str


class Recording(LocalPath):
    """calls: that change files or make them durable, in order; a test sets it anew (`monkeypatch.setattr(Recording, "calls", [])`)."""

    calls: list[Call]

    def put(self, chunks, at=None):
        super().put(chunks, at)
        self.calls.append(Call("put", str(self)))

    def mkdir(self, mode=0o777, parents=False, exist_ok=False):
        new = not self.exists()
        super().mkdir(mode, parents, exist_ok)
        if new:
            self.calls.append(Call("mkdir", str(self)))

    def fsync(self):
        super().fsync()
        self.calls.append(Call("fsync", str(self)))

    def replace(self, to):
        self.calls.append(Call("replace", str(self)))
        self.calls.append(Call("name", str(to)))
        return super().replace(to)


def forgotten(calls: list[Call]) -> set[str]:
    """What a crash now would take: names and bytes that no fsync followed, but for those that are hidden."""
    names, data = set[str](), set[str]()
    for what, path in calls:
        if what == "put":
            data.add(path)
            names.add(path)
        elif what in ("mkdir", "name"):
            names.add(path)
        elif what == "replace":
            assert path not in data, f"{path}: renamed before its bytes were durable"
            names.discard(path)
        else:
            data.discard(path)
            names = {name for name in names if name.rpartition("/")[0] != path}
    return {path for path in names | data if "/." not in path}
