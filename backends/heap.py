"""The C library's heap: whether memory that was freed goes back to the system at once."""

from __future__ import annotations

import contextlib
import ctypes

#: Of mallopt(3) of glibc.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MMAP_BYTES, _TRIM_BYTES = 16 << 20, 64 << 20


def keep_freed_memory() -> None:
    """Let this process use freed blocks of up to 16 MiB again, and keep up to 64 MiB free at the end of a heap.

    By default glibc maps blocks of 128 KiB and more anew and unmaps them when they are freed, and the kernel clears
    every page at its first touch. Half of the time of a log-mel spectrogram went there, some of it under Python's lock.
    Does nothing with another C library.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_TRIM_THRESHOLD, _TRIM_BYTES)
