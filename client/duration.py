"""How long a recording is, from the head of its file. Only wav and flac say it there in a way that is cheap to read;
of other files soundfile, where it is installed, is asked."""

from __future__ import annotations

import io
import struct


def duration(data: bytes) -> float | None:
    """Seconds of audio in the bytes of a file; None when they cannot be known (an unknown format, a wav or flac of
    unknown length, no soundfile)."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return _wav(data)
    if data[:4] == b"fLaC":
        return _flac(data)
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: the package is there, the library behind it is not
        return None
    try:
        found = soundfile.info(io.BytesIO(data))
    except (RuntimeError, ValueError):  # soundfile's own errors are RuntimeErrors
        return None
    return found.frames / found.samplerate if found.frames > 0 and found.samplerate > 0 else None


def _wav(data: bytes) -> float | None:
    """The length of ``data`` over the byte rate of ``fmt`` (Microsoft RIFF MCI, 1991)."""
    at, rate = 12, 0
    while at + 8 <= len(data):
        name, size = data[at : at + 4], struct.unpack_from("<I", data, at + 4)[0]
        if name == b"fmt " and at + 24 <= len(data):
            rate = struct.unpack_from("<I", data, at + 16)[0]
        if name == b"data":
            # Where the writer did not know the length, the header says more than there is.
            return min(size, len(data) - at - 8) / rate if rate else None
        at += 8 + size + size % 2
    return None


def _flac(data: bytes) -> float | None:
    """20 bits of sample rate and 36 bits of samples in STREAMINFO, the first block (RFC 9639, section 8.2)."""
    if len(data) < 26:
        return None
    bits = int.from_bytes(data[18:26], "big")
    rate, samples = bits >> 44, bits & (2**36 - 1)
    return samples / rate if rate and samples else None
