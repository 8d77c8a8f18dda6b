"""Whisper: one part of 30 s a window, a prompt without audio rows, plain text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backends.asr.family import WholeWindow
from backends.asr.log_mel import HOP, RATE, log_mel
from backends.models.text_stream import TextStream
from backends.models.whisper_config import WhisperConfig
from backends.models.whisper_prompt import WhisperPrompt


class WhisperFamily:
    """See :class:`backends.asr.family.Family`."""

    def __init__(self, folder: Path) -> None:
        config = WhisperConfig.load(folder)
        self.mels, self._frames = config.encoder.mels, config.encoder.mel_frames
        self.max_seconds = self._frames * HOP / RATE
        self.prompts = WhisperPrompt(folder)
        self.max_tokens = config.target_positions - (4 if self.prompts.multilingual else 2)
        # What stands for a language that the model names none of: the first it was trained with.
        self._fallback = next(iter(self.prompts.languages), "en")

    def features(self, samples: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        found = log_mel(samples, self.mels, self._frames * HOP)
        return found[None], np.array([self._frames], dtype=np.int32)

    def check(self, language: str, context: str) -> None:
        self.prompts.build(language or self._fallback, context=context)

    def detection(self, language: str) -> NDArray[np.int32] | None:
        return self.prompts.detection() if self.prompts.multilingual and not language else None

    def detected(self, token: int) -> str:
        return self.prompts.language_of(token) or self._fallback

    def build(self, states: int, language: str, context: str) -> tuple[NDArray[np.int32], NDArray[np.int64] | None]:
        return self.prompts.build(language, context=context), None

    def reader(self, language: str) -> WhisperReader:
        return WhisperReader(self.prompts.stream(), language or self._fallback)


class WhisperReader(WholeWindow):
    """See :class:`backends.asr.transcript.Reader`."""

    def __init__(self, stream: TextStream, language: str) -> None:
        super().__init__()
        self.language, self._stream = language, stream

    def feed(self, tokens: Sequence[int]) -> str:
        return self.said(self._stream.feed(tokens))

    def end(self) -> str:
        return self.said(self._stream.end())
