"""Rows for the tests of the prefix cache."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from backends.rows import prompt_row_keys

Rows = NDArray[np.int32]
ASSISTANT, USER = 151656, 151654
WIDTH, PAGE = 13, 4


def text_rows(count: int, seed: int = 0, width: int = WIDTH) -> Rows:
    rows = np.full((count, width), 1024, dtype=np.int32)
    rows[:, 0] = np.random.default_rng(seed).integers(0, 150_000, count)
    return rows


def voice_rows(count: int, seed: int) -> Rows:
    rows = np.random.default_rng(seed).integers(0, 1024, (count, WIDTH)).astype(np.int32)
    rows[:, 0] = USER
    return rows


def audio_rows(count: int, seed: int) -> Rows:
    rows = voice_rows(count, seed)
    rows[:, 0] = ASSISTANT
    return rows


def exact(rows: Rows) -> list[int]:
    return prompt_row_keys(rows, ASSISTANT)
