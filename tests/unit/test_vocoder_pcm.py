"""Sample formats."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from backends.errors import Internal, InvalidArgument
from backends.vocoder.pcm import to_base64, to_format, to_s16


def test_s16_rounds_and_clips() -> None:
    pcm = np.array([0.0, 1.0, -1.0, 1.5, -7.0, np.inf, 0.4 / 32767, 0.6 / 32767, -0.6 / 32767], dtype=np.float32)
    assert to_s16(pcm).tolist() == [0, 32767, -32767, 32767, -32767, 32767, 0, 1, -1]


def test_not_a_number_is_a_fault() -> None:
    with pytest.raises(Internal, match="not a number"):
        to_s16(np.array([np.nan], dtype=np.float32))


@pytest.mark.parametrize("name", ["f32", "s16", "b64"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_no_format_hands_out_what_is_no_sound(name: str, bad: float) -> None:
    with pytest.raises(Internal, match="not a finite number"):
        to_format(np.array([0.1, bad], dtype=np.float32), name)


def test_base64_is_little_endian_pcm16() -> None:
    pcm = np.linspace(-1, 1, 7, dtype=np.float32)
    assert np.array_equal(np.frombuffer(base64.b64decode(to_base64(pcm)), dtype="<i2"), to_s16(pcm))


def test_formats() -> None:
    pcm = np.array([0.5, 2.0], dtype=np.float32)
    assert to_format(pcm, "f32").tolist() == [0.5, 2.0] and to_format(pcm, "f32").dtype == np.float32
    assert to_format(pcm, "s16").dtype == np.int16
    assert to_format(pcm, "b64").tolist() == [to_base64(pcm)]
    assert [len(to_format(pcm[:0], name)) for name in ("f32", "s16", "b64")] == [0, 0, 1]
    with pytest.raises(InvalidArgument, match="'mp3'"):
        to_format(pcm, "mp3")
