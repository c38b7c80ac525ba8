"""Files of this computer."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket

from simulator.npu.files import DurablePath
from tuner.platform.files import Lock, LockedError


class LocalPath(DurablePath):
    """A path that is a `tuner.platform.files.AnyPath`, too: it passes wherever a Path is wanted."""

    def mapped(self) -> memoryview:
        """Not read: a file may be as large as it likes before anybody looks at it."""
        with self.open("rb") as file:
            if not file.seek(0, os.SEEK_END):
                return memoryview(b"")  # nothing can be mapped of it
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def version(self) -> tuple[int, int]:
        """Nanoseconds of its last change, and bytes."""
        about = self.stat()
        return about.st_mtime_ns, about.st_size

    def lock(self) -> Lock:
        """Also ends with the process, however that ends."""
        lock = self.open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            who = lock.read().strip() or "another driver"
            lock.close()
            raise LockedError(who) from None
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}")
        lock.flush()
        return lock

    def is_locked(self) -> bool:
        """It is tried shared, so that two who look do not see each other; a file that cannot be opened is held by nobody."""
        try:
            with self.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False
