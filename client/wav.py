"""Writing audio as it arrives: a WAV file that is valid after every chunk, or raw PCM."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from client.chunk import as_int16

HEADER_BYTES = 44
# What a header says when the length cannot be known: readers of pipes take it as "until the end".
UNKNOWN_BYTES = 0xFFFFFFFF


def wav_header(sample_rate: int, data_bytes: int, channels: int = 1) -> bytes:
    """44 bytes: RIFF, a ``fmt`` chunk for 16-bit PCM, and the head of ``data`` (Microsoft RIFF MCI, 1991)."""
    riff_bytes = min(HEADER_BYTES - 8 + data_bytes, UNKNOWN_BYTES)
    step = 2 * channels
    fmt = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, channels, sample_rate, step * sample_rate, step, 16)
    data = struct.pack("<4sI", b"data", min(data_bytes, UNKNOWN_BYTES))
    return struct.pack("<4sI4s", b"RIFF", riff_bytes, b"WAVE") + fmt + data


class WavWriter:
    """16-bit WAV, mono unless told. The header is corrected after every chunk, so the file is whole whenever writing
    stops.

    A file that cannot seek (a named pipe) keeps a header of unknown length, which players accept.
    """

    def __init__(self, path: str | Path, sample_rate: int, channels: int = 1) -> None:
        if sample_rate <= 0 or channels <= 0:
            raise ValueError(f"sample_rate is {sample_rate} and channels {channels}; they must be above 0")
        self.sample_rate, self.channels = sample_rate, channels
        self.samples = 0  # of all channels together
        self._file = open(path, "wb")  # noqa: SIM115 - closed by close()
        self._seekable = self._file.seekable()
        self._file.write(wav_header(sample_rate, 0 if self._seekable else UNKNOWN_BYTES, channels))
        self._file.flush()

    def write(self, audio: np.ndarray) -> None:
        """Append ``audio`` [n], int16 or float in -1…1, the channels in turns."""
        data = as_int16(audio).tobytes()
        self._file.write(data)
        self.samples += len(data) // 2
        if self._seekable:
            self._file.seek(0)
            self._file.write(wav_header(self.sample_rate, 2 * self.samples, self.channels))
            self._file.seek(0, 2)
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> WavWriter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class RawWriter:
    """Raw little-endian 16-bit PCM into an open binary file, pushed out after every chunk."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, audio: np.ndarray) -> None:
        """Append ``audio`` [n], int16 or float in -1…1. Raises BrokenPipeError when the reader has gone."""
        self._file.write(as_int16(audio).tobytes())
        self._file.flush()

    def close(self) -> None:
        """The file belongs to the caller and stays open."""
