"""Audio to files: the WAV is whole after every chunk."""

from __future__ import annotations

import io
import os
import threading
import wave
from pathlib import Path

import numpy as np
import pytest

from client.chunk import AudioChunk, as_int16
from client.wav import HEADER_BYTES, RawWriter, WavWriter, wav_header


def read(path: Path) -> tuple[tuple[int, int, int], np.ndarray]:
    with wave.open(str(path)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        return (file.getnchannels(), file.getsampwidth(), file.getframerate()), samples


def test_whole_after_every_chunk(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    writer = WavWriter(path, 24000)
    assert len(read(path)[1]) == 0
    for end in (3, 5, 5, 9):
        writer.write(np.arange(writer.samples, end, dtype=np.int16))
        params, samples = read(path)  # the writer is still open: as if it had been killed here
        assert params == (1, 2, 24000)
        assert samples.tolist() == list(range(end))
    writer.close()
    assert path.stat().st_size == HEADER_BYTES + 18


def test_stereo_lies_in_turns(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    with WavWriter(path, 48000, channels=2) as writer:
        writer.write(np.array([1, -1, 2, -2], np.int16))
        writer.write(np.array([3, -3], np.int16))
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getframerate(), file.getnframes()) == (2, 48000, 3)
        assert np.frombuffer(file.readframes(3), "<i2").reshape(-1, 2).tolist() == [[1, -1], [2, -2], [3, -3]]
    chunk = AudioChunk(np.zeros(9600, np.int16), 48000, 0, False, "", 0.0, channels=2)
    assert (chunk.samples, chunk.seconds) == (4800, 0.1)


def test_an_older_longer_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"x" * 1000)
    with WavWriter(path, 8000) as writer:
        writer.write(np.array([1], np.int16))
    assert read(path)[1].tolist() == [1]
    assert path.stat().st_size == HEADER_BYTES + 2


def test_float_becomes_int16() -> None:
    audio = np.array([0.0, 1.0, -1.0, 2.0, -2.0, np.nan, np.inf, 0.5 / 32767, 1.6 / 32767], np.float32)
    assert as_int16(audio).tolist() == [0, 32767, -32767, 32767, -32767, 0, 32767, 0, 2]
    assert as_int16(np.array([-32768], np.int16)).tolist() == [-32768]
    with pytest.raises(TypeError, match="int64"):
        as_int16(np.array([1]))


def test_a_pipe_gets_a_header_of_unknown_length(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    with WavWriter(pipe, 24000) as writer:
        writer.write(np.array([7], np.int16))
        writer.write(np.array([8], np.int16))
    reader.join(10)
    assert got == [wav_header(24000, 0xFFFFFFFF) + b"\x07\0\x08\0"]


def test_header_of_more_than_4_gib_does_not_overflow() -> None:
    assert len(wav_header(24000, 2**33)) == HEADER_BYTES


def test_raw_writer_writes_samples_alone_and_leaves_the_file_open() -> None:
    file = io.BytesIO()
    writer = RawWriter(file)
    writer.write(np.array([1, -1], np.int16))
    writer.write(np.array([1.0], np.float32))
    writer.close()
    assert file.getvalue() == b"\x01\0\xff\xff\xff\x7f"


def test_a_sample_rate_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sample_rate is 0"):
        WavWriter(tmp_path / "a.wav", 0)
    assert not (tmp_path / "a.wav").exists()
