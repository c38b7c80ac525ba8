"""Files of this computer."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket

from simulator.npu.files import DurablePath
from tuner.platform.files import Lock, LockedError


class LocalPath(DurablePath):
    """Local path that is also a `tuner.platform.files.AnyPath`; valid wherever a Path is."""

    def mapped(self) -> memoryview:
        """Map the bytes without reading: the file may be large."""
        with self.open("rb") as file:
            if not file.seek(0, os.SEEK_END):
                return memoryview(b"")  # an empty file cannot be mapped
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def version(self) -> tuple[int, int]:
        """Return nanoseconds of the last change, and bytes."""
        status = self.stat()
        return status.st_mtime_ns, status.st_size

    def lock(self) -> Lock:
        """Lock the file; the lock also ends with the process."""
        lock = self.open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "another driver"
            lock.close()
            raise LockedError(holder) from None
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}")
        lock.flush()
        return lock

    def is_locked(self) -> bool:
        """Whether a process holds the file, by a shared lock, so that two checks do not collide; a file that cannot be opened is not
        locked."""
        try:
            with self.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False
