"""The word error rate of the judge."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.judge import transcribe, word_error_rate, words


@pytest.mark.parametrize(
    ("said", "heard", "rate"),
    [
        ("The old bridge.", "the OLD bridge", 0.0),
        ("one two three four", "one too three four", 0.25),
        ("one two three four", "one three four", 0.25),
        ("one two", "one two three four", 1.0),
        ("one two", "", 1.0),
        ("", "", 0.0),
        ("", "you", math.inf),
        ("a b c", "c a b", 2 / 3),
    ],
)
def test_word_error_rate(said: str, heard: str, rate: float) -> None:
    assert word_error_rate(said, heard) == pytest.approx(rate)


def test_words() -> None:
    assert words("Don’t stop - it's 9:30, “now”!") == ["don't", "stop", "it's", "9", "30", "now"]


def test_nothing_is_heard_in_nothing() -> None:
    assert transcribe(np.zeros(0, np.int16), 24000) == ""
