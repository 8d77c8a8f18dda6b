"""What differs between speech-to-text architectures on their way through the stages: features, prompt, answer.

No weights: ``asr_prompt`` makes features, ``asr_decoder`` prompts and text. The encoders are in
:mod:`backends.asr.encoders`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from backends.asr.transcript import Reader, Segment
from backends.checkpoint import inspect_asr_checkpoint


class Family(Protocol):
    """One architecture. ``max_seconds``: the longest window that it hears, or infinity; ``max_tokens``: the most that
    it can write of one; ``mels``: bins of a frame.
    """

    max_seconds: float
    max_tokens: int
    mels: int

    def features(self, samples: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Mono float32 [n] at 16 kHz, n >= 1 -> what the encoder reads of a window: float32 [parts, mels, frames], and
        how many frames of each part hold audio, int32 [parts].
        """
        ...

    def check(self, language: str, context: str) -> None:
        """Raise InvalidArgument for a language or a context that a prompt cannot hold."""
        ...

    def detection(self, language: str) -> NDArray[np.int32] | None:
        """Rows int32 [P, 2] to be asked first for one token, which names the language; None where none is needed."""
        ...

    def detected(self, token: int) -> str:
        """The language that :meth:`detection` found."""
        ...

    def build(self, states: int, language: str, context: str) -> tuple[NDArray[np.int32], NDArray[np.int64] | None]:
        """Prompt rows int32 [P, 2], and where the states stand in them; None: every row attends to them."""
        ...

    def reader(self, language: str) -> Reader:
        """For the answer to a prompt of ``language``."""
        ...


class WholeWindow:
    """Readers of models that write plain text: one segment a window."""

    def __init__(self) -> None:
        self._said = ""

    def said(self, text: str) -> str:
        self._said += text
        return text

    def segments(self, begin: float, end: float) -> list[Segment]:
        return [{"start": round(begin, 3), "end": round(end, 3), "text": self._said}] if self._said else []


def load_family(folder: Path) -> Family:
    """The family of the checkpoint in ``folder``, by ``model_type``. Raises CheckpointError for an unknown one."""
    kind = inspect_asr_checkpoint(folder).model_type
    # Not at the top: Whisper needs no torch for this, the others do.
    if kind == "whisper":
        from backends.asr.whisper_family import WhisperFamily

        return WhisperFamily(folder)
    if kind == "qwen3_asr":
        from backends.asr.qwen3_asr_family import Qwen3ASRFamily

        return Qwen3ASRFamily(folder)
    from backends.asr.moss_transcribe_family import MossTranscribeFamily

    return MossTranscribeFamily(folder)
