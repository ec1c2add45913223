"""Locks on files, by which processes tell others that they are at work."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import IO, Any

fcntl: Any = None
with suppress(ImportError):  # Windows has no such locks
    import fcntl

_IDLE = 86_400
"""Seconds without a change after which a file counts as left, where files cannot be locked."""


def hold(file: IO[bytes] | int) -> None:
    """Tell other processes that this one is at work on an open file, until it is closed; nothing where it cannot be locked."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)


def is_free(file: IO[bytes]) -> bool:
    """Whether no process is at work on a file; none can begin to until it is closed. Several may ask at once."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass
        else:
            return True
    return time.time() - os.fstat(file.fileno()).st_mtime > _IDLE
